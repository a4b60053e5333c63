// How the host waits for a word of this PE.
#pragma once

#include <string>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "mori/shmem/host_ops.hpp"
#include "node/waiter.hpp"
#include "shmem/world.hpp"

namespace mori::shmem {

/// "==", "!=", ">" and so on.
std::string_view CmpName(Cmp cmp);

/// Returns once `holds()` does. Warns now and then while it does not.
/// @param describe  says what is waited for, and how it is now: "the word at ... is 3, not == 4"
/// @return kPeerLost if a PE is lost, kNotInitialized if another thread finalizes this PE, kTimeout
/// after the budget of a wait, each only if it still does not hold; the fault of a kernel of this
/// PE
template <typename Holds, typename Describe>
Status WaitUntilHolds(const World& world, const char* call, Holds holds, Describe describe) {
  Waiter waiter(world.may_spin());
  WaitClock clock(world.peers().budget());
  while (!holds()) {
    if (waiter.phase() == Waiter::Phase::kSleep) {
      const WaitClock::Due due = clock.Look();
      if (due == WaitClock::Due::kLine)
        LogWarn("still waiting in {}, {:.3g} s: {}", call, clock.ElapsedSeconds(), describe());
      if (due == WaitClock::Due::kTimeout && !holds()) {
        return Error(ErrorCode::kTimeout, "{} after {:g} s (MORI_SHMEM_TIMEOUT)", describe(),
                     clock.BudgetSeconds());
      }
    }
    if (waiter.phase() != Waiter::Phase::kSpin) {
      FaultPoint("wait: before the look for an end");
      // Another thread finalizes: what has arrived meanwhile is still an end of the wait.
      if (const Status closing = world.Closing(); !closing.ok())
        return holds() ? Status() : closing;
      // A kernel of this PE that ended early will not write the word. It tells so once: the error
      // counts even if the word has arrived since the last look.
      MORI_RETURN_IF_ERROR(world.Fault());
      FaultPoint("wait: before the look for a loss");
      // A signal that the lost PE had sent before is in memory by now: look once more before giving
      // up.
      if (const Status health = world.Health(); !health.ok()) {
        return holds() ? Status()
                       : Status(health.code(),
                                fmt::format("{}, while {}", health.message(), describe()));
      }
    }
    // The thread that serves others would need a CPU that this one does not leave it.
    if (waiter.phase() != Waiter::Phase::kSleep) world.MakeProgress();
    waiter.Pause();
  }
  return Status();
}

/// "the word at 0x7f.. (heap offset 0x40) is 3, not == 4".
template <typename T>
std::string DescribeWait(const World& world, const T* word, T seen, Cmp cmp, T wanted) {
  const auto offset = world.heap().OffsetOf(word);
  const std::string place = offset ? fmt::format(" (heap offset {:#x})", *offset) : "";
  return fmt::format("the word at {}{} is {}, not {} {}", static_cast<const void*>(word), place,
                     seen, CmpName(cmp), wanted);
}

/// Waits until the word, in memory of the host, compares as wanted.
template <typename T>
Status WaitFor(const World& world, const char* call, const T* word, Cmp cmp, T value) {
  const auto look = [&] { return __atomic_load_n(word, __ATOMIC_ACQUIRE); };
  return WaitUntilHolds(
      world, call, [&] { return detail::Holds(look(), cmp, value); },
      [&] { return DescribeWait(world, word, look(), cmp, value); });
}

}  // namespace mori::shmem
