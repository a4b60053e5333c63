// Seam: memory of one kind of device. Physical memory and addresses are apart, so that memory can
// be exported, imported by another process, and mapped wherever a heap wants it; unless the device
// chooses the addresses.
//
// Implementations: host (memfd, mmap), cuda (the driver's memory management, opened at run time).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "runtime/device_kernels.hpp"
#include "runtime/patience.hpp"

namespace mori::shmem {

/// Physical memory, own or imported. Given back when the last mapping and the last owner, in any
/// process, are gone.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::uint64_t bytes() const = 0;
  /// A descriptor by which another process of this node can import it.
  virtual Result<UniqueFd> Export() const = 0;
  /// Where it lies, if the device chose that; null if it waits to be mapped.
  virtual std::byte* address() const { return nullptr; }
};

/// A range of addresses that nothing else uses, with memory mapped into parts of it. Unmaps and
/// gives the addresses back when destroyed. Used by one thread at a time.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;
  virtual std::uint64_t bytes() const = 0;
  /// Maps all of `memory` at `offset`, a multiple of the granularity. The mapping keeps the memory
  /// alive.
  virtual Status Map(std::uint64_t offset, const DeviceMemory& memory) = 0;
  /// Unmaps [offset, offset + bytes), which holds whole mappings or nothing; the addresses stay
  /// reserved. With `has_views` there are still views of this memory: if the device can do that,
  /// reading them gives some value (zeros, for example) and no fault. A device may put it off until
  /// what runs on it now has ended, or something else is mapped there.
  virtual Status Unmap(std::uint64_t offset, std::uint64_t bytes, bool has_views) = 0;
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual Backend backend() const = 0;
  /// For people: "2 CPUs, 23.5 GiB: this machine's memory".
  virtual std::string Describe() const = 0;
  /// Sizes and offsets of memory are multiples of this power of two.
  virtual std::uint64_t GranularityBytes() const = 0;
  /// Memory of the device.
  virtual std::uint64_t MemoryBytes() const = 0;
  /// Whether the CPU reads and writes memory of this runtime as its own.
  virtual bool IsHostMemory() const = 0;
  /// Name of the device that is the same in every process of this machine: its bus address; "" for
  /// the host.
  virtual std::string Identity() const { return ""; }
  /// Whether atomics of this device on memory of another one, by its identity, are atomic to all;
  /// nothing where that cannot be known, as of a device that this process does not see.
  virtual std::optional<bool> HasAtomicsOn(const std::string&) const { return std::nullopt; }
  /// Whether kernels of this device load from and store to memory of another one, by its identity;
  /// nothing where that cannot be known.
  virtual std::optional<bool> CanReach(const std::string&) const { return std::nullopt; }
  /// Unmaps, without a wait, what an `Unmap()` has put off and nothing uses any more. Thread-safe.
  virtual void UnmapPassed() {}
  /// How long waits for the device last, from now on; without, for ever. Thread-safe.
  virtual void SetPatience(Patience) {}
  /// Number of the device, as its vendor counts in this process; -1 for the host.
  virtual int ordinal() const { return -1; }
  /// Whether memory of `type` is coherent with all others while a kernel runs.
  virtual bool IsFineGrained(HeapType type) const = 0;
  /// What `type` really is here, in a few words.
  virtual std::string DescribeHeapType(HeapType type) const = 0;

  /// Whether memory, own or imported, comes with its address, and cannot be mapped elsewhere:
  /// `Reserve()` is not there then. An owner must outlive those who have imported from it.
  virtual bool ChoosesAddresses() const { return false; }
  /// How memory travels between processes.
  virtual GpuSharing sharing() const { return GpuSharing::kFd; }

  /// @return kOutOfMemory if the device, or a limit of this process, does not give that much.
  virtual Result<std::unique_ptr<DeviceMemory>> Allocate(std::uint64_t bytes, HeapType type) = 0;
  /// Memory behind a descriptor that another process exported. Takes only memory of exactly
  /// `bytes`.
  virtual Result<std::unique_ptr<DeviceMemory>> Import(UniqueFd descriptor,
                                                       std::uint64_t bytes) = 0;
  /// Addresses for `bytes`, a multiple of the page size; the base is a multiple of `alignment`, a
  /// power of two of at least a page.
  virtual Result<std::unique_ptr<AddressRange>> Reserve(std::uint64_t bytes,
                                                        std::uint64_t alignment) = 0;
  /// Copies between memory of this runtime, as far as it is mapped here, and the host's. Complete
  /// when it returns. Thread-safe.
  virtual Status Copy(void* to, const void* from, std::uint64_t bytes) const = 0;
  /// Whether memory of this process is a device's, so that the CPU must leave it to
  /// `Copy()`. Thread-safe.
  virtual bool IsOfDevice(const void*) const { return false; }
  /// Modules and streams; null where there are none. Borrowed.
  virtual DeviceKernels* kernels() const { return nullptr; }
};

/// The backend that `config` asks for; `auto` takes a GPU where there is one that it can use, and
/// the host otherwise: `why`, unless null, then says what is amiss with GPUs. A GPU backend takes
/// the calling thread's current device, or the one that `MORI_LOCAL_RANK` counts to.
/// @return kUnsupported for a backend that this build or this machine does not have.
Result<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(const Config& config,
                                                         std::string* why = nullptr);

/// The host's runtime. It serves memory that belongs to no heap, whatever the heap's backend is.
std::unique_ptr<DeviceRuntime> MakeHostRuntime();
/// For people, a line each: the devices that backends can use here, or why they can use none. Opens
/// drivers: a process that forks PEs afterwards must not call it.
std::vector<std::string> DescribeDevices(const Config& config);

}  // namespace mori::shmem
