// How a host thread waits for something another thread or process will write.
#pragma once

#include <time.h>

#include <sched.h>
#include <algorithm>
#include <atomic>

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

}  // namespace mori::shmem
