// Which world the call of each thread uses now, so that no world goes while a call is in it.
#pragma once

#include <atomic>

namespace mori::shmem {

class World;

/// Use of a world by one call of this thread: the world stays as long as the lease lives. Costs one
/// store on each side, to a word of the thread's own. Leases of a thread may nest.
class Lease {
 public:
  /// Of no world.
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&&) = delete;
  ~Lease();

  /// Publishes that this thread uses `world`. Whoever takes it must look afterwards whether the
  /// world can still be found, and give the lease back if not.
  static Lease Take(World* world);
  /// Returns once no other thread has a lease of `world`, which can no longer be found when this is
  /// called. Has no time limit; says at WARN now and then that it waits.
  static void AwaitReturn(const World* world);

  World* get() const { return world_; }
  World* operator->() const { return world_; }
  World& operator*() const { return *world_; }
  explicit operator bool() const { return world_ != nullptr; }

 private:
  Lease(World* world, std::atomic<const World*>* place, const World* before)
      : world_(world), place_(place), before_(before) {}

  World* world_ = nullptr;
  std::atomic<const World*>* place_ = nullptr;  ///< where this thread says what it uses
  const World* before_ = nullptr;               ///< what it used already: the lease around this one
};

}  // namespace mori::shmem
