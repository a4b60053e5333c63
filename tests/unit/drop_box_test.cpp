#include "shmem/drop_box.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_kernels.hpp"

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DropBoxTest : public ::testing::Test {
 protected:
  void OwnAndDrop(std::uint64_t offset) { box.Drop(offset, box.Own(offset)); }

  DropBox box;
  testing::FakeKernels device;
};

TEST_F(DropBoxTest, MemoryOfTheHostIsReleasedAtOnce) {
  OwnAndDrop(64);
  OwnAndDrop(0);
  EXPECT_TRUE(box.HasNews(nullptr));
  EXPECT_THAT(box.Released(), ElementsAre(0, 64));
  EXPECT_FALSE(box.HasNews(nullptr));
}

TEST_F(DropBoxTest, ABlockWaitsForWhatTheDeviceDidWhenItWasDropped) {
  device.passed = false;
  OwnAndDrop(64);
  EXPECT_FALSE(box.HasNews(&device)) << "all PEs would exchange nothing";
  EXPECT_THAT(box.Released(), IsEmpty()) << "another PE had news";
  EXPECT_FALSE(box.HasNews(&device));
  EXPECT_THAT(device.calls, ElementsAre("mark")) << "what comes later does not use it";
  device.passed = true;
  EXPECT_TRUE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), ElementsAre(64));
}

/// Other PEs may drop theirs much later.
TEST_F(DropBoxTest, WhatWasToldIsToldAgainButIsNoNews) {
  OwnAndDrop(64);
  EXPECT_TRUE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), ElementsAre(64));
  EXPECT_FALSE(box.HasNews(&device));
  OwnAndDrop(128);
  EXPECT_TRUE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), ElementsAre(64, 128));
  box.Forget(64);
  box.Forget(128);
  EXPECT_FALSE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), IsEmpty());
}

TEST_F(DropBoxTest, WhatIsDroppedTogetherHasOneMark) {
  OwnAndDrop(64);
  OwnAndDrop(128);
  EXPECT_TRUE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), ElementsAre(64, 128));
  EXPECT_THAT(device.calls, ElementsAre("mark"));
}

/// A drop comes from a collector, in any thread, at any time.
TEST_F(DropBoxTest, ADropMakesNoCallOfTheDevice) {
  OwnAndDrop(64);
  EXPECT_THAT(device.calls, IsEmpty());
}

TEST_F(DropBoxTest, ABlockWaitsWhileTheDeviceMakesNoMark) {
  device.captured = &device;
  OwnAndDrop(64);
  EXPECT_FALSE(box.HasNews(&device));
  device.captured = nullptr;
  device.mark_outcome = Error(ErrorCode::kOutOfMemory, "no memory for an event");
  EXPECT_FALSE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), IsEmpty());
  device.mark_outcome = Status();
  EXPECT_TRUE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), ElementsAre(64));
}

TEST_F(DropBoxTest, ADeviceWithAFaultKeepsNothing) {
  device.mark_outcome = Error(ErrorCode::kSystem, "a fault");
  OwnAndDrop(64);
  EXPECT_TRUE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), ElementsAre(64));
}

TEST_F(DropBoxTest, ABlockThatWasFreedMeanwhileIsForgotten) {
  device.passed = false;
  OwnAndDrop(64);
  EXPECT_FALSE(box.HasNews(&device));
  box.Forget(64);
  device.passed = true;
  EXPECT_FALSE(box.HasNews(&device));
  EXPECT_THAT(box.Released(), IsEmpty());
}

}  // namespace
}  // namespace mori::shmem
