#include "node/waiter.hpp"

#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

using namespace std::chrono_literals;
using Due = WaitClock::Due;

TEST(WaitClock, SaysSomethingAfterTenSecondsAndThenAtTwiceTheTime) {
  WaitClock clock(std::nullopt);
  const WaitClock::Clock::time_point start{};
  EXPECT_EQ(clock.Look(start), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 9999ms), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 10s), Due::kLine);
  EXPECT_DOUBLE_EQ(clock.ElapsedSeconds(), 10);
  EXPECT_EQ(clock.Look(start + 10s + 1ms), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 19s), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 21s), Due::kLine);
  EXPECT_EQ(clock.Look(start + 41s), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 42s), Due::kLine);
  EXPECT_EQ(clock.Look(start + 24h), Due::kLine);
}

TEST(WaitClock, EndsAtItsBudget) {
  WaitClock clock(4s);
  const WaitClock::Clock::time_point start{};
  EXPECT_EQ(clock.Look(start), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 1999ms), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 2s), Due::kLine);
  EXPECT_EQ(clock.Look(start + 3999ms), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 4s), Due::kTimeout);
  EXPECT_DOUBLE_EQ(clock.BudgetSeconds(), 4);
}

TEST(WaitClock, ABudgetBeyondTheClockIsNone) {
  WaitClock clock(std::chrono::milliseconds::max());
  const WaitClock::Clock::time_point start{};
  EXPECT_EQ(clock.Look(start), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 9s), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 10s), Due::kLine);
  EXPECT_EQ(clock.Look(start + 24h * 365), Due::kLine);
}

TEST(WaitClock, ALongBudgetIsAnnouncedLikeNone) {
  WaitClock clock(1h);
  const WaitClock::Clock::time_point start{};
  EXPECT_EQ(clock.Look(start), Due::kNothing);
  EXPECT_EQ(clock.Look(start + 10s), Due::kLine);
}

}  // namespace
}  // namespace mori::shmem
