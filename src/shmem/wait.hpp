// How the host waits for a word of this PE.
#pragma once

#include "mori/shmem/host_ops.hpp"
#include "node/waiter.hpp"
#include "shmem/world.hpp"

namespace mori::shmem {

/// Returns once `holds()` does; kPeerLost if a PE of `world` is lost and it still does not.
template <typename Holds>
Status WaitUntilHolds(const World& world, Holds holds) {
  Waiter waiter(world.may_spin());
  while (!holds()) {
    if (waiter.phase() != Waiter::Phase::kSpin) {
      // A signal that the lost PE had sent before is in memory by now: look once more before giving
      // up.
      if (Status health = world.Health(); !health.ok()) return holds() ? Status() : health;
    }
    waiter.Pause();
  }
  return Status();
}

/// Waits until the word, in memory of the host, compares as wanted.
template <typename T>
Status WaitFor(const World& world, const T* word, Cmp cmp, T value) {
  return WaitUntilHolds(
      world, [&] { return detail::Holds(__atomic_load_n(word, __ATOMIC_ACQUIRE), cmp, value); });
}

}  // namespace mori::shmem
