// What the streams of a device ask of it, call by call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    return MakeDeviceStreams(kernels.get(), context);
  }

  FakeKernels device;
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
  device.missing = "MoriShmemMin_f64";
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
  const auto streams = Make(device::MeetArguments::kMostPes + 1);
  EXPECT_TRUE(streams->Meet(nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemMeet<1,32>"));
}

TEST_F(DeviceStreamsTest, AGridIsAsLargeAsItsBytesAndNoLargerThanTheDevice) {
  const auto streams = Make(2);
  EXPECT_TRUE(streams->Broadcast(&word, &word, 0, 0, nullptr).ok());
  EXPECT_TRUE(streams->FCollect(&word, &word, 100'000, nullptr).ok());
  EXPECT_TRUE(streams->AllToAll(&word, &word, 1 << 30, nullptr).ok());
  EXPECT_THAT(device.calls,
              ElementsAre("early MoriShmemBroadcast<1,512>", "posted", "MoriShmemFCollect<2,512>",
                          "posted", "MoriShmemAllToAll<4,512>", "posted"));
}

TEST_F(DeviceStreamsTest, AReductionTakesTheKernelOfItsTypeAndOperation) {
  const auto streams = Make(2);
  EXPECT_TRUE(
      streams->Reduce(&word, &word, 10, ElementType::kUint64, ReduceOp::kMin, nullptr).ok());
  EXPECT_TRUE(
      streams->Reduce(&word, &word, 10, ElementType::kFloat64, ReduceOp::kMax, nullptr).ok());
  EXPECT_TRUE(streams->Reduce(&word, &word, 10, ElementType::kInt32, ReduceOp::kSum, nullptr).ok());
  EXPECT_THAT(device.calls, ElementsAre("early MoriShmemMin_u64<1,512>", "posted",
                                        "early MoriShmemMax_f64<1,512>", "posted",
                                        "early MoriShmemSum_i32<1,512>", "posted"));
}

/// One block meets by itself.
TEST_F(DeviceStreamsTest, AReductionOfManyBlocksMeetsFirst) {
  const auto streams = Make(2);
  constexpr std::uint64_t kCount = 2 * 65'536 / sizeof(float);  // each PE combines half of it
  EXPECT_TRUE(
      streams->Reduce(&word, &word, kCount - 2, ElementType::kFloat32, ReduceOp::kSum, nullptr)
          .ok());
  EXPECT_TRUE(
      streams->Reduce(&word, &word, kCount, ElementType::kFloat32, ReduceOp::kSum, nullptr).ok());
  EXPECT_THAT(device.calls,
              ElementsAre("early MoriShmemSum_f32<1,512>", "posted", "early MoriShmemMeetFew<1,32>",
                          "MoriShmemSum_f32<2,512>", "posted"));
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
