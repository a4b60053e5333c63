// A point in time after which a wait gives up.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>

namespace mori::shmem {

/// One budget shared by the steps of a longer wait: each step asks how much is left.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(std::chrono::nanoseconds budget) {
    const auto now = Clock::now();
    const bool overflows = budget > Clock::time_point::max() - now;
    return Deadline(now, overflows ? Clock::time_point::max() : now + budget);
  }
  static Deadline Never() { return Deadline(Clock::now(), Clock::time_point::max()); }

  bool Expired() const { return Clock::now() >= end_; }
  Clock::time_point end() const { return end_; }
  double ElapsedSeconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  /// The earlier of this deadline and `limit` from now.
  Deadline AtMost(std::chrono::nanoseconds limit) const {
    return Deadline(start_, std::min(end_, After(limit).end_));
  }
  /// The later of this deadline and `limit` from now.
  Deadline AtLeast(std::chrono::nanoseconds limit) const {
    return Deadline(start_, std::max(end_, After(limit).end_));
  }
  /// Remaining time for `poll()`: rounded up, so that an unexpired deadline never gives 0.
  int PollTimeoutMs() const {
    if (end_ == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
  }

 private:
  Deadline(Clock::time_point start, Clock::time_point end) : start_(start), end_(end) {}
  Clock::time_point start_;
  Clock::time_point end_;
};

}  // namespace mori::shmem
