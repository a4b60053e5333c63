// What the streams of a device ask of it, call by call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "shmem/library_kernels.hpp"
#include "shmem/streams.hpp"
#include "support/fake_kernels.hpp"

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;
using testing::FakeKernels;

class DeviceStreamsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Streams> Make(unsigned n_pes) {
    auto loaded = LibraryKernels::Load(&device);
    EXPECT_TRUE(loaded.ok());
    kernels = std::move(*loaded);
    device::DeviceContext context{};
    context.my_pe = 1;
    context.n_pes = n_pes;
    context.flags = flags;
    return MakeDeviceStreams(kernels.get(), context, share);
  }

  FakeKernels device;
  unsigned flags = 0;  ///< of the context
  unsigned share = 4;  ///< of multiprocessors that a PE has for itself, on all PEs
  std::unique_ptr<LibraryKernels> kernels;
  std::uint64_t word = 0;
};

TEST_F(DeviceStreamsTest, ABuildWithoutKernelsSaysSo) {
  device.image = nullptr;
  const auto loaded = LibraryKernels::Load(&device);
  EXPECT_EQ(loaded.status().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(loaded.status().message(), ::testing::HasSubstr("has no kernels"));
}

TEST_F(DeviceStreamsTest, AnImageThatLacksAKernelIsAnError) {
  device.missing = "MoriShmemSmallReduce_f64";
  EXPECT_EQ(LibraryKernels::Load(&device).status().code(), ErrorCode::kSystem);
}

TEST_F(DeviceStreamsTest, CopiesAndSignalsAreWaitedForLater) {
  const auto streams = Make(2);
  EXPECT_TRUE(streams->Copy(&word, &word, 8, nullptr).ok());
  EXPECT_TRUE(streams->Signal(&word, 1, SignalOp::kAdd, 0, nullptr).ok());
  EXPECT_TRUE(streams->Complete().ok());
  EXPECT_THAT(device.calls,
              ElementsAre("copy 8", "posted", "MoriShmemSignal<1,1>", "posted", "await"));
}

TEST_F(DeviceStreamsTest, WaitQuietAndBarrierPostNothing) {
  const auto streams = Make(2);
  EXPECT_TRUE(streams->Wait(&word, Cmp::kEq, 1, nullptr).ok());
  EXPECT_TRUE(streams->Quiet(nullptr).ok());
  EXPECT_TRUE(streams->Meet(nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("MoriShmemWait<1,1>", "MoriShmemFence<1,1>",
                                        "early MoriShmemMeetFew<1,32>"));
}

TEST_F(DeviceStreamsTest, ManyPesMeetByTheirTables) {
  const auto streams = Make(device::kFewPes + 1);
  EXPECT_TRUE(streams->Meet(nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemMeet<1,32>"));
}

constexpr std::uint64_t kMiB = 1 << 20;

/// Where some PEs are reached by the ring alone, kernels that put commands on it do all of it.
TEST_F(DeviceStreamsTest, RemotePesAreReachedByKernelsOfTheirOwn) {
  flags = device::kHasRemotePes;
  const auto streams = Make(2);
  EXPECT_TRUE(streams->RemotePut(&word, &word, 8, 0, nullptr).ok());
  EXPECT_TRUE(streams->RemoteGet(&word, &word, 8, 0, nullptr).ok());
  EXPECT_TRUE(streams->RemotePutSignal(&word, &word, 8, &word, 1, SignalOp::kSet, 0, nullptr).ok());
  EXPECT_TRUE(streams->Quiet(nullptr).ok());
  EXPECT_TRUE(streams->Meet(nullptr).ok());
  EXPECT_TRUE(streams->Broadcast(&word, &word, kMiB, 0, nullptr).ok());  // of another PE
  EXPECT_TRUE(streams->Broadcast(&word, &word, kMiB, 1, nullptr).ok());
  EXPECT_TRUE(streams->FCollect(&word, &word, 8, nullptr).ok());
  EXPECT_TRUE(streams->AllToAll(&word, &word, 8, nullptr).ok());
  EXPECT_TRUE(
      streams->Reduce(&word, &word, 10, ElementType::kFloat32, ReduceOp::kSum, nullptr).ok());
  EXPECT_THAT(device.calls,
              ElementsAre("MoriShmemRemotePut<1,1>", "posted", "MoriShmemRemoteGet<1,1>", "posted",
                          "MoriShmemRemotePutSignal<1,1>", "posted", "MoriShmemRemoteQuiet<1,1>",
                          "early MoriShmemMeet<1,32>", "MoriShmemCollect<1,512>", "posted",
                          "MoriShmemCollect<4,512>", "posted", "MoriShmemCollect<1,512>", "posted",
                          "MoriShmemCollect<1,512>", "posted",
                          "early MoriShmemRemoteReduce_f32<1,512>", "posted"));
}

/// One block of few PEs: small messages, which start early.
TEST_F(DeviceStreamsTest, SmallCollectivesAreMessages) {
  const auto streams = Make(2);
  EXPECT_TRUE(streams->Broadcast(&word, &word, 0, 0, nullptr).ok());
  EXPECT_TRUE(streams->FCollect(&word, &word, 16 << 10, nullptr).ok());
  EXPECT_TRUE(streams->AllToAll(&word, &word, 1, nullptr).ok());
  EXPECT_TRUE(
      streams->Reduce(&word, &word, 10, ElementType::kUint64, ReduceOp::kMin, nullptr).ok());
  EXPECT_TRUE(
      streams->Reduce(&word, &word, 10, ElementType::kFloat64, ReduceOp::kMax, nullptr).ok());
  EXPECT_TRUE(
      streams->Reduce(&word, &word, 4096, ElementType::kInt32, ReduceOp::kSum, nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemSmallBroadcast<1,512>", "posted",
                                        "early MoriShmemSmallGather<1,512>", "posted",
                                        "early MoriShmemSmallGather<1,512>", "posted",
                                        "early MoriShmemSmallReduce_u64<1,512>", "posted",
                                        "early MoriShmemSmallReduce_f64<1,512>", "posted",
                                        "early MoriShmemSmallReduce_i32<1,512>", "posted"));
}

/// What one block sends to all of them is what counts.
TEST_F(DeviceStreamsTest, TheMorePesTheSmallerIsSmall) {
  const auto streams = Make(8);
  EXPECT_TRUE(streams->FCollect(&word, &word, 4681, nullptr).ok());
  EXPECT_TRUE(streams->FCollect(&word, &word, 4682, nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemSmallGather<1,512>", "posted",
                                        "early MoriShmemFCollect<1,512>", "posted"));
}

TEST_F(DeviceStreamsTest, AGridIsAsLargeAsItsBytesAndNoLargerThanTheDevice) {
  const auto streams = Make(2);
  device.processors = 8;
  EXPECT_TRUE(streams->Broadcast(&word, &word, 17 << 10, 0, nullptr).ok());
  EXPECT_TRUE(streams->FCollect(&word, &word, 40 << 10, nullptr).ok());
  EXPECT_TRUE(streams->AllToAll(&word, &word, 1 << 30, nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemBroadcast<2,512>", "posted",
                                        "early MoriShmemFCollect<2,512>", "posted",
                                        "MoriShmemAllToAll<8,512>", "posted"));
}

/// And as many as on all PEs, whatever this one's device has.
TEST_F(DeviceStreamsTest, BlocksThatMeetHaveRoomBesideThoseOfOtherPes) {
  device.processors = 64;
  for (const unsigned each : {32u, 8u, 1u}) {
    share = each;
    EXPECT_TRUE(Make(2)->FCollect(&word, &word, kMiB, nullptr).ok());
  }
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemFCollect<16,512>", "posted",
                                        "early MoriShmemFCollect<4,512>", "posted",
                                        "early MoriShmemFCollect<1,512>", "posted"));
}

/// A PE with the device for itself must not have more blocks than two that share theirs: they would
/// wait for blocks that do not come.
TEST(SmallestShare, IsThatOfThePeWithTheLeast) {
  EXPECT_EQ(SmallestShare({{"a", 132}}), 132u);
  EXPECT_EQ(SmallestShare({{"a", 132}, {"b", 132}}), 132u);
  EXPECT_EQ(SmallestShare({{"a", 132}, {"b", 132}, {"a", 132}}), 66u);
  EXPECT_EQ(SmallestShare({{"a", 132}, {"b", 30}}), 30u);
  EXPECT_EQ(SmallestShare({{"a", 1}, {"a", 1}}), 0u);
}

/// As long as there is a thread for each 16 bytes, and elements begin at such a place.
TEST_F(DeviceStreamsTest, EveryPeReducesWhatIsNotSmallByItself) {
  alignas(16) std::array<std::uint32_t, 8> words{};
  device.processors = 132;
  share = 132;
  const auto reduce = [&](std::uint32_t* source, unsigned n_pes, std::uint64_t count) {
    device.calls.clear();
    EXPECT_TRUE(
        Make(n_pes)
            ->Reduce(words.data(), source, count, ElementType::kFloat32, ReduceOp::kSum, nullptr)
            .ok());
    return device.calls.at(0);
  };
  EXPECT_EQ(reduce(words.data(), 2, 4097), "early MoriShmemReduceAtOnce_f32<3,512>");
  EXPECT_EQ(reduce(words.data(), 2, kMiB / 8), "early MoriShmemReduceAtOnce_f32<65,512>");
  EXPECT_EQ(reduce(words.data(), 2, kMiB / 8 + 1), "early MoriShmemReduce_f32<17,512>");
  EXPECT_EQ(reduce(words.data() + 1, 2, 4100), "early MoriShmemReduce_f32<1,512>");
  share = 66;
  EXPECT_EQ(reduce(words.data(), 2, kMiB / 8), "early MoriShmemReduce_f32<17,512>");
}

/// Where blocks do not meet, a kernel before the reduction sees that the sources are ready.
TEST_F(DeviceStreamsTest, AReductionMeetsFirst) {
  const auto reduce = [&](unsigned n_pes, std::uint64_t count) {
    device.calls.clear();
    EXPECT_TRUE(Make(n_pes)
                    ->Reduce(&word, &word, count, ElementType::kFloat32, ReduceOp::kSum, nullptr)
                    .ok());
    return device.calls;
  };
  EXPECT_THAT(reduce(2, kMiB / 8 + 4), ElementsAre("early MoriShmemReduce_f32<2,512>", "posted"));
  EXPECT_THAT(reduce(2, kMiB + 2),
              ElementsAre("early MoriShmemMeetFew<1,32>", "MoriShmemReduce_f32<4,512>", "posted"));
  EXPECT_THAT(reduce(9, 1),
              ElementsAre("early MoriShmemMeet<1,32>", "MoriShmemReduce_f32<1,512>", "posted"));
}

TEST_F(DeviceStreamsTest, AnAtomicOfTheHostReturnsWhatTheKernelFound) {
  device.result = 77;
  const auto streams = Make(2);
  const auto found = streams->Atomic(detail::AtomicOp::kFetchAdd, 8, &word, 1, 0);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, 77u);
}

TEST_F(DeviceStreamsTest, WhatTheDeviceRefusesIsAnErrorAndNothingIsPosted) {
  const auto streams = Make(2);
  device.is_broken = true;
  EXPECT_FALSE(streams->Copy(&word, &word, 8, nullptr).ok());
  EXPECT_FALSE(streams->Broadcast(&word, &word, 8, 0, nullptr).ok());
  EXPECT_FALSE(streams->Reduce(&word, &word, 1, ElementType::kInt32, ReduceOp::kSum, nullptr).ok());
  EXPECT_FALSE(streams->Atomic(detail::AtomicOp::kSet, 4, &word, 1, 0).ok());
  EXPECT_TRUE(device.calls.empty());
}

}  // namespace
}  // namespace mori::shmem
