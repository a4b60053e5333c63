// Seam: addresses for the heaps of all PEs that load and store reach, and memory in parts of them.
//
// Implementations: mapped_space (memory lies where we map it), given_space (memory comes with
// addresses that the device chose).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "heap/backing.hpp"
#include "heap/remote_pieces.hpp"
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
  /// The network to PEs that `transport` does not reach; null if it reaches all.
  RemoteTransport* network = nullptr;
  /// Collective: everyone's message, by PE. Needed with a network.
  RemotePieces::Gather gather = {};
};

/// An offset means the same in every PE's heap.
///
/// `Add()`, `Remove()` and `ReleasePeers()` come one at a time; the rest is safe from any thread.
class SymmetricSpace {
 public:
  /// The space that the device allows, for heaps of `bytes` each; no memory yet. Local.
  static Result<std::unique_ptr<SymmetricSpace>> Reserve(const SpaceParts& parts,
                                                         std::uint64_t bytes);
  virtual ~SymmetricSpace() = default;

  /// Makes memory of `type` for the pieces, each of its own, and reaches everyone's. Collective:
  /// all PEs pass the same. On an error nothing has changed, on any PE.
  /// @return kOutOfMemory or kSystem, with the PE that could not; kPeerLost, kTimeout
  virtual Status Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline) = 0;
  /// Unmaps everyone's memory of the pieces, here. Memory is given back once all PEs have done so.
  virtual Status Remove(const std::vector<Piece>& pieces) = 0;
  /// Before the end, where an owner must outlive those who reach its memory: gives up what is
  /// reached of others, whose addresses mean nothing from now on. Local.
  virtual void ReleasePeers() {}

  /// A power of two. `base()` of every PE is a multiple of it, and so is each address at which a
  /// peer's heap begins here. An offset that is aligned to at most this much gives an address with
  /// the same alignment, on every PE.
  virtual std::uint64_t alignment() const = 0;
  /// As long as it is held, what is mapped at `address`, of any PE's heap, stays mapped.
  /// @return null for an address of no heap
  virtual std::shared_ptr<const void> Retain(const void* address) const = 0;

  std::byte* base() const { return bases_[pe_]; }
  /// Where the network finds memory of the heaps; null without a network.
  const RemotePieces* remote() const { return remote_.get(); }
  /// By PE, null where not reached. Addresses are there once memory has been added.
  std::byte* const* peer_bases() const { return bases_.data(); }

 protected:
  explicit SymmetricSpace(const SpaceParts& parts)
      : parts_(parts),
        pe_(static_cast<std::size_t>(parts.pe)),
        bases_(static_cast<std::size_t>(parts.world_size), nullptr) {
    if (parts.network != nullptr)
      remote_ = std::make_unique<RemotePieces>(parts.network, parts.gather);
  }

  /// After these the PEs are out of step with each other; after other errors they are not.
  static bool IsFatal(const Status& status) {
    return status.code() == ErrorCode::kPeerLost || status.code() == ErrorCode::kTimeout;
  }

  const SpaceParts parts_;
  const std::size_t pe_;
  std::vector<std::byte*> bases_;
  std::unique_ptr<RemotePieces> remote_;
};

}  // namespace mori::shmem
