// Who looks after a wait that lasts.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/status.hpp"

namespace mori::shmem {

/// What looks after a wait once it sleeps. Called by the waiting thread, several times a second.
class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  /// @return an error that ends the wait; success to go on
  virtual Status Look() = 0;
};

/// When a wait that lasts has something to say: after 10 s and at twice the time each, and at its
/// budget. A budget of less than 20 s is announced at half of it.
class WaitClock {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Due { kNothing, kLine, kTimeout };

  /// @param budget  nothing: for ever, as is one that the clock cannot count
  explicit WaitClock(std::optional<std::chrono::milliseconds> budget) {
    constexpr auto kMost = std::chrono::floor<std::chrono::milliseconds>(Clock::duration::max());
    if (budget && *budget < kMost) budget_ = budget;
  }

  /// The first call starts the time.
  Due Look(Clock::time_point now = Clock::now()) {
    if (!started_) {
      started_ = now;
      next_line_ = budget_ ? std::min<Clock::duration>(kFirstLine, *budget_ / 2) : kFirstLine;
    }
    elapsed_ = now - *started_;
    if (budget_ && elapsed_ >= *budget_) return Due::kTimeout;
    if (elapsed_ < next_line_) return Due::kNothing;
    next_line_ = 2 * elapsed_;
    return Due::kLine;
  }

  /// At the last look.
  double ElapsedSeconds() const { return std::chrono::duration<double>(elapsed_).count(); }
  double BudgetSeconds() const {
    return std::chrono::duration<double>(budget_.value_or(std::chrono::milliseconds())).count();
  }

 private:
  static constexpr Clock::duration kFirstLine = std::chrono::seconds(10);

  std::optional<std::chrono::milliseconds> budget_;
  std::optional<Clock::time_point> started_;
  Clock::duration elapsed_{};
  Clock::duration next_line_{};
};

}  // namespace mori::shmem
