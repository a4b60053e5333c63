// Addresses for the heaps of all PEs that load and store reach, and memory in parts of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "heap/backing.hpp"
#include "runtime/device_runtime.hpp"
#include "transport/transport.hpp"

namespace mori::shmem {

/// What a space is made of. All but the function are borrowed, and outlive it.
struct SpaceParts {
  DeviceRuntime* runtime = nullptr;
  Transport* transport = nullptr;
  int pe = 0;
  int world_size = 1;
  /// Collective: success if every PE passes success, otherwise the same failure for all, which
  /// names the PE. Orders what the PEs did before it ahead of what they do after.
  std::function<Status(const Status& mine)> agree;
};

/// Every heap starts at a multiple of a power of two no less than its size, and means the same by
/// an offset, so that an aligned offset is an aligned address, here and for every peer.
///
/// `Add()` and `Remove()` come one at a time; the rest is safe from any thread.
class MappedSpace {
 public:
  /// Reserves addresses for heaps of `bytes` each; nothing is mapped. Local.
  static Result<std::unique_ptr<MappedSpace>> Reserve(const SpaceParts& parts, std::uint64_t bytes);

  /// Makes memory of `type` for the pieces, each of its own, and maps everyone's. Collective: all
  /// PEs pass the same. On an error nothing has changed, on any PE.
  /// @return kOutOfMemory or kSystem, with the PE that could not; kPeerLost, kTimeout
  Status Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline);
  /// Unmaps everyone's memory of the pieces, here. Memory is given back once all PEs have done so.
  Status Remove(const std::vector<Piece>& pieces);

  std::byte* base() const { return bases_[pe_]; }
  /// By PE, null where not reached.
  std::byte* const* peer_bases() const { return bases_.data(); }
  /// All addresses of the space; holding it keeps what is mapped now mapped.
  const std::shared_ptr<AddressRange>& range() const { return range_; }

 private:
  MappedSpace(const SpaceParts& parts, std::shared_ptr<AddressRange> range,
              std::vector<std::byte*> bases);

  Status Map(std::span<const Piece> pieces, std::span<const std::unique_ptr<DeviceMemory>> mine,
             const std::vector<Transport::Memories>& theirs);
  std::uint64_t OffsetInRange(std::size_t pe, const Piece& piece) const;

  SpaceParts parts_;
  std::size_t pe_;
  std::shared_ptr<AddressRange> range_;
  std::vector<std::byte*> bases_;
};

}  // namespace mori::shmem
