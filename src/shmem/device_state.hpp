// What kernels of this PE need to know, in memory of its device.
#pragma once

#include <memory>

#include "heap/heap.hpp"
#include "mori/shmem/device/context.hpp"

namespace mori::shmem {

/// Synchronisation words of all PEs, and the tables that a `DeviceContext` points to. Lives as long
/// as the world; modules that were initialised are of no use after it.
class DeviceState {
 public:
  /// Collective. @return kUnsupported for more PEs than kernels can synchronise
  static Result<std::unique_ptr<DeviceState>> Create(const SpaceParts& parts, const Heap& heap,
                                                     const Deadline& deadline);

  /// Copies the context to `globalGpuStates` of a module that the driver has loaded. Local.
  /// @return kInvalidArgument for a module without that symbol, or with one of another version
  Status Publish(void* module) const;

 private:
  DeviceState(DeviceRuntime* runtime, std::unique_ptr<SymmetricSpace> space)
      : runtime_(runtime), space_(std::move(space)) {}

  DeviceRuntime* runtime_;
  std::unique_ptr<SymmetricSpace> space_;
  device::DeviceContext context_{};
};

}  // namespace mori::shmem
