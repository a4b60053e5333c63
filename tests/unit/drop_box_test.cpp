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
  EXPECT_TRUE(box.has_news());
  EXPECT_THAT(box.Released(nullptr), ElementsAre(0, 64));
  EXPECT_FALSE(box.has_news());
}

TEST_F(DropBoxTest, ABlockWaitsForWhatTheDeviceDidWhenItWasDropped) {
  device.passed = false;
  OwnAndDrop(64);
  EXPECT_THAT(box.Released(&device), IsEmpty());
  EXPECT_TRUE(box.has_news()) << "it must be asked for again";
  EXPECT_THAT(box.Released(&device), IsEmpty());
  EXPECT_THAT(device.calls, ElementsAre("mark")) << "what comes later does not use it";
  device.passed = true;
  EXPECT_THAT(box.Released(&device), ElementsAre(64));
  EXPECT_FALSE(box.has_news());
}

TEST_F(DropBoxTest, WhatIsDroppedTogetherHasOneMark) {
  OwnAndDrop(64);
  OwnAndDrop(128);
  EXPECT_THAT(box.Released(&device), ElementsAre(64, 128));
  EXPECT_THAT(device.calls, ElementsAre("mark"));
}

/// A drop comes from a collector, in any thread, at any time.
TEST_F(DropBoxTest, ADropMakesNoCallOfTheDevice) {
  OwnAndDrop(64);
  EXPECT_THAT(device.calls, IsEmpty());
}

TEST_F(DropBoxTest, ABlockWaitsWhileAGraphIsCaptured) {
  device.captured = &device;
  OwnAndDrop(64);
  EXPECT_THAT(box.Released(&device), IsEmpty());
  EXPECT_TRUE(box.has_news());
  device.captured = nullptr;
  EXPECT_THAT(box.Released(&device), ElementsAre(64));
}

TEST_F(DropBoxTest, ABlockThatWasFreedMeanwhileIsForgotten) {
  device.passed = false;
  OwnAndDrop(64);
  EXPECT_THAT(box.Released(&device), IsEmpty());
  box.Forget(64);
  device.passed = true;
  EXPECT_THAT(box.Released(&device), IsEmpty());
}

}  // namespace
}  // namespace mori::shmem
