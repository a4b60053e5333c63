#include "base/deadline.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <thread>

namespace mori::shmem {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

TEST(Deadline, LiesTheBudgetAhead) {
  const auto before = Clock::now();
  const Deadline deadline = Deadline::After(1h);
  const auto after = Clock::now();
  EXPECT_GE(deadline.end(), before + 1h);
  EXPECT_LE(deadline.end(), after + 1h);
  EXPECT_FALSE(deadline.Expired());
}

TEST(Deadline, ExpiresWithItsBudget) {
  EXPECT_TRUE(Deadline::After(0ms).Expired());
  EXPECT_TRUE(Deadline::After(-1h).Expired());
  const Deadline deadline = Deadline::After(5ms);
  std::this_thread::sleep_for(6ms);
  EXPECT_TRUE(deadline.Expired());
}

TEST(Deadline, NeverDoesNotExpire) {
  EXPECT_FALSE(Deadline::Never().Expired());
  EXPECT_EQ(Deadline::Never().end(), Clock::time_point::max());
  EXPECT_EQ(Deadline::Never().PollTimeoutMs(), -1) << "what poll() takes for no limit";
}

TEST(Deadline, ABudgetBeyondTheClockIsNever) {
  EXPECT_EQ(Deadline::After(std::chrono::nanoseconds::max()).end(), Clock::time_point::max());
}

TEST(Deadline, PollTimeoutIsRoundedUpAndNeverNegative) {
  EXPECT_EQ(Deadline::After(-1h).PollTimeoutMs(), 0);
  const Deadline soon = Deadline::After(10s);
  EXPECT_GT(soon.PollTimeoutMs(), 0);
  EXPECT_LE(soon.PollTimeoutMs(), 10'000);
  EXPECT_EQ(Deadline::After(std::chrono::hours(24 * 365)).PollTimeoutMs(), INT_MAX);
  // As long as it is not over, poll() must not be told to return at once.
  const Deadline deadline = Deadline::After(3ms);
  while (deadline.PollTimeoutMs() > 0) std::this_thread::yield();
  EXPECT_TRUE(deadline.Expired());
}

TEST(Deadline, AtMostTakesTheEarlier) {
  const Deadline hour = Deadline::After(1h);
  EXPECT_EQ(hour.AtMost(2h).end(), hour.end());
  EXPECT_LT(hour.AtMost(1min).end(), hour.end());
  EXPECT_TRUE(hour.AtMost(-1s).Expired());
  EXPECT_EQ(Deadline::Never().AtMost(std::chrono::nanoseconds::max()).end(),
            Clock::time_point::max());
}

TEST(Deadline, AStepCountsFromTheStartOfTheWhole) {
  const Deadline whole = Deadline::After(1h);
  std::this_thread::sleep_for(2ms);
  EXPECT_GE(whole.AtMost(1min).ElapsedSeconds(), 0.002);
}

}  // namespace
}  // namespace mori::shmem
