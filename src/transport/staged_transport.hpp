// A network of PEs whose memory is a device's: what comes from there, or goes there, passes through
// buffers of the host, at both ends.
#pragma once

#include <functional>
#include <memory>
#include <shared_mutex>

#include "runtime/device_runtime.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

/// Memory of this PE's device, for what other PEs do to it.
class DeviceAccess final : public RegionAccess {
 public:
  /// Of a word of the device, in one domain with its kernels.
  using WordAtomic = std::function<Result<std::uint64_t>(
      detail::AtomicOp op, int width, void* word, std::uint64_t value, std::uint64_t expected)>;

  /// `runtime` is borrowed, and outlives it.
  explicit DeviceAccess(const DeviceRuntime* runtime) : runtime_(runtime) {}

  /// Who makes atomics from now on; empty: nobody. Returns once no other is at it.
  void SetAtomics(WordAtomic atomic);

  Status Write(std::byte* to, const void* from, std::uint64_t bytes) override;
  Status Read(void* to, const std::byte* from, std::uint64_t bytes) override;
  /// What is only set or read is copied: that needs no room for a kernel on the device.
  Result<std::uint64_t> Atomic(std::byte* word, detail::AtomicOp op, int width, std::uint64_t value,
                               std::uint64_t expected) override;

 private:
  const DeviceRuntime* runtime_;
  std::shared_mutex mutex_;
  WordAtomic atomic_;  ///< under the mutex
};

/// `network` with sources and targets, on this side, of the device too; what is registered is the
/// device's, and reached through `access`. `runtime` and `access` are borrowed, and outlive it.
std::unique_ptr<RemoteTransport> MakeStagedTransport(std::unique_ptr<RemoteTransport> network,
                                                     const DeviceRuntime* runtime,
                                                     RegionAccess* access);

}  // namespace mori::shmem
