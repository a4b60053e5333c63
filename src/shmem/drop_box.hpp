// Blocks that a garbage collector frees: remembered here, released at a collective call.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device_kernels.hpp"

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

  /// The owner is gone: the block waits until all PEs' are, and until what their devices were
  /// doing then is done. Nothing for a block that was freed meanwhile. Makes no call of the device:
  /// a collector may run while a graph is captured, or at the end of the process.
  void Drop(std::uint64_t offset, std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    const auto at = owned_.find(offset);
    if (at == owned_.end() || at->second != token) return;
    dropped_.try_emplace(offset);
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

  /// Whether `Released()` has something to tell that it has not told. `device`, null for the host's
  /// memory, is asked for a mark behind all it was given by now: a block that was dropped since the
  /// last call counts once the device has come to it.
  bool HasNews(const DeviceKernels* device) {
    // Relaxed: as in `Drop()`.
    return news_.load(std::memory_order_relaxed) && LookForNews(device);
  }

  /// Offsets dropped and not forgotten that no kernel uses any more, ascending; those told before,
  /// too. A block that was dropped since the last `HasNews()` is not among them.
  std::vector<std::uint64_t> Released();

 private:
  struct Dropped {
    std::shared_ptr<DeviceMark> mark;  ///< null: none was made yet
    bool has_passed = false;
    bool is_told = false;
  };
  bool LookForNews(const DeviceKernels* device);
  void LookAtMarks();  ///< needs the lock

  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> owned_;  ///< offset and token
  std::map<std::uint64_t, Dropped> dropped_;      ///< by offset
  std::uint64_t next_ = 1;
  std::atomic<bool> news_{false};        ///< something is dropped and not told
  std::atomic<bool> has_owners_{false};  ///< once there was one
};

}  // namespace mori::shmem
