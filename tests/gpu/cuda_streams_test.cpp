// The host's calls on streams of a GPU, beside kernels on the same streams.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/gpu_pe.hpp"
#include "support/collective_data.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Bytes;
using testing::CudaShape;
using testing::Exchanged;
using testing::Gathered;
using testing::GpuPe;
using testing::Left;
using testing::Pe;
using testing::Right;
using testing::Sent;

class CudaStreams : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaStreams,
    ::testing::Values(CudaShape{"static", As::kProcesses, 1}, CudaShape{"static", As::kProcesses},
                      CudaShape{"static", As::kProcesses, 3}, CudaShape{"static", As::kThreads},
                      CudaShape{"vmm", As::kProcesses}, CudaShape{"isolation", As::kThreads}),
    testing::NameOfShape);

constexpr std::size_t kSizes[] = {0, 1, 4096, 5 << 20};
constexpr std::size_t kMost = 5 << 20;
/// Kernels on a stream before the host waits for it: a full stream makes launches wait, and those
/// of PEs that are threads then wait for each other.
constexpr int kRoundsAtOnce = 20;

/// Kernels of tests/gpu/streams.cu on a stream.
void Fill(const GpuPe& gpu, void* stream, std::uint64_t* words, std::uint64_t count,
          std::uint64_t value) {
  gpu.cuda.LaunchOn(stream, "fill", 4, 256, words, count, value);
}
void Check(const GpuPe& gpu, void* stream, const std::uint64_t* words, std::uint64_t count,
           std::uint64_t value) {
  gpu.cuda.LaunchOn(stream, "check", 4, 256, words, count, value, gpu.errors);
}
void Spin(const GpuPe& gpu, void* stream) {
  gpu.cuda.LaunchOn(stream, "spin", 1, 1, std::uint64_t{20'000'000});
}

// ---- put and get

TEST_P(CudaStreams, PutsAndGetsOfHostAndDeviceMemoryArrive) {
  EXPECT_EQ(
      Run([](const Pe& pe) {
        GpuPe gpu(pe, "streams");
        auto* dest = gpu.Zeroed<std::uint8_t>(kMost + 1);
        Bytes pageable(kMost);
        struct Local {
          std::uint8_t* memory;
          bool is_device;
        };
        const Local locals[] = {{pageable.data(), false},
                                {gpu.cuda.AllocatePinned<std::uint8_t>(kMost), false},
                                {gpu.cuda.Allocate<std::uint8_t>(kMost), true},
                                {gpu.Zeroed<std::uint8_t>(kMost), true}};
        const auto write = [&](const Local& local, const Bytes& data) {
          local.is_device ? gpu.cuda.Copy(local.memory, data.data(), data.size())
                          : void(std::memcpy(local.memory, data.data(), data.size()));
        };
        const auto read = [&](const Local& local, std::size_t bytes) {
          Bytes data(bytes);
          local.is_device ? gpu.cuda.Copy(data.data(), local.memory, bytes)
                          : void(std::memcpy(data.data(), local.memory, bytes));
          return data;
        };
        void* const default_stream = nullptr;
        int round = 0;
        for (void* stream : {gpu.cuda.stream(), default_stream}) {
          for (const std::size_t bytes : kSizes) {
            for (const Local& local : locals) {
              ++round;
              if (bytes > 0) write(local, Sent(pe.rank, round, bytes));
              gpu.Write(dest + bytes, Bytes{0xee});
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              PE_CHECK_EQ(ShmemPutMemOnStream(dest, local.memory, bytes, Right(pe), stream), 0);
              gpu.cuda.Sync(stream);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              Bytes expected = Sent(Left(pe), round, bytes);
              expected.push_back(0xee);
              PE_CHECK(gpu.Read(dest, bytes + 1) == expected);

              if (bytes == 0) continue;
              write(local, Bytes(bytes, 0xee));
              PE_CHECK_EQ(ShmemGetMemOnStream(local.memory, dest, bytes, Right(pe), stream), 0);
              gpu.cuda.Sync(stream);
              PE_CHECK(read(local, bytes) == Sent(pe.rank, round, bytes));
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
            }
          }
        }
        gpu.End();
      }),
      "");
}

// ---- signals and order

// Were the signal not ordered behind the data, a kernel after the wait would find words of an
// earlier round.
TEST_P(CudaStreams, AfterTheWaitForItsSignalThePutIsThere) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              constexpr std::uint64_t kWords = 20'000;
              auto* data = gpu.Zeroed<std::uint64_t>(kWords);
              auto* scratch = gpu.cuda.Allocate<std::uint64_t>(kWords);
              auto* signal = gpu.Zeroed<std::uint64_t>(1);
              for (int round = 1; round <= 500; ++round) {
                const auto value = static_cast<std::uint64_t>(round);
                const bool adds = round % 2 == 1;
                Fill(gpu, stream, scratch, kWords, value);
                PE_CHECK_EQ(ShmemPutMemSignalOnStream(
                                data, scratch, kWords * 8, signal, adds ? 1 : value,
                                adds ? SignalOp::kAdd : SignalOp::kSet, Right(pe), stream),
                            0);
                PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, Cmp::kGe, value, stream), 0);
                Check(gpu, stream, data, kWords, value);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                if (round % kRoundsAtOnce == 0) gpu.cuda.Sync(stream);
              }
              gpu.End();
            }),
            "");
}

TEST_P(CudaStreams, AWaitGoesOnWhenItsSignalComparesSoAndNotBefore) {
  struct Case {
    Cmp cmp;
    std::uint64_t initial, value, last;
  };
  constexpr std::uint64_t kTop = ~std::uint64_t{0};
  static constexpr Case kCases[] = {{Cmp::kEq, 1, 7, 7},       {Cmp::kNe, 7, 7, 1},
                                    {Cmp::kGt, 7, 7, kTop},    {Cmp::kGe, 6, 7, 7},
                                    {Cmp::kLt, kTop, kTop, 1}, {Cmp::kLe, kTop, 7, 7}};
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* signalling = gpu.cuda.CreateStream();
              auto* signal = gpu.Zeroed<std::uint64_t>(1);
              for (const Case& one : kCases) {
                gpu.Write<std::uint64_t>(signal, {one.initial});
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                PE_CHECK_EQ(
                    ShmemSignalWaitUntilOnStream(signal, one.cmp, one.value, gpu.cuda.stream()), 0);
                Spin(gpu, signalling);
                gpu.cuda.Sync(signalling);
                PE_CHECK(gpu.cuda.IsBusy(gpu.cuda.stream()));
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                PE_CHECK_EQ(
                    ShmemSignalOpOnStream(signal, one.last, SignalOp::kSet, Right(pe), signalling),
                    0);
                gpu.cuda.Sync(gpu.cuda.stream());
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
              }
              gpu.End();
            }),
            "");
}

// A flag without any order of its own: only quiet keeps it behind the data.
TEST_P(CudaStreams, AfterQuietWhatTheStreamPutIsThere) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              constexpr std::uint64_t kWords = 20'000;
              auto* data = gpu.Zeroed<std::uint64_t>(kWords);
              auto* scratch = gpu.cuda.Allocate<std::uint64_t>(kWords);
              auto* flag = gpu.Zeroed<std::uint64_t>(1);
              for (int round = 1; round <= 200; ++round) {
                const auto value = static_cast<std::uint64_t>(round);
                Fill(gpu, stream, scratch, kWords, value);
                PE_CHECK_EQ(ShmemPutMemOnStream(data, scratch, kWords * 8, Right(pe), stream), 0);
                PE_CHECK_EQ(ShmemQuietOnStream(stream), 0);
                gpu.cuda.LaunchOn(stream, "set_flag", 1, 1, flag, value, Right(pe));
                gpu.cuda.LaunchOn(stream, "await_flag", 1, 1, flag, value);
                Check(gpu, stream, data, kWords, value);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                if (round % kRoundsAtOnce == 0) gpu.cuda.Sync(stream);
              }
              gpu.End();
            }),
            "");
}

TEST_P(CudaStreams, TwoStreamsOfAPePutAtTheSameTime) {
  EXPECT_EQ(
      Run([](const Pe& pe) {
        GpuPe gpu(pe, "streams");
        void* const streams[] = {gpu.cuda.stream(), gpu.cuda.CreateStream()};
        constexpr std::uint64_t kWords = 100'000;
        auto* data = gpu.Zeroed<std::uint64_t>(2 * kWords);
        auto* scratch = gpu.cuda.Allocate<std::uint64_t>(2 * kWords);
        auto* signals = gpu.Zeroed<std::uint64_t>(2);
        auto* taken = gpu.Zeroed<std::uint64_t>(2);
        for (std::uint64_t round = 1; round <= 100; ++round) {
          for (const std::uint64_t i : {0, 1}) {
            const std::uint64_t value = 1000 * round + 77 * i;
            Fill(gpu, streams[i], scratch + i * kWords, kWords, value);
            PE_CHECK_EQ(ShmemPutMemSignalOnStream(data + i * kWords, scratch + i * kWords,
                                                  kWords * 8, signals + i, round, SignalOp::kSet,
                                                  Right(pe), streams[i]),
                        0);
          }
          for (const std::uint64_t i : {0, 1}) {
            const std::uint64_t value = 1000 * round + 77 * i;
            PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signals + i, Cmp::kGe, round, streams[i]), 0);
            Check(gpu, streams[i], data + i * kWords, kWords, value);
            // Who put it may put the next.
            PE_CHECK_EQ(ShmemSignalOpOnStream(taken + i, 1, SignalOp::kAdd, Left(pe), streams[i]),
                        0);
            PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(taken + i, Cmp::kEq, round, streams[i]), 0);
          }
          if (round % kRoundsAtOnce == 0) {
            for (void* stream : streams) gpu.cuda.Sync(stream);
          }
        }
        gpu.End();
      }),
      "");
}

// ---- barriers

TEST_P(CudaStreams, ABarrierCompletesWhatTheStreamsOfAllHavePut) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              constexpr std::uint64_t kWords = 20'000;
              const auto n_pes = static_cast<std::uint64_t>(pe.size);
              auto* data = gpu.Zeroed<std::uint64_t>(kWords * n_pes);
              auto* scratch = gpu.cuda.Allocate<std::uint64_t>(kWords);
              auto* mine = data + static_cast<std::uint64_t>(pe.rank) * kWords;
              for (int round = 1; round <= 100; ++round) {
                const auto value = static_cast<std::uint64_t>(round) * 1000;
                Fill(gpu, stream, scratch, kWords, value + static_cast<std::uint64_t>(pe.rank));
                for (int to = 0; to < pe.size; ++to)
                  PE_CHECK_EQ(ShmemPutMemOnStream(mine, scratch, kWords * 8, to, stream), 0);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                for (std::uint64_t from = 0; from < n_pes; ++from)
                  Check(gpu, stream, data + from * kWords, kWords, value + from);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                if (round % kRoundsAtOnce == 0) gpu.cuda.Sync(stream);
              }
              gpu.End();
            }),
            "");
}

/// Kernels between meetings tell all, and look whether all have told them.
void CheckMeetings(const Pe& pe, const std::function<int(void*)>& meet) {
  GpuPe gpu(pe, "streams");
  void* stream = gpu.cuda.stream();
  auto* words = gpu.Zeroed<std::uint64_t>(static_cast<std::size_t>(pe.size));
  for (int round = 1; round <= 100; ++round) {
    const auto value = static_cast<std::uint64_t>(round);
    gpu.cuda.LaunchOn(stream, "tell_all", 1, 32, words, value);
    PE_CHECK_EQ(meet(stream), 0);
    gpu.cuda.LaunchOn(stream, "heard_from_all", 1, 32, words, value, gpu.errors);
    PE_CHECK_EQ(meet(stream), 0);
    if (round % kRoundsAtOnce == 0) gpu.cuda.Sync(stream);
  }
  for (int round = 0; round < 100; ++round) PE_CHECK_EQ(meet(stream), 0);
  gpu.cuda.Sync(stream);
  gpu.End();
}
TEST_P(CudaStreams, HundredsOfBarriersBackToBack) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMeetings(pe, ShmemBarrierAllOnStream); }), "");
}
/// A batch of barriers at a time, for the reason that `kRoundsAtOnce` has. One PE, which tools that
/// watch every access run, has fewer of them.
TEST_P(CudaStreams, AHundredThousandBarriersBackToBack) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              auto* words = gpu.Zeroed<std::uint64_t>(static_cast<std::size_t>(pe.size));
              constexpr int kInBatch = 100;
              const int batches = pe.size == 1 ? 10 : 1000;
              for (int batch = 1; batch <= batches; ++batch) {
                const auto value = static_cast<std::uint64_t>(batch);
                gpu.cuda.LaunchOn(stream, "tell_all", 1, 32, words, value);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                gpu.cuda.LaunchOn(stream, "heard_from_all", 1, 32, words, value, gpu.errors);
                for (int i = 1; i < kInBatch; ++i) PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                gpu.cuda.Sync(stream);
              }
              gpu.End();
            }),
            "");
}
TEST_P(CudaStreams, ASyncMeetsAllAfterQuiet) {
  EXPECT_EQ(Run([](const Pe& pe) {
              CheckMeetings(pe, [](void* stream) {
                const int code = ShmemQuietOnStream(stream);
                return code != 0 ? code : ShmemSyncAllOnStream(stream);
              });
            }),
            "");
}

TEST_P(CudaStreams, TheHostsBarrierCompletesWhatIsStillOnStreams) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* const streams[] = {gpu.cuda.stream(), gpu.cuda.CreateStream()};
              auto* data = gpu.Zeroed<std::uint8_t>(4096);
              auto* signal = gpu.Zeroed<std::uint64_t>(1);
              auto* source = gpu.cuda.Allocate<std::uint8_t>(4096);
              for (int round = 1; round <= 5; ++round) {
                const Bytes sent = Sent(pe.rank, round, 4096);
                gpu.cuda.Copy(source, sent.data(), sent.size());
                for (void* stream : streams) Spin(gpu, stream);
                PE_CHECK_EQ(ShmemPutMemOnStream(data, source, 4096, Right(pe), streams[0]), 0);
                PE_CHECK_EQ(ShmemSignalOpOnStream(signal, 3, SignalOp::kAdd, Right(pe), streams[1]),
                            0);
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                Bytes theirs(4096);
                PE_CHECK_EQ(ShmemGetMem(theirs.data(), data, 4096, Right(pe)), 0);
                PE_CHECK(theirs == sent);
                PE_CHECK_EQ(ShmemG(signal, Right(pe)), static_cast<std::uint64_t>(3 * round));
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
              }
              gpu.End();
            }),
            "");
}

// The block's next owner must not find what was put to its last one.
TEST_P(CudaStreams, FreeCompletesWhatIsStillOnStreams) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              constexpr std::size_t kBytes = 4096;
              auto* source = gpu.cuda.Allocate<std::uint8_t>(kBytes);
              const Bytes sent(kBytes, 0xee);
              gpu.cuda.Copy(source, sent.data(), kBytes);
              auto* block = gpu.Zeroed<std::uint8_t>(kBytes);
              Spin(gpu, stream);
              PE_CHECK_EQ(ShmemPutMemOnStream(block, source, kBytes, Right(pe), stream), 0);
              PE_CHECK_EQ(ShmemFree(block), 0);
              auto* next = gpu.Zeroed<std::uint8_t>(kBytes);
              gpu.cuda.Sync(stream);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              PE_CHECK(gpu.Read(next, kBytes) == Bytes(kBytes));
              gpu.End();
            }),
            "");
}
// Were the heap gone before the put comes to it, the stream would end with an error.
TEST_P(CudaStreams, FinalizeCompletesWhatIsStillOnStreams) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              auto* source = gpu.cuda.Allocate<std::uint8_t>(kMost);
              auto* block = gpu.Zeroed<std::uint8_t>(kMost);
              Spin(gpu, stream);
              PE_CHECK_EQ(ShmemPutMemOnStream(block, source, kMost, Right(pe), stream), 0);
              PE_CHECK_EQ(ShmemFinalize(), 0);
              PE_CHECK_EQ(gpu.cuda.TrySync(stream), 0);
            }),
            "");
}

class CudaStreamsOfAProcess : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && testing::KernelFolder().empty())
      GTEST_SKIP() << "no nvcc to compile kernels with";
  }
};
// The barrier waits for a put behind a wait, which the other thread's signal ends.
TEST_F(CudaStreamsOfAProcess, AThreadPutsWhileTheHostsBarrierWaitsInAnother) {
  testing::Options options = OptionsOf("static", testing::As::kProcesses);
  options.deadline = std::chrono::seconds(30);
  const auto outcomes = testing::RunProcesses(
      1,
      [](const Pe& pe) {
        GpuPe gpu(pe, "streams");
        void* stream = gpu.cuda.stream();
        void* const other_stream = gpu.cuda.CreateStream();
        auto* words = gpu.Zeroed<std::uint64_t>(3);
        PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(words, Cmp::kEq, 1, stream), 0);
        PE_CHECK_EQ(ShmemPutMemOnStream(words + 1, words, 8, 0, stream), 0);
        int code = -1;
        std::thread other([&] {
          ::usleep(50'000);  // the barrier waits
          code = ShmemSignalOpOnStream(words, 1, SignalOp::kSet, 0, other_stream);
        });
        const int met = ShmemBarrierAll();
        other.join();
        PE_CHECK_EQ(met, 0);
        PE_CHECK_EQ(code, 0);
        PE_CHECK_EQ(gpu.ReadOne(words + 1), std::uint64_t{1});
        gpu.End();
      },
      options);
  EXPECT_EQ(testing::Failures(outcomes), "");
}

// ---- collectives

TEST_P(CudaStreams, CollectivesBringEveryByteToEveryPe) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              const std::size_t room = kMost * static_cast<std::size_t>(pe.size) + 1;
              auto* source = gpu.Zeroed<std::uint8_t>(room);
              auto* dest = gpu.Zeroed<std::uint8_t>(room);
              const auto run = [&](const Bytes& sent, Bytes expected, auto call) {
                if (!sent.empty()) gpu.Write(source, sent);
                gpu.Write(dest, Bytes(expected.size() + 1, 0xee));
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                PE_CHECK_EQ(call(), 0);
                gpu.cuda.Sync(stream);
                expected.push_back(0xee);
                PE_CHECK(gpu.Read(dest, expected.size()) == expected);
              };
              int round = 0;
              for (const std::size_t bytes : kSizes) {
                for (int root = 0; root < pe.size; ++root) {
                  ++round;
                  run(Sent(pe.rank, round, bytes), Sent(root, round, bytes),
                      [&] { return ShmemBroadcastMemOnStream(dest, source, bytes, root, stream); });
                }
                ++round;
                run(Sent(pe.rank, round, bytes), Gathered(pe.size, round, bytes),
                    [&] { return ShmemFCollectMemOnStream(dest, source, bytes, stream); });
                run(Sent(pe.rank, round, bytes * static_cast<std::size_t>(pe.size)),
                    Exchanged(pe.rank, pe.size, round, bytes),
                    [&] { return ShmemAllToAllMemOnStream(dest, source, bytes, stream); });
              }
              gpu.End();
            }),
            "");
}

template <typename T>
int Reduce(T* dest, const T* source, std::size_t count, ReduceOp op, void* stream) {
  switch (op) {
    case ReduceOp::kSum: return ShmemSumReduceOnStream(dest, source, count, stream);
    case ReduceOp::kMin: return ShmemMinReduceOnStream(dest, source, count, stream);
    case ReduceOp::kMax: return ShmemMaxReduceOnStream(dest, source, count, stream);
  }
  return -1;
}
template <typename T>
void CheckReductions(const Pe& pe, GpuPe* gpu, const char* type) {
  void* stream = gpu->cuda.stream();
  constexpr std::size_t kMostElements = kMost / sizeof(T);
  T* source = gpu->Zeroed<T>(kMostElements + 1);
  T* dest = gpu->Zeroed<T>(kMostElements + 1);
  unsigned seed = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(pe.size) - 1, 4096 / sizeof(T),
        kMostElements}) {
    for (const auto& [op, name] : testing::kReduceOps) {
      ++seed;
      const T untouched = testing::ElementOf<T>(pe.rank, count, seed);
      const auto mine = testing::ElementsOf<T>(pe.rank, count + 1, seed);
      auto expected = testing::CombinedElements<T>(op, pe.size, count, seed);
      expected.push_back(untouched);
      for (const bool in_place : {false, true}) {
        gpu->Write(dest, in_place ? mine : std::vector<T>(count + 1, untouched));
        gpu->Write(source, mine);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(Reduce(dest, in_place ? dest : source, count, op, stream), 0);
        gpu->cuda.Sync(stream);
        if (!testing::SameBits(gpu->Read(dest, count + 1), expected))
          throw testing::PeFailure(fmt::format("{} of {} {}{} is wrong", name, count, type,
                                               in_place ? " in place" : ""));
      }
    }
  }
  PE_CHECK_EQ(ShmemFree(dest), 0);
  PE_CHECK_EQ(ShmemFree(source), 0);
}
TEST_P(CudaStreams, ReductionsCombineInTheOrderOfPesToTheBit) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              CheckReductions<std::int32_t>(pe, &gpu, "int32");
              CheckReductions<std::uint32_t>(pe, &gpu, "uint32");
              CheckReductions<std::int64_t>(pe, &gpu, "int64");
              CheckReductions<std::uint64_t>(pe, &gpu, "uint64");
              CheckReductions<float>(pe, &gpu, "float32");
              CheckReductions<double>(pe, &gpu, "float64");
              gpu.End();
            }),
            "");
}

// The last block of one kernel must leave the words by which blocks meet ready for the next one.
TEST_P(CudaStreams, CollectivesFollowOneAnotherOnAStream) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              constexpr std::uint64_t kWords = 30'000;
              const auto n_pes = static_cast<std::uint64_t>(pe.size);
              auto* source = gpu.Zeroed<std::uint64_t>(kWords * n_pes);
              auto* gathered = gpu.Zeroed<std::uint64_t>(kWords * n_pes);
              auto* exchanged = gpu.Zeroed<std::uint64_t>(kWords * n_pes);
              auto* sent = gpu.Zeroed<std::uint64_t>(kWords);
              auto* largest = gpu.Zeroed<std::uint64_t>(kWords);
              const auto me = static_cast<std::uint64_t>(pe.rank);
              for (int round = 1; round <= 100; ++round) {
                const int root = round % pe.size;
                const std::uint64_t value = static_cast<std::uint64_t>(round) * 100'000;
                Fill(gpu, stream, source, kWords * n_pes, value + me);
                PE_CHECK_EQ(ShmemFCollectMemOnStream(gathered, source, kWords * 8, stream), 0);
                PE_CHECK_EQ(ShmemAllToAllMemOnStream(exchanged, source, kWords * 8, stream), 0);
                PE_CHECK_EQ(ShmemBroadcastMemOnStream(sent, source, kWords * 8, root, stream), 0);
                PE_CHECK_EQ(ShmemMaxReduceOnStream(largest, source, kWords, stream), 0);
                for (std::uint64_t from = 0; from < n_pes; ++from) {
                  Check(gpu, stream, gathered + from * kWords, kWords, value + from);
                  Check(gpu, stream, exchanged + from * kWords, kWords, value + from + me * kWords);
                }
                Check(gpu, stream, sent, kWords, value + static_cast<std::uint64_t>(root));
                Check(gpu, stream, largest, kWords, value + n_pes - 1);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                if (round % kRoundsAtOnce == 0) gpu.cuda.Sync(stream);
              }
              gpu.End();
            }),
            "");
}

// ---- graphs and libraries

TEST_P(CudaStreams, AGraphOfPutAndBarrierIsLaunchedAgainAndAgain) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* stream = gpu.cuda.stream();
              constexpr std::uint64_t kWords = 10'000;
              auto* data = gpu.Zeroed<std::uint64_t>(kWords);
              auto* scratch = gpu.cuda.Allocate<std::uint64_t>(kWords);
              auto* launches = gpu.cuda.Allocate<std::uint64_t>(1);
              void* graph = gpu.cuda.Capture(stream, [&] {
                gpu.cuda.LaunchOn(stream, "next_fill", 1, 256, scratch, kWords, launches);
                PE_CHECK_EQ(ShmemPutMemOnStream(data, scratch, kWords * 8, Right(pe), stream), 0);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                gpu.cuda.LaunchOn(stream, "next_check", 1, 256, data, kWords, launches, gpu.errors);
                PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
              });
              PE_CHECK_EQ(gpu.cuda.CountNodes(graph), std::size_t{5});
              void* executable = gpu.cuda.Instantiate(graph);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              for (int i = 0; i < 10; ++i) gpu.cuda.LaunchGraph(executable, stream);
              gpu.cuda.Sync(stream);
              std::uint64_t count = 0;
              gpu.cuda.Copy(&count, launches, sizeof count);
              PE_CHECK_EQ(count, std::uint64_t{10});
              gpu.End();
            }),
            "");
}

TEST_P(CudaStreams, KernelsOfALibraryKnowTheirPe) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              void* library = nullptr;
              gpu.cuda.Call<void**, const void*, void*, void*, unsigned, void*, void*, unsigned>(
                  "cuLibraryLoadData", &library, testing::Cuda::Ptx("streams").c_str(), nullptr,
                  nullptr, 0, nullptr, nullptr, 0);
              PE_CHECK_EQ(ShmemLibraryInit(library), 0);
              const auto find = [&](const char* name) {
                void* kernel = nullptr;
                gpu.cuda.Call<void**, void*, const char*>("cuLibraryGetKernel", &kernel, library,
                                                          name);
                return kernel;
              };
              int* pes = gpu.Zeroed<int>(2);
              int* of_left = gpu.Zeroed<int>(2);
              void* stream = gpu.cuda.stream();
              gpu.cuda.LaunchFunction(stream, find("identity"), 1, 1, pes);
              gpu.cuda.LaunchFunction(stream, find("put_block"), 1, 32, of_left, pes,
                                      std::uint64_t{2 * sizeof(int)}, Right(pe));
              gpu.cuda.Sync(stream);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              PE_CHECK(gpu.Read(pes, 2) == (std::vector<int>{pe.rank, pe.size}));
              PE_CHECK(gpu.Read(of_left, 2) == (std::vector<int>{Left(pe), pe.size}));
              PE_CHECK_EQ(ShmemLibraryInit(nullptr), static_cast<int>(ErrorCode::kInvalidArgument));
              gpu.End();
            }),
            "");
}

// ---- errors

void ExpectInvalid(int code, const char* part) {
  PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kInvalidArgument));
  if (std::string(ShmemLastError()).find(part) == std::string::npos)
    throw testing::PeFailure(fmt::format("\"{}\" does not say {}", ShmemLastError(), part));
}

TEST_P(CudaStreams, AWrongCallIsAnErrorAndPutsNothingOnTheStream) {
  EXPECT_EQ(
      Run([](const Pe& pe) {
        GpuPe gpu(pe, "streams");
        void* s = gpu.cuda.stream();
        auto* word = gpu.Zeroed<std::uint64_t>(8);
        auto* local = gpu.cuda.Allocate<std::uint64_t>(8);
        auto* odd = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uint8_t*>(word) + 4);
        constexpr std::size_t kTooMuch = std::size_t{1} << 40;
        constexpr auto kSet = SignalOp::kSet;
        constexpr auto kInt32 = ElementType::kInt32;
        constexpr auto kSum = ReduceOp::kSum;
        void* nothing = gpu.cuda.Capture(s, [&] {
          for (const int no_pe : {-1, pe.size, 1 << 30}) {
            ExpectInvalid(ShmemPutMemOnStream(word, local, 8, no_pe, s), "out of range");
            ExpectInvalid(ShmemGetMemOnStream(local, word, 8, no_pe, s), "out of range");
            ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, word + 1, 1, kSet, no_pe, s),
                          "out of range");
            ExpectInvalid(ShmemSignalOpOnStream(word, 1, kSet, no_pe, s), "out of range");
            ExpectInvalid(ShmemBroadcastMemOnStream(word, word + 1, 8, no_pe, s), "out of range");
          }
          ExpectInvalid(ShmemPutMemOnStream(local, word, 8, 0, s), "no symmetric address");
          ExpectInvalid(ShmemGetMemOnStream(word, local, 8, 0, s), "no symmetric address");
          ExpectInvalid(ShmemPutMemSignalOnStream(local, word, 8, word, 1, kSet, 0, s),
                        "no symmetric address");
          ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, local, 1, kSet, 0, s),
                        "no symmetric address");
          ExpectInvalid(ShmemSignalOpOnStream(local, 1, kSet, 0, s), "no symmetric address");
          ExpectInvalid(ShmemSignalWaitUntilOnStream(local, Cmp::kEq, 1, s),
                        "no symmetric address");
          ExpectInvalid(ShmemBroadcastMemOnStream(local, word, 8, 0, s), "no symmetric address");
          ExpectInvalid(ShmemFCollectMemOnStream(local, word, 8, s), "no symmetric address");
          ExpectInvalid(ShmemAllToAllMemOnStream(local, word, 8, s), "no symmetric address");
          ExpectInvalid(ShmemReduceOnStream(local, word, 2, kInt32, kSum, s),
                        "no symmetric address");
          ExpectInvalid(ShmemReduceOnStream(word, local, 2, kInt32, kSum, s),
                        "no symmetric address");

          ExpectInvalid(ShmemPutMemOnStream(word, local, kTooMuch, 0, s), "leave the heap");
          ExpectInvalid(ShmemGetMemOnStream(local, word, kTooMuch, 0, s), "leave the heap");
          ExpectInvalid(ShmemBroadcastMemOnStream(word, word, kTooMuch, 0, s), "leave the heap");
          ExpectInvalid(ShmemFCollectMemOnStream(word, word, kTooMuch, s), "more than the heap");
          ExpectInvalid(ShmemAllToAllMemOnStream(word, word, ~std::size_t{0}, s),
                        "more than the heap");
          ExpectInvalid(ShmemReduceOnStream(word, word, ~std::size_t{0}, kInt32, kSum, s),
                        "more than the heap");

          ExpectInvalid(ShmemSignalOpOnStream(odd, 1, kSet, 0, s), "not aligned");
          ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, odd, 1, kSet, 0, s),
                        "not aligned");
          ExpectInvalid(ShmemSignalWaitUntilOnStream(odd, Cmp::kEq, 1, s), "not aligned");
          ExpectInvalid(ShmemReduceOnStream(odd, word, 1, ElementType::kFloat64, kSum, s),
                        "not aligned");

          for (const int unknown : {-1, 6}) {
            ExpectInvalid(ShmemSignalWaitUntilOnStream(word, static_cast<Cmp>(unknown), 1, s),
                          "comparison");
            ExpectInvalid(
                ShmemReduceOnStream(word, word, 1, static_cast<ElementType>(unknown), kSum, s),
                "element type");
          }
          for (const int unknown : {-1, 2}) {
            ExpectInvalid(ShmemSignalOpOnStream(word, 1, static_cast<SignalOp>(unknown), 0, s),
                          "operation");
            ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, word, 1,
                                                    static_cast<SignalOp>(unknown), 0, s),
                          "operation");
          }
          for (const int unknown : {-1, 3})
            ExpectInvalid(
                ShmemReduceOnStream(word, word, 1, kInt32, static_cast<ReduceOp>(unknown), s),
                "operation");
        });
        PE_CHECK_EQ(gpu.cuda.CountNodes(nothing), std::size_t{0});
        // A right one shows in the count.
        void* something = gpu.cuda.Capture(
            s, [&] { PE_CHECK_EQ(ShmemPutMemOnStream(word, local, 8, pe.rank, s), 0); });
        PE_CHECK_EQ(gpu.cuda.CountNodes(something), std::size_t{1});
        gpu.End();
      }),
      "");
}

}  // namespace
}  // namespace mori::shmem
