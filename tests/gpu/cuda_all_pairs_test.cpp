// Every PE sends to every PE from a kernel, itself too, and all at once. Of messages every byte is
// looked at, and what is beside them; of atomics every number that was handed out.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::GpuPe;
using testing::kScopes;
using testing::Pe;
using testing::PeFailure;
using testing::Scope;

class CudaAllPairs : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaAllPairs,
                         ::testing::ValuesIn(testing::WithEachGpu(testing::CudaShapes({1, 2, 4}))),
                         testing::NameOfShape);

/// Of a block, which is as many threads, warps or one block: each scope has its groups in it.
constexpr unsigned kThreads = 256;

// ---- messages

using Bytes = std::vector<std::uint8_t>;
constexpr std::uint8_t kUntouched = 0xee;
constexpr std::size_t kMost = 256 << 10;
/// Beside a message, before and behind it together.
constexpr std::size_t kBeside = 64;

/// How messages are sent: their size, where they begin in their slots, and how many follow.
struct Sending {
  std::size_t bytes, to, from;
  int rounds;
};
constexpr Sending kSendings[] = {
    {1, 0, 0, 20},    {1, 5, 2, 20},    {8, 0, 0, 20},    {8, 8, 16, 20},   {8, 3, 9, 20},
    {4093, 0, 0, 10}, {4093, 1, 6, 10}, {4093, 7, 7, 10}, {kMost, 0, 0, 3}, {kMost, 13, 2, 3}};

/// What the kernel has too.
std::uint8_t ByteOf(int from, int to, int round, std::size_t i) {
  std::uint32_t bits = static_cast<std::uint32_t>((from * 64 + to) * 4096 + round) * 0x27d4eb2fu;
  bits = (bits ^ static_cast<std::uint32_t>(i)) * 0x9e3779b1u;
  bits = (bits ^ bits >> 15) * 0x85ebca6bu;
  return static_cast<std::uint8_t>(bits >> 24);
}

/// An argument of kernels: symmetric slots, one for each PE.
struct Messages {
  std::uint8_t* inbox;
  std::uint8_t* outbox;
  std::uint64_t slot_bytes, bytes, to, from;
};

class Slots {
 public:
  Slots(const Pe& pe, GpuPe* gpu) : pe_(pe), gpu_(*gpu) {
    inbox_ = gpu->Zeroed<std::uint8_t>(n_pes() * (kMost + kBeside));
    outbox_ = gpu->Zeroed<std::uint8_t>(n_pes() * (kMost + kBeside));
    arrived = gpu->Zeroed<std::uint64_t>(n_pes());
    taken = gpu->Zeroed<std::uint64_t>(n_pes());
  }

  /// Makes the slots ready for the kernel, on all PEs.
  Messages Prepare(const Sending& sending) {
    sending_ = sending;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);  // nobody signals any more
    gpu_.Write(inbox_, Bytes(n_pes() * slot_bytes(), kUntouched));
    gpu_.Write(arrived, std::vector<std::uint64_t>(n_pes()));
    gpu_.Write(taken, std::vector<std::uint64_t>(n_pes()));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    return {inbox_, outbox_, slot_bytes(), sending.bytes, sending.to, sending.from};
  }
  /// The kernel has counted no errors, and the messages of the last round are here.
  void Check(const std::string& kernel) const {
    const auto failure = [&](const char* what) {
      return PeFailure(fmt::format("{}, {} bytes from {} to {}: {}", kernel, sending_.bytes,
                                   sending_.from, sending_.to, what));
    };
    if (gpu_.ErrorsOfAll() != 0) throw failure("the kernel counted errors");
    Bytes expected(n_pes() * slot_bytes(), kUntouched);
    for (int from = 0; from < pe_.size; ++from) {
      std::uint8_t* message =
          expected.data() + static_cast<std::size_t>(from) * slot_bytes() + sending_.to;
      for (std::size_t i = 0; i < sending_.bytes; ++i)
        message[i] = ByteOf(from, pe_.rank, sending_.rounds, i);
    }
    if (gpu_.Read(inbox_, expected.size()) != expected) throw failure("other bytes are here");
  }

  std::uint64_t* arrived;  ///< a word for each PE
  std::uint64_t* taken;    ///< the same

 private:
  std::size_t n_pes() const { return static_cast<std::size_t>(pe_.size); }
  std::size_t slot_bytes() const { return (sending_.bytes + kBeside) / 16 * 16; }

  const Pe& pe_;
  GpuPe& gpu_;
  std::uint8_t* inbox_;
  std::uint8_t* outbox_;
  Sending sending_{};
};

/// Every scope and message. `launch` runs a kernel to its end.
template <typename Launch>
void CheckMessages(const Pe& pe, const char* name, Launch launch) {
  GpuPe gpu(pe, "all_pairs");
  Slots slots(pe, &gpu);
  for (const Sending& sending : kSendings) {
    for (const Scope& scope : kScopes) {
      const std::string kernel = fmt::format("{}_{}", name, scope.name);
      const Messages messages = slots.Prepare(sending);
      launch(gpu, slots, kernel, messages, sending.rounds);
      slots.Check(kernel);
    }
  }
  gpu.End();
}
void LaunchKernel(const GpuPe& gpu, const Slots&, const std::string& kernel,
                  const Messages& messages, int rounds) {
  gpu.cuda.Launch(kernel, 1, kThreads, messages, rounds, gpu.errors);
}

TEST_P(CudaAllPairs, WhatAllPutToAllIsThereAfterABarrier) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "put_to_all", LaunchKernel); }), "");
}
TEST_P(CudaAllPairs, AllGetFromAllWhatIsThere) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "get_from_all", LaunchKernel); }), "");
}
TEST_P(CudaAllPairs, WhoSeesTheSignalsOfAllSeesTheirMessages) {
  EXPECT_EQ(Run([](const Pe& pe) {
              CheckMessages(pe, "signal_to_all",
                            [](const GpuPe& gpu, const Slots& slots, const std::string& kernel,
                               const Messages& messages, int rounds) {
                              gpu.cuda.Launch(kernel, 1, kThreads, messages, rounds, gpu.errors,
                                              slots.arrived, slots.taken);
                            });
            }),
            "");
}

// Two kernels of each PE at a time, each with messages of its own.
TEST_P(CudaAllPairs, TwoStreamsOfEveryPeSendAtOnce) {
  testing::Options options = OptionsOf(GetParam().mode, GetParam().as);
  // Of PEs that are threads on one GPU, each stream wants a connection of its own.
  if (GetParam().as == As::kThreads)
    options.environment.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  const testing::Body body = [](const Pe& pe) {
    GpuPe gpu(pe, "all_pairs");
    Slots slots[] = {Slots(pe, &gpu), Slots(pe, &gpu)};
    void* const streams[] = {gpu.cuda.stream(), gpu.cuda.CreateStream()};
    constexpr Sending kSending = {4093, 1, 6, 200};
    for (const Scope& scope : kScopes) {
      const std::string kernel = fmt::format("signal_to_all_{}", scope.name);
      const Messages messages[] = {slots[0].Prepare(kSending), slots[1].Prepare(kSending)};
      for (const int i : {0, 1})
        gpu.cuda.LaunchOn(streams[i], kernel, 1, kThreads, messages[i], kSending.rounds, gpu.errors,
                          slots[i].arrived, slots[i].taken);
      for (void* stream : streams) gpu.cuda.Sync(stream);
      for (const Slots& each : slots) each.Check(kernel);
    }
    gpu.End();
  };
  EXPECT_EQ(testing::Failures(testing::RunAs(GetParam().as, GetParam().size, body, options)), "");
}

// ---- signals

TEST_P(CudaAllPairs, SignalsAloneBringWhatWasPutBeforeAndAddUp) {
  struct SignalWords {
    std::uint64_t* put;
    std::uint64_t* own;
    std::uint64_t* of_all;
  };
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "all_pairs");
              const auto n_pes = static_cast<std::size_t>(pe.size);
              constexpr int kRounds = 1000;
              for (const Scope& scope : kScopes) {
                const SignalWords words = {gpu.Zeroed<std::uint64_t>(n_pes),
                                           gpu.Zeroed<std::uint64_t>(n_pes),
                                           gpu.Zeroed<std::uint64_t>(1)};
                gpu.cuda.Launch(fmt::format("signal_alone_{}", scope.name), 1, kThreads, words,
                                kRounds, gpu.errors);
                gpu.ExpectNoErrors();
                PE_CHECK(gpu.Read(words.own, n_pes) == std::vector<std::uint64_t>(n_pes, kRounds));
                PE_CHECK(gpu.Read(words.put, n_pes) == std::vector<std::uint64_t>(n_pes, kRounds));
                PE_CHECK_EQ(gpu.ReadOne(words.of_all), kRounds * (n_pes * (n_pes + 1) / 2));
              }
              gpu.End();
            }),
            "");
}

// ---- atomics

/// An argument of kernels: symmetric.
template <typename T>
struct AtomicWords {
  T* tickets;
  std::uint32_t* tickets_drawn;
  T* turns;
  std::uint32_t* turns_taken;
  T* token;
  std::uint32_t* tokens_passed;
  T* sum;
  T* bits;
};

/// How many numbers were not handed out once.
std::size_t NotOnce(const std::vector<std::uint32_t>& times) {
  return times.size() - static_cast<std::size_t>(std::count(times.begin(), times.end(), 1u));
}

template <typename T>
void CheckAtomics(const Pe& pe, GpuPe* gpu, const std::string& type) {
  constexpr unsigned kBlocks = 4, kThreadsOfBlock = 64;
  constexpr int kTimes = 8;
  const std::size_t threads = static_cast<std::size_t>(pe.size) * kBlocks * kThreadsOfBlock;
  const std::size_t all = threads * kTimes;
  const std::size_t bit_words = threads / (8 * sizeof(T));
  const AtomicWords<T> words = {gpu->Zeroed<T>(1), gpu->Zeroed<std::uint32_t>(all),
                                gpu->Zeroed<T>(1), gpu->Zeroed<std::uint32_t>(all),
                                gpu->Zeroed<T>(1), gpu->Zeroed<std::uint32_t>(all + 1),
                                gpu->Zeroed<T>(1), gpu->Zeroed<T>(bit_words)};
  gpu->cuda.Launch("atomics_on_all_" + type, kBlocks, kThreadsOfBlock, words, kTimes, gpu->errors);
  gpu->ExpectNoErrors();
  PE_CHECK_EQ(gpu->ReadOne(words.tickets), static_cast<T>(all));
  PE_CHECK_EQ(gpu->ReadOne(words.turns), static_cast<T>(all));
  PE_CHECK_EQ(gpu->ReadOne(words.sum), static_cast<T>(kTimes * (threads * (threads + 1) / 2)));
  PE_CHECK_EQ(NotOnce(gpu->Read(words.tickets_drawn, all)), std::size_t{0});
  PE_CHECK_EQ(NotOnce(gpu->Read(words.turns_taken, all)), std::size_t{0});
  // The last token is still there.
  auto passed = gpu->Read(words.tokens_passed, all + 1);
  ++passed.at(gpu->ReadOne(words.token));
  PE_CHECK_EQ(NotOnce(passed), std::size_t{0});
  PE_CHECK(gpu->Read(words.bits, bit_words) == std::vector<T>(bit_words, static_cast<T>(~T{0})));
}
TEST_P(CudaAllPairs, AtomicsOfAllOnAllHandOutEachNumberOnce) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "all_pairs");
              CheckAtomics<std::uint32_t>(pe, &gpu, "uint32");
              CheckAtomics<std::uint64_t>(pe, &gpu, "uint64");
              gpu.End();
            }),
            "");
}

}  // namespace
}  // namespace mori::shmem
