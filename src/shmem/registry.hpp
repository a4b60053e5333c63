// The worlds of this process, and which one a thread means.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "bootstrap/unique_id.hpp"
#include "shmem/lease.hpp"
#include "shmem/world.hpp"

namespace mori::shmem {

/// A process has one world, or, as several PEs of one job (SPMT), one for each thread that ran an
/// init. All worlds of a process share a unique id. Thread-safe.
class Registry {
 public:
  /// Lives as long as the process.
  static Registry& Instance();

  /// Makes a world with `create`, or finds that this very one is there already.
  /// Threads that ask for the same rank at the same time get the same world. The calling thread is
  /// bound to it.
  /// @return kAlreadyInitialized for other arguments than those of the live worlds,
  /// kInvalidArgument for a spent id.
  template <typename Create>
  Status Init(const RendezvousName& name, int rank, int size, Create create);

  /// The calling thread's world, for one call; of no world if it has none. Fast: no lock once a
  /// thread is bound.
  Lease Enter();

  /// Takes the calling thread's world away; null if it has none. Waits for other threads' calls in
  /// it, whose waits end with an error. The caller ends it.
  std::unique_ptr<World> Remove();

  /// Why `Enter()` gave no world. Takes no lock in a forked child.
  Status NoWorld();

  /// While it lives, a child that is forked cannot use the library: the locks of an init may be
  /// held there by a thread that is not.
  class InitUnderWay {
   public:
    InitUnderWay() { inits_under_way_.fetch_add(1, std::memory_order_relaxed); }
    InitUnderWay(const InitUnderWay&) = delete;
    InitUnderWay& operator=(const InitUnderWay&) = delete;
    ~InitUnderWay() { inits_under_way_.fetch_sub(1, std::memory_order_relaxed); }
  };

  /// Whether this process was forked from one that had a PE or was becoming one. Every public call
  /// looks at this before it takes any lock.
  static bool IsForkedChild() { return is_forked_child_.load(std::memory_order_relaxed); }
  /// What calls in such a child return.
  static Status ForkedChild(ErrorCode code);

 private:
  struct Entry {
    std::unique_ptr<World> world;  ///< null while `Init()` is at work on it
  };

  Registry() = default;
  static const int kForkHandlers;
  void AfterForkInChild();

  /// The outcome if there is nothing to create; nothing if the caller is to create the world now.
  /// Needs `lock`.
  std::optional<Status> Claim(std::unique_lock<std::mutex>* lock, const RendezvousName& name,
                              int rank, int size);
  /// Makes `world` the calling thread's own. Needs the lock.
  void Bind(World* world);
  /// Finds the calling thread's world again after worlds have come or gone. Needs the lock.
  World* Resolve();
  /// The calling thread's world; null if it has none.
  World* Current();

  // Relaxed, both: they are read in a child, which has one thread, or by the thread that wrote.
  static inline std::atomic<bool> is_forked_child_{false};
  static inline std::atomic<int> inits_under_way_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Entry> entries_;  ///< by rank
  RendezvousName name_{};         ///< of `entries_`, unless empty
  int size_ = 0;
  bool threads_are_pes_ =
      false;  ///< more than one world since there was none: only bound threads have one
  std::set<std::pair<RendezvousName, int>> spent_;
  std::vector<World*>
      abandoned_;  ///< of the process this one was forked from: never destroyed here
};

template <typename Create>
Status Registry::Init(const RendezvousName& name, int rank, int size, Create create) {
  const InitUnderWay under_way;
  std::unique_lock lock(mutex_);
  if (auto settled = Claim(&lock, name, rank, size)) return *settled;
  lock.unlock();
  Result<std::unique_ptr<World>> made = [&] {
    try {
      return create();
    } catch (...) {  // without memory, say: no entry stays, and no thread waits for its outcome
      lock.lock();
      entries_.erase(rank);
      changed_.notify_all();
      throw;
    }
  }();
  lock.lock();
  if (made.ok()) {
    if (std::ranges::any_of(entries_, [](const auto& one) { return one.second.world != nullptr; }))
      threads_are_pes_ = true;
    entries_[rank].world = std::move(*made);
    Bind(entries_[rank].world.get());
  } else {
    entries_.erase(rank);
  }
  changed_.notify_all();
  return made.status();
}

}  // namespace mori::shmem
