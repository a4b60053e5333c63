#include "bootstrap/socket.hpp"

#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

TEST(Socket, IsFullWhileTheOtherEndAnswersAndTakesNothing) {
  EXPECT_TRUE(IsFull(0, 1, 0));
  EXPECT_TRUE(IsFull(0, 1 << 20, 2)) << "two questions are under way or lost";
  EXPECT_FALSE(IsFull(0, 1, 3)) << "three are not";
  EXPECT_FALSE(IsFull(0, 0, 0)) << "nothing is to be sent";
  EXPECT_FALSE(IsFull(1, 1, 0)) << "something was sent that nobody acknowledged";
}

}  // namespace
}  // namespace mori::shmem
