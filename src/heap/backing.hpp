// Which pieces of a heap's addresses have memory behind them, and when: the difference between the
// heap modes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/config.hpp"

namespace mori::shmem {

/// A range of heap offsets.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end() const { return offset + bytes; }
  bool operator==(const Piece&) const = default;
};

/// Keeps the books only; somebody else makes the memory. PEs that make the same calls get the same
/// pieces. Not thread-safe.
class Backing {
 public:
  virtual ~Backing() = default;
  /// Pieces to get memory before anything is allocated.
  virtual std::vector<Piece> AtInit() = 0;
  /// Enters a block.
  /// @return the pieces that need memory for it, ascending; each is memory of its own
  virtual std::vector<Piece> Take(const Piece& block) = 0;
  /// Undoes a `Take()` whose pieces did not get memory.
  virtual void Undo(const Piece& block, const std::vector<Piece>& wanted) = 0;
  /// Removes a block that `Take()` has entered.
  /// @return the pieces whose memory nobody needs
  virtual std::vector<Piece> Drop(const Piece& block) = 0;
  /// End of the last piece with memory.
  virtual std::uint64_t End() const = 0;
  /// Whether every byte of `range` has memory.
  virtual bool Covers(const Piece& range) const = 0;
};

/// Static: one piece of `bytes` for good.
std::unique_ptr<Backing> MakeWholeBacking(std::uint64_t bytes);
/// Vmm: chunks of `chunk_bytes`, from the first block that lies in one to the last. One chunk that
/// has become empty is kept, so that a malloc and a free at its border do not map and unmap it
/// again and again; the end of a heap of `bytes` is a shorter chunk.
std::unique_ptr<Backing> MakeChunkBacking(std::uint64_t bytes, std::uint64_t chunk_bytes);
/// Isolation: each block is a piece.
std::unique_ptr<Backing> MakeBlockBacking();

}  // namespace mori::shmem
