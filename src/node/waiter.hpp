// How a host thread waits for something another thread or process will write.
#pragma once

#include <time.h>

#include <sched.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/wait_watch.hpp"
#include "mori/shmem/host_ops.hpp"

namespace mori::shmem {

/// Spins while there is a CPU for everyone, then yields, then sleeps: call `Pause()` between looks
/// at the condition. With more PEs than CPUs it does not spin at all, since that only keeps the
/// other from running.
class Waiter {
 public:
  enum class Phase { kSpin, kYield, kSleep };

  explicit Waiter(bool may_spin) : spins_left_(may_spin ? kSpins : 0) {}

  Phase phase() const {
    if (spins_left_ > 0) return Phase::kSpin;
    return yields_left_ > 0 ? Phase::kYield : Phase::kSleep;
  }

  /// One step of waiting. In the sleeping phase the caller may block by itself instead, when
  /// somebody will wake it.
  void Pause() {
    if (spins_left_ > 0) {
      --spins_left_;
      detail::CpuRelax();
    } else if (yields_left_ > 0) {
      --yields_left_;
      ::sched_yield();
    } else {
      const timespec time{0, sleep_ns_};
      ::nanosleep(&time, nullptr);  // an interruption only makes the next look come sooner
      sleep_ns_ = std::min(2 * sleep_ns_, kLongestSleepNs);
    }
  }

 private:
  static constexpr int kSpins = 4000;
  static constexpr int kYields = 400;
  static constexpr long kLongestSleepNs = 1'000'000;

  int spins_left_;
  int yields_left_ = kYields;
  long sleep_ns_ = 50'000;
};

/// When a wait that lasts has something to say: after 10 s and at twice the time each, and at its
/// budget. A budget of less than 20 s is announced at half of it.
class WaitClock {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Due { kNothing, kLine, kTimeout };

  /// @param budget  nothing: for ever
  explicit WaitClock(std::optional<std::chrono::milliseconds> budget) : budget_(budget) {}

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
