// The states of kernels that nvcc linked into this process: each translation unit of such kernels
// adds its own, before or after init (mori/shmem/device/context.hpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "mori/shmem/device/context.hpp"
#include "runtime/device_kernels.hpp"

namespace mori::shmem {

/// Thread-safe.
class LinkedStates {
 public:
  /// Lives as long as the process.
  static LinkedStates& Instance();

  /// Of one that was compiled for another ABI nothing comes but a line at each init.
  void Add(detail::LinkedState* state);
  /// Returns once nobody publishes to it.
  void Remove(detail::LinkedState* state);

  /// The same of a unit of version 1, which cannot say what it was compiled for.
  void AddOfVersion1();

  /// Copies a PE's context to all units, on its device, now and whenever one is added. Of several
  /// PEs on one device of a process, kernels that are linked see the last; it is said once.
  void Publish(DeviceKernels* device, int ordinal, const device::DeviceContext& context);
  /// The PE is gone.
  void Withdraw(DeviceKernels* device);

  /// Publishes to units whose kernels were not known to the vendor's runtime when they were added.
  /// Not while `stream`, on which the caller is about to put something, is captured into a graph:
  /// what is published then would go into it. Costs a load while there are none.
  void Retry(void* stream = nullptr) {
    if (has_pending_.load(std::memory_order_relaxed)) RetryPending(stream);
  }

 private:
  struct Target {
    DeviceKernels* device;
    int ordinal;
    device::DeviceContext context;
  };

  void RetryPending(void* stream);
  /// Publishes to the units, each without the lock: the vendor's runtime may open libraries, whose
  /// constructors add units. @return those that do not take it yet
  std::vector<detail::LinkedState*> CopyToAll(const Target& target,
                                              const device::DeviceContext& context,
                                              const std::vector<detail::LinkedState*>& states);
  void Refuse(Status why);  ///< needs the lock
  static bool Copy(const Target& target, const detail::LinkedState& state,
                   const device::DeviceContext& context);
  void SetPending();  ///< needs the lock

  /// Held by who publishes, so that a unit has what was published last; taken before `mutex_`.
  std::mutex publishing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  detail::LinkedState* in_use_ = nullptr;  ///< what is published to now
  std::vector<detail::LinkedState*> states_;
  std::vector<Target> targets_;
  std::vector<std::pair<detail::LinkedState*, DeviceKernels*>> pending_;
  std::atomic<bool> has_pending_ = false;
  bool has_warned_ = false;
  Status refused_;  ///< why a unit is published nothing, if one is
};

}  // namespace mori::shmem
