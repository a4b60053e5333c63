// Blocks that a garbage collector frees: remembered here, released at a collective call.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace mori::shmem {

/// The owned blocks of one PE, by heap offset. Outlives the world where an owner does. Thread-safe:
/// a collector may run in any thread.
class DropBox {
 public:
  /// Makes a block an owner's. @return what the owner drops it by; 0 if it has an owner already
  std::uint64_t Own(std::uint64_t offset) {
    has_owners_.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = owned_.emplace(offset, next_);
    return is_new ? next_++ : 0;
  }

  /// The owner is gone: the block waits until all PEs' are. Nothing for a block that was freed
  /// meanwhile.
  void Drop(std::uint64_t offset, std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    const auto at = owned_.find(offset);
    if (at == owned_.end() || at->second != token) return;
    dropped_.insert(offset);
    // Relaxed: whoever sees it takes the lock; who misses it sees it at the next call.
    news_.store(true, std::memory_order_relaxed);
  }

  /// A block is freed, by a call or from here: its owner, if any, has nothing to drop any more.
  void Forget(std::uint64_t offset) {
    // Relaxed: who owns a block has it from a call that came before the one that frees it.
    if (!has_owners_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    owned_.erase(offset);
    dropped_.erase(offset);
  }

  /// Whether something was dropped since `Dropped()`.
  bool has_news() const { return news_.load(std::memory_order_relaxed); }

  /// Offsets dropped and not forgotten, ascending.
  std::vector<std::uint64_t> Dropped() {
    const std::lock_guard lock(mutex_);
    news_.store(false, std::memory_order_relaxed);
    return {dropped_.begin(), dropped_.end()};
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> owned_;  ///< offset and token
  std::set<std::uint64_t> dropped_;
  std::uint64_t next_ = 1;
  std::atomic<bool> news_{false};
  std::atomic<bool> has_owners_{false};  ///< once there was one
};

}  // namespace mori::shmem
