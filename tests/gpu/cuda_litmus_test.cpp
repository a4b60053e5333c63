// Litmus tests of the order that the device API promises between two PEs, on a GPU or two: each
// says which outcome would show it broken. tools/gpu_litmus.sh runs them without the fences, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::CudaShape;
using testing::GpuPe;
using testing::Pe;
using testing::Right;

class CudaLitmus : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Kinds, CudaLitmus,
                         ::testing::Values(CudaShape{"static", As::kProcesses},
                                           CudaShape{"static", As::kThreads}),
                         testing::NameOfShape);

constexpr unsigned kThreads = 512;
constexpr std::size_t kLineWords = 16;
/// Blocks that send, and as many that receive.
constexpr unsigned kPairs = 4;
/// Blocks that keep lines of the receiver busy; each test is tried without them, too.
constexpr unsigned kCrowds[] = {0, 2};

/// A scope, and the messages that its groups send: half a line more than whole lines.
struct Sender {
  const char* scope;
  unsigned threads;
  std::uint64_t words;
  int rounds;
};
constexpr Sender kSenders[] = {
    {"thread", 1, 8, 2'000}, {"warp", 32, 264, 10'000}, {"block", kThreads, 4104, 10'000}};
/// Each thread of these adds a word of its own to half a line.
constexpr Sender kLateSenders[] = {{"warp", 32, 40, 2'000}, {"block", kThreads, 520, 2'000}};

/// An argument of kernels: symmetric, for as many channels as there are groups that send.
struct Channels {
  std::uint64_t* inbox;
  std::uint64_t* outbox;
  std::uint64_t* arrived;
  std::uint64_t* taken;
  std::uint64_t* done;
  std::uint64_t words;
};
Channels ChannelsFor(GpuPe* gpu, const Sender& sender) {
  const std::size_t channels = kPairs * kThreads / sender.threads;
  const std::size_t words = channels * (sender.words + kLineWords / 2);
  return {gpu->Zeroed<std::uint64_t>(words),
          gpu->Zeroed<std::uint64_t>(words),
          gpu->Zeroed<std::uint64_t>(channels * kLineWords),
          gpu->Zeroed<std::uint64_t>(channels * kLineWords),
          gpu->Zeroed<std::uint64_t>(1),
          sender.words};
}
void Free(const Channels& channels) {
  for (std::uint64_t* block :
       {channels.done, channels.taken, channels.arrived, channels.outbox, channels.inbox})
    PE_CHECK_EQ(ShmemFree(block), 0);
}

/// An argument of kernels.
enum class Awaiting : int { kByItself, kLooksBefore, kPollsAndFences };

/// Messages both ways, on all channels at the same time.
template <std::size_t kCount>
void CheckMessages(const Pe& pe, const char* kernel, const Sender (&senders)[kCount],
                   Awaiting awaiting = Awaiting::kByItself) {
  GpuPe gpu(pe, "litmus");
  for (const Sender& sender : senders) {
    for (const unsigned crowd : kCrowds) {
      const Channels channels = ChannelsFor(&gpu, sender);
      gpu.cuda.Launch(fmt::format("{}_{}", kernel, sender.scope), 2 * kPairs + crowd, kThreads,
                      channels, kPairs, sender.rounds, Right(pe), awaiting, gpu.errors);
      gpu.ExpectNoErrors();
      Free(channels);
    }
  }
  gpu.End();
}

// Words of an earlier round behind the signal: it has overtaken them.
TEST_P(CudaLitmus, WhoSeesTheSignalSeesTheWholeMessage) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "signal", kSenders); }), "");
}
// The same of a signal that counts messages.
TEST_P(CudaLitmus, WhoSeesTheSumOfSignalsSeesTheWholeMessage) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "added", kSenders); }), "");
}
// The same of a flag that has no order of its own.
TEST_P(CudaLitmus, AFlagBehindAFenceComesBehindTheMessage) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "fence", kSenders); }), "");
}
TEST_P(CudaLitmus, AFlagAfterQuietComesBehindTheMessage) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "quiet", kSenders); }), "");
}
// Words of the last round, which the thread has read before it waited: they were still in its
// cache.
TEST_P(CudaLitmus, AfterAWaitNothingIsAsItWasReadBefore) {
  EXPECT_EQ(
      Run([](const Pe& pe) { CheckMessages(pe, "signal", kSenders, Awaiting::kLooksBefore); }), "");
}
// The same, where the thread has polled the signal as an atomic, and then called Fence.
TEST_P(CudaLitmus, BehindAPollAndAFenceNothingIsAsItWasReadBefore) {
  EXPECT_EQ(
      Run([](const Pe& pe) { CheckMessages(pe, "signal", kSenders, Awaiting::kPollsAndFences); }),
      "");
}
// Words that a thread puts before the call, and late, are not there: who leads has not waited for
// it.
TEST_P(CudaLitmus, ASignalStandsForThreadsThatComeLate) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMessages(pe, "late", kLateSenders); }), "");
}

// Words of an earlier round behind the barrier.
TEST_P(CudaLitmus, ABarrierBringsWhatWasPutBefore) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "litmus");
              for (const Sender& sender : kSenders) {
                for (const unsigned crowd : kCrowds) {
                  const Channels channels = ChannelsFor(&gpu, sender);
                  gpu.cuda.Launch(fmt::format("barrier_{}", sender.scope), 1 + crowd, kThreads,
                                  channels, 20'000, Right(pe), gpu.errors);
                  gpu.ExpectNoErrors();
                  Free(channels);
                }
              }
              gpu.End();
            }),
            "");
}

// Words that a thread puts before the barrier, and late, are not there: who leads has not waited
// for it.
TEST_P(CudaLitmus, ABarrierStandsForThreadsThatComeLate) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "litmus");
              auto* inbox = gpu.Zeroed<std::uint64_t>(kThreads);
              for (const Sender& sender : kLateSenders) {
                gpu.cuda.Launch(fmt::format("late_barrier_{}", sender.scope), 1, sender.threads,
                                inbox, sender.rounds, Right(pe), gpu.errors);
                gpu.ExpectNoErrors();
              }
              gpu.End();
            }),
            "");
}

// ---- the library's own kernels, on a stream

/// Rounds of `post`, which brings `sent` of each PE to `found` of all; `found` has a part for each
/// PE.
template <typename Post>
void CheckRoundsOnStream(const Pe& pe, GpuPe* gpu, std::uint64_t words, int rounds, Post post) {
  void* const stream = gpu->cuda.stream();
  auto* sent = gpu->Zeroed<std::uint64_t>(words);
  auto* found = gpu->Zeroed<std::uint64_t>(words * static_cast<std::uint64_t>(pe.size));
  constexpr unsigned kBlocks = 8;
  for (int i = 1; i <= rounds; ++i) {
    const auto round = static_cast<std::uint64_t>(i);
    gpu->cuda.LaunchOn(stream, "fill_round", kBlocks, kThreads, sent, words, round,
                       static_cast<unsigned>(pe.rank));
    post(found, sent, stream);
    for (int from = 0; from < pe.size; ++from) {
      gpu->cuda.LaunchOn(stream, "check_round", kBlocks, kThreads,
                         found + static_cast<std::uint64_t>(from) * words, words, round,
                         static_cast<unsigned>(from), gpu->errors);
    }
    PE_CHECK_EQ(ShmemSyncAllOnStream(stream), 0);  // all have looked
    // A stream that is full makes its PE wait for the others', whose PE may be waiting to launch.
    if (i % 20 == 0) gpu->cuda.Sync(stream);
  }
  gpu->cuda.Sync(stream);
  gpu->ExpectNoErrors();
}

// Words of an earlier round in what the collective has brought: the meeting at its end has
// overtaken them. Of a few KiB by small messages, of more by blocks that meet, and of MiB by the
// last block.
TEST_P(CudaLitmus, ACollectiveOnAStreamBringsTheWholeMessage) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "litmus");
              for (const std::uint64_t words : {512, 20'000, 500'000}) {
                CheckRoundsOnStream(
                    pe, &gpu, words, words > 100'000 ? 100 : 500,
                    [&](std::uint64_t* found, const std::uint64_t* sent, void* stream) {
                      PE_CHECK_EQ(ShmemFCollectMemOnStream(found, sent, words * 8, stream), 0);
                    });
              }
              gpu.End();
            }),
            "");
}
// The same of what a kernel has put and not completed, behind a barrier on the stream.
TEST_P(CudaLitmus, ABarrierOnAStreamBringsWhatKernelsPutBefore) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "litmus");
              constexpr unsigned kPutting = 64;
              constexpr std::uint64_t kWords = kPutting * 512;
              CheckRoundsOnStream(
                  pe, &gpu, kWords, 1'000,
                  [&](std::uint64_t* found, const std::uint64_t* sent, void* stream) {
                    auto* dest = found + static_cast<std::uint64_t>(pe.rank) * kWords;
                    for (int peer = 0; peer < pe.size; ++peer)
                      gpu.cuda.LaunchOn(stream, "put_round", kPutting, kThreads, dest, sent, kWords,
                                        peer);
                    PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                  });
              gpu.End();
            }),
            "");
}

// Store buffering: both PEs have put and completed, and neither sees the other's word.
TEST_P(CudaLitmus, OfTwoThatPutAndLookOneSeesTheOther) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "litmus");
              constexpr int kRounds = 10'000;
              constexpr unsigned kLooking = 256;
              constexpr std::size_t kLooks = std::size_t{kRounds} * kLooking;
              auto* missed = gpu.Zeroed<std::uint8_t>(kLooks);
              for (const char* scope : {"thread", "warp", "block"}) {
                auto* words = gpu.Zeroed<std::uint64_t>(kLooking * kLineWords);
                auto* turns = gpu.Zeroed<std::uint64_t>(kLooking * kLineWords);
                gpu.cuda.Launch(fmt::format("put_and_look_{}", scope), 1, kLooking, words, turns,
                                missed, kRounds, Right(pe));
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                const auto mine = gpu.Read(missed, kLooks);
                std::vector<std::uint8_t> theirs(kLooks);
                PE_CHECK_EQ(ShmemGet(theirs.data(), missed, kLooks, Right(pe)), 0);
                std::size_t missed_by_both = 0;
                for (std::size_t i = 0; i < kLooks; ++i)
                  missed_by_both += mine[i] != 0 && theirs[i] != 0 ? 1 : 0;
                PE_CHECK_EQ(missed_by_both, std::size_t{0});
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
              }
              gpu.End();
            }),
            "");
}

}  // namespace
}  // namespace mori::shmem
