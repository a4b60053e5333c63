// Seam: how memory behind `ShmemMalloc()` is provided and found.
//
// Implementations: static (one region). The other modes of `MORI_SHMEM_MODE` supply the same.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "base/config.hpp"
#include "mori/shmem/types.hpp"
#include "runtime/device_runtime.hpp"
#include "transport/transport.hpp"

namespace mori::shmem {

/// The heap of one PE, and its view of the others'. Allocation is deterministic: PEs that make the
/// same calls in the same order get the same offsets, so they need to agree on the arguments only.
/// Calls come one at a time, except `Translate()`, `Contains()`, `Stats()` and `Retain()`, which
/// are safe from any thread at any time.
class Heap {
 public:
  virtual ~Heap() = default;

  virtual HeapMode mode() const = 0;
  virtual std::uint64_t bytes() const = 0;

  /// Symmetric addresses are [base(), base() + span_bytes()), and base + offset on every PE; span 0
  /// where that does not hold.
  virtual std::byte* base() const = 0;
  virtual std::uint64_t span_bytes() const = 0;
  /// The peers' bases by PE, null where not reached. Valid as long as the heap.
  virtual std::byte* const* peer_bases() const = 0;

  /// @return kOutOfMemory with heap size, request, largest free block and the variable.
  virtual Result<std::byte*> Allocate(std::uint64_t bytes, std::uint64_t alignment) = 0;
  /// @return kInvalidArgument for an address that is no live block: unknown, interior, freed
  /// already.
  virtual Status Free(const void* address) = 0;

  /// Where `pe`'s copy of [address, address + bytes) is reached from here; null if it is not, or is
  /// no symmetric range.
  virtual std::byte* Translate(const void* address, std::uint64_t bytes, int pe) const = 0;
  /// Offset that means the same on every PE; nothing for an address outside this PE's heap.
  virtual std::optional<std::uint64_t> OffsetOf(const void* address) const = 0;

  virtual HeapStats Stats() const = 0;
  /// Keeps the memory behind an address of this or a peer's heap mapped; null for any other.
  virtual std::shared_ptr<const void> Retain(const void* address) const = 0;
};

/// Alignment that a request gets at least: a cache line, or a page from 2 KiB on, so that copies
/// between blocks never meet the slow case of a destination a few bytes behind its source modulo
/// the page size.
std::uint64_t DefaultAlignment(std::uint64_t bytes);
inline constexpr std::uint64_t kPageAlignedFromBytes = 2048;

/// The heap that `config` asks for. Collective. @return kUnsupported for a mode that this version
/// does not have, kInvalidConfig for a size that is not set or does not fit this machine.
Result<std::unique_ptr<Heap>> MakeHeap(const Config& config, DeviceRuntime* runtime,
                                       Transport* transport, int pe, int world_size,
                                       const Deadline& deadline);
/// The part of `MakeHeap()` that needs no other PE: whether `config` can be served here at all.
Status CheckHeapConfig(const Config& config, const DeviceRuntime& runtime);

}  // namespace mori::shmem
