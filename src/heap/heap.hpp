// Seam: how memory behind `ShmemMalloc()` is provided and found.
//
// Implementations: symmetric_heap, for every mode of `MORI_SHMEM_MODE`; what the modes do
// differently is in backing.hpp, what devices do differently in symmetric_space.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include <string>

#include "base/config.hpp"
#include "base/deadline.hpp"
#include "heap/symmetric_space.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// The heap of one PE, and its view of the others'. Allocation is deterministic: PEs that make the
/// same calls in the same order get the same offsets, so they need to agree on the arguments only.
/// Allocate and free are collective. Calls come one at a time, except `Translate()`, `Covers()`,
/// `Remote()`, `OffsetOf()`, `BlockBytes()`, `Stats()` and `Retain()`, which are safe from any
/// thread at any time.
class Heap {
 public:
  virtual ~Heap() = default;

  virtual HeapMode mode() const = 0;
  virtual std::uint64_t bytes() const = 0;

  /// Symmetric addresses are [base(), base() + span_bytes()), and base + offset on every PE. The
  /// span changes with allocation; it may have holes.
  virtual std::byte* base() const = 0;
  virtual std::uint64_t span_bytes() const = 0;
  /// The peers' bases by PE, null where not reached. Valid as long as the heap.
  virtual std::byte* const* peer_bases() const = 0;

  /// A block; `type` counts where it gets memory of its own. On an error nothing has changed, on
  /// any PE.
  /// @return kOutOfMemory with heap size, request, largest free block and the variable, or with the
  ///   PE whose device or limits did not give memory; kInvalidArgument for an alignment beyond what
  ///   the heaps start at multiples of: the next power of two of what they may grow to, or what the
  ///   device's own addresses have.
  virtual Result<std::byte*> Allocate(std::uint64_t bytes, std::uint64_t alignment,
                                      HeapType type) = 0;
  struct Freed {
    bool unmaps = false;  ///< memory goes with the block; all PEs say the same
    Status outcome;       ///< of unmapping it here
  };
  /// All PEs are done with the block, which is free on return.
  /// @return kInvalidArgument for an address that is no live block: unknown, interior, freed
  ///   already.
  virtual Result<Freed> Free(const void* address) = 0;

  /// Where `pe`'s copy of [address, address + bytes) is reached from here; null if it is not, or is
  /// no symmetric range, or has no memory behind it.
  virtual std::byte* Translate(const void* address, std::uint64_t bytes, int pe) const = 0;
  /// Whether memory is behind all of [address, address + bytes), on every PE.
  virtual bool Covers(const void* address, std::uint64_t bytes) const = 0;
  /// Where the network finds `pe`'s copy of what is at `address`, and how much of it in one piece;
  /// nothing without a network, or where no memory is.
  virtual std::optional<RemotePieces::Stretch> Remote(const void* address, int pe) const = 0;
  /// Offset that means the same on every PE; nothing for an address outside this PE's heap.
  virtual std::optional<std::uint64_t> OffsetOf(const void* address) const = 0;

  /// Length of the live block that starts at `address`, rounded up as the heap does; 0 if none
  /// does.
  virtual std::uint64_t BlockBytes(const void* address) const = 0;

  /// Gives up what is reached of other PEs, before the end; see `SymmetricSpace`. Local.
  virtual void ReleasePeers() = 0;

  virtual HeapStats Stats() const = 0;
  /// Keeps what is mapped at an address of this or a peer's heap mapped after the heap is gone;
  /// null for any other. Of a block that is freed, the addresses stay readable, not the contents.
  virtual std::shared_ptr<const void> Retain(const void* address) const = 0;
  /// For people: how its memory is mapped.
  virtual std::string Describe() const = 0;
};

/// Alignment that a request gets at least: a cache line, or a page from 2 KiB on, so that copies
/// between blocks never meet the slow case of a destination a few bytes behind its source modulo
/// the page size.
std::uint64_t DefaultAlignment(std::uint64_t bytes);
inline constexpr std::uint64_t kPageAlignedFromBytes = 2048;

/// The heap that `config` asks for. Collective; waits for the others until the deadline.
/// @return what `CheckHeapConfig()` says, and what keeps memory from being made or shared.
Result<std::unique_ptr<Heap>> MakeHeap(const Config& config, const SpaceParts& parts,
                                       const Deadline& deadline);
/// The part of `MakeHeap()` that needs no other PE: whether `config` can be served here at all.
/// @return kInvalidConfig for a size that is not set or does not fit this machine, or a mode that
///   the device cannot serve.
Status CheckHeapConfig(const Config& config, const DeviceRuntime& runtime);
/// Size of the heap, or what it may grow to: `MORI_SHMEM_HEAP_SIZE`, or the memory of the device
/// where it need not be set.
std::uint64_t HeapBytes(const Config& config, const DeviceRuntime& runtime);
/// `MORI_SHMEM_VMM_CHUNK_SIZE` as it is used, in units of the device's granularity.
std::uint64_t ChunkBytes(const Config& config, const DeviceRuntime& runtime);

}  // namespace mori::shmem
