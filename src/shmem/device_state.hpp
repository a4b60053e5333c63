// What kernels of this PE need to know, in memory of its device.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "heap/heap.hpp"
#include "mori/shmem/device/context.hpp"
#include "shmem/faults.hpp"
#include "shmem/library_kernels.hpp"
#include "shmem/proxy.hpp"

namespace mori::shmem {

/// Synchronisation words of all PEs, and what a `DeviceContext` points to. At its end it takes the
/// state away from the modules that have it, so that their kernels end with a message when run.
class DeviceState {
 public:
  /// Collective. `first_lost` is the host's mark of lost PEs, for waiting kernels to look at. With
  /// a network among the parts there is a ring, which somebody has to serve.
  /// @return kUnsupported for more PEs than kernels can synchronise
  static Result<std::unique_ptr<DeviceState>> Create(
      const SpaceParts& parts, const Heap& heap, std::shared_ptr<const std::uint32_t> first_lost,
      const Deadline& deadline);
  ~DeviceState();
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  /// Copies the context to `globalGpuStates` of a module, or a library, that the driver has loaded.
  /// Local. @return kInvalidArgument for one without that symbol; kMismatch for one that was
  /// compiled for another ABI
  Status Publish(void* module) const;
  Status PublishToLibrary(void* library) const;

  /// Gives up what is reached of other PEs, before the end; see `SymmetricSpace`. Local.
  void ReleasePeers() { space_->ReleasePeers(); }

  /// What a kernel of this PE has told before it ended early, once; nothing if none has. Local.
  std::optional<device::FaultRecord> TakeFault() const;

  const device::DeviceContext& context() const { return context_; }
  /// For who serves the ring: what of it lies on the host, null where there is none; and where it
  /// tells kernels of a fault.
  const std::shared_ptr<RingPages>& ring_pages() const { return ring_pages_; }
  device::FaultRecord* fault_record() const { return &fault_page_->faults.record; }
  /// How many commands kernels have put on the ring, or are about to. Local.
  Result<std::uint64_t> RingTickets() const;
  /// Where the network finds `bytes` at `offset` of the words by which `pe` is synchronised.
  Result<RemotePieces::Stretch> LocateSyncWords(std::uint64_t offset, std::uint64_t bytes,
                                                int pe) const;
  /// Of this PE; an error in a build without them.
  const Result<std::unique_ptr<LibraryKernels>>& kernels() const { return kernels_; }

 private:
  DeviceState(DeviceRuntime* runtime, std::unique_ptr<SymmetricSpace> space)
      : runtime_(runtime), device_(runtime->kernels()), space_(std::move(space)) {}

  struct Tables;
  std::byte* TablesAt() const;
  Status FillTables(const SpaceParts& parts, const Heap& heap);
  Result<device::Ring> MapRing();
  void WatchLost(const std::shared_ptr<const std::uint32_t>& first_lost);
  void WatchFaults();
  Status PublishTo(const Result<DeviceKernels::Symbol>& symbol) const;

  /// A page of its own: it is mapped for the device.
  struct alignas(4096) FaultPage {
    device::Faults faults{};
  };

  DeviceRuntime* runtime_;
  DeviceKernels* device_;
  std::unique_ptr<SymmetricSpace> space_;
  std::shared_ptr<FaultPage> fault_page_ = std::make_shared<FaultPage>();
  std::shared_ptr<void> fault_;  ///< where kernels reach it; null if they cannot
  std::shared_ptr<RingPages> ring_pages_;
  std::shared_ptr<void> ring_;        ///< where kernels reach these
  std::shared_ptr<void> first_lost_;  ///< where kernels reach the mark; null if they cannot
  device::DeviceContext context_ = device::kStateOfNobody;
  mutable std::mutex mutex_;
  /// Symbols that hold the context, with what they held before.
  mutable std::map<void*, device::AbiHeader> published_;
  Result<std::unique_ptr<LibraryKernels>> kernels_ = Status(ErrorCode::kInternal, "not loaded");
};

/// Whether kernels that were compiled for this layout can be given this library's. @return
/// kMismatch with what to do if not
Status CheckAbi(const device::AbiHeader& compiled_for);

}  // namespace mori::shmem
