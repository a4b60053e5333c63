// Barriers on streams of a GPU, and what completes the calls that are still on a stream.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <thread>

#include "gpu/cuda_streams.hpp"
#include "support/collective_data.hpp"

namespace mori::shmem {
namespace {

using testing::Bytes;
using testing::CudaStreamPe;
using testing::CudaStreams;
using testing::GpuPe;
using testing::Pe;
using testing::Right;
using testing::Sent;
using testing::StreamPe;

// ---- barriers

TEST_P(CudaStreams, ABarrierCompletesWhatTheStreamsOfAllHavePut) {
  RunOn([](StreamPe& p) {
    testing::CheckPutsToAll(p, 20'000, 100,
                            [&p](std::uint64_t) { return ShmemBarrierAllOnStream(p.stream()); });
  });
}

/// Kernels between meetings tell all, and look whether all have told them.
void CheckMeetings(CudaStreamPe& p, int (*meet)(void*)) {
  auto* words = p.Zeroed<std::uint64_t>(p.n_pes());
  p.Rounds(100, [&](std::uint64_t round) {
    p.TellAll(words, round);
    PE_CHECK_EQ(meet(p.stream()), 0);
    p.HeardFromAll(words, round);
    PE_CHECK_EQ(meet(p.stream()), 0);
  });
  for (int i = 0; i < 100; ++i) PE_CHECK_EQ(meet(p.stream()), 0);
  p.Sync(p.stream());
}
TEST_P(CudaStreams, HundredsOfBarriersBackToBack) {
  RunOn([](CudaStreamPe& p) { CheckMeetings(p, ShmemBarrierAllOnStream); });
}
TEST_P(CudaStreams, ASyncMeetsAllAfterQuiet) {
  RunOn([](CudaStreamPe& p) {
    CheckMeetings(p, [](void* stream) {
      const int code = ShmemQuietOnStream(stream);
      return code != 0 ? code : ShmemSyncAllOnStream(stream);
    });
  });
}
/// A batch of barriers at a time, for the reason that `Rounds` has. One PE, which tools that watch
/// every access run, has fewer of them.
TEST_P(CudaStreams, AHundredThousandBarriersBackToBack) {
  RunOn([](CudaStreamPe& p) {
    auto* words = p.Zeroed<std::uint64_t>(p.n_pes());
    constexpr int kInBatch = 100;
    const std::uint64_t batches = p.n_pes() == 1 ? 10 : 1000;
    for (std::uint64_t batch = 1; batch <= batches; ++batch) {
      p.TellAll(words, batch);
      PE_CHECK_EQ(ShmemBarrierAllOnStream(p.stream()), 0);
      p.HeardFromAll(words, batch);
      for (int i = 1; i < kInBatch; ++i) PE_CHECK_EQ(ShmemBarrierAllOnStream(p.stream()), 0);
      p.Sync(p.stream());
    }
  });
}

// ---- what completes the calls on streams

TEST_P(CudaStreams, TheHostsBarrierCompletesWhatIsStillOnStreams) {
  RunOn([](CudaStreamPe& p) {
    const int right = Right(p.pe);
    void* const streams[] = {p.stream(), p.cuda.CreateStream()};
    auto* data = p.Zeroed<std::uint8_t>(4096);
    auto* signal = p.Zeroed<std::uint64_t>(1);
    auto* source = p.Local<std::uint8_t>(4096);
    for (int round = 1; round <= 5; ++round) {
      const Bytes sent = Sent(p.pe.rank, round, 4096);
      p.Write(source, sent);
      for (void* stream : streams) p.SpinOn(stream);
      PE_CHECK_EQ(ShmemPutMemOnStream(data, source, 4096, right, streams[0]), 0);
      PE_CHECK_EQ(ShmemSignalOpOnStream(signal, 3, SignalOp::kAdd, right, streams[1]), 0);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      Bytes theirs(4096);
      PE_CHECK_EQ(ShmemGetMem(theirs.data(), data, 4096, right), 0);
      PE_CHECK(theirs == sent);
      PE_CHECK_EQ(ShmemG(signal, right), static_cast<std::uint64_t>(3 * round));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

// The block's next owner must not find what was put to its last one.
TEST_P(CudaStreams, FreeCompletesWhatIsStillOnStreams) {
  RunOn([](CudaStreamPe& p) {
    void* stream = p.stream();
    constexpr std::size_t kBytes = 4096;
    auto* source = p.Local<std::uint8_t>(kBytes);
    p.Write(source, Bytes(kBytes, 0xee));
    auto* block = p.Zeroed<std::uint8_t>(kBytes);
    p.SpinOn(stream);
    PE_CHECK_EQ(ShmemPutMemOnStream(block, source, kBytes, Right(p.pe), stream), 0);
    PE_CHECK_EQ(ShmemFree(block), 0);
    auto* next = p.Zeroed<std::uint8_t>(kBytes);
    p.Sync(stream);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK(p.Read(next, kBytes) == Bytes(kBytes));
  });
}
// Were the heap gone before the put comes to it, the stream would end with an error.
TEST_P(CudaStreams, FinalizeCompletesWhatIsStillOnStreams) {
  EXPECT_EQ(Run([](const Pe& pe) {
              CudaStreamPe p(pe);
              constexpr std::size_t kBytes = 5 << 20;
              auto* source = p.Local<std::uint8_t>(kBytes);
              auto* block = p.Zeroed<std::uint8_t>(kBytes);
              void* const other = p.cuda.CreateStream();
              p.SpinOn(p.stream());
              PE_CHECK_EQ(ShmemPutMemOnStream(block, source, kBytes, Right(pe), p.stream()), 0);
              // Of the program, which nobody has told the library of.
              p.SpinOn(other);
              p.SpinOn(other);
              p.cuda.LaunchOn(other, "put_block", 1, 32, static_cast<void*>(block),
                              static_cast<const void*>(block), std::uint64_t{64}, pe.rank);
              PE_CHECK_EQ(ShmemFinalize(), 0);
              PE_CHECK_EQ(p.cuda.TrySync(other), 0);
              PE_CHECK_EQ(p.cuda.TrySync(p.stream()), 0);
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

}  // namespace
}  // namespace mori::shmem
