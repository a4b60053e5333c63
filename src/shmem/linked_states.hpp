// The states of kernels that nvcc linked into this process: each translation unit of such kernels
// adds its own, before or after init (mori/shmem/device/context.hpp).
#pragma once

#include <atomic>
#include <map>
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

  void Add(detail::LinkedState* state);
  void Remove(detail::LinkedState* state);

  /// Copies a PE's context to all units, on its device, now and whenever one is added. Of several
  /// PEs on one device of a process, kernels that are linked see the last; it is said once.
  void Publish(DeviceKernels* device, int ordinal, const device::DeviceContext& context);
  /// The PE is gone.
  void Withdraw(DeviceKernels* device);

  /// Publishes to units whose kernels were not known to the vendor's runtime when they were added.
  /// Costs a load while there are none.
  void Retry() {
    if (has_pending_.load(std::memory_order_relaxed)) RetryPending();
  }

 private:
  struct Target {
    DeviceKernels* device;
    int ordinal;
    device::DeviceContext context;
  };

  void RetryPending();
  /// Needs the lock.
  bool Copy(const Target& target, const detail::LinkedState& state,
            const device::DeviceContext& context) const;

  std::mutex mutex_;
  std::vector<detail::LinkedState*> states_;
  std::vector<Target> targets_;
  std::vector<std::pair<detail::LinkedState*, DeviceKernels*>> pending_;
  std::atomic<bool> has_pending_ = false;
  bool has_warned_ = false;
};

}  // namespace mori::shmem
