// Where the network finds the memory of the heaps, piece by piece.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "heap/backing.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

/// The same offset means the same in every PE's heap. `Add()` and `Remove()` come one at a time;
/// `At()` is safe from any thread.
class RemotePieces {
 public:
  /// Collective: everyone's message, by PE.
  using Gather = std::function<Result<std::vector<Bytes>>(ByteView mine)>;

  /// The network is borrowed, and outlives it.
  RemotePieces(RemoteTransport* network, Gather gather)
      : network_(network), gather_(std::move(gather)) {}

  /// Registers this PE's memory of the pieces, which is mapped at `base` + offset, and learns where
  /// the others have theirs. Collective over the world: all PEs pass the same pieces. On an error
  /// nothing has changed here.
  /// @return what kept this PE from it; kMismatch if another PE failed; kPeerLost, kTimeout, after
  ///   which the PEs are out of step
  Status Add(std::byte* base, std::span<const Piece> pieces);
  /// No PE reaches the pieces any more: takes them back. Local.
  void Remove(std::span<const Piece> pieces);

  struct Stretch {
    RemotePlace place;
    std::uint64_t bytes;  ///< from there to the end of its piece
  };
  /// Where `pe`'s memory of an offset is; nothing if there is none.
  std::optional<Stretch> At(int pe, std::uint64_t offset) const;

 private:
  struct Entry {
    std::uint64_t bytes;
    std::unique_ptr<Registration> mine;
    std::vector<RemotePlace> places;  ///< by PE
  };

  RemoteTransport* network_;
  Gather gather_;
  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;  ///< by offset
};

}  // namespace mori::shmem
