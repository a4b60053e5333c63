// Address-ordered first fit over an abstract range of offsets.
#pragma once

#include <cstdint>
#include <optional>

#include "heap/block_tree.hpp"

namespace mori::shmem {

/// Hands out pieces of [0, capacity). It knows offsets only: its metadata lies elsewhere, so that
/// the range may be memory of a GPU, or not be mapped yet. Sizes are rounded up to the granule.
///
/// **Placement.** A request gets the lowest offset at which it fits (with alignment: see
/// `Allocate()`). Where it lands depends on the set of live blocks alone, not on how that came
/// about. Replicas that made the same calls therefore agree, and they agree again after a call that
/// only some of them made and undid. Low placement also keeps the top free, for `Shrink()`.
///
/// **Cost.** O(log blocks) for each call, see block_tree.hpp. Free neighbours merge at once.
/// `Free()` allocates no memory, and `Allocate()` none beyond the highest number of blocks so far.
///
/// **Refusals.** A request at granule alignment is refused only if every free block is smaller.
///
/// **Fragmentation.** Let live blocks never add up to more than M bytes, rounding included, no
/// request be over n granules, and alignments be at most a granule. Then nothing is placed beyond
///     M * (1 + 3 * ceil(log2 n)),
/// so that a range of this capacity never refuses. (Proof: let R(i) be the highest end of any block
/// so far of at most 2^i granules. R(0) <= M, as one granule fits into any gap. A block of s
/// granules, 2^(i-1) < s <= 2^i, that starts at x > R(i-1) found only gaps below s. Between R(i-1)
/// and x each gap is followed by a block over 2^(i-1), hence by more than half of the gap; with L
/// bytes live there, x + s <= R(i-1) + 3L + s <= R(i-1) + 3M.) No allocator that cannot move blocks
/// does better than M * (1 + log2(n) / 2) - n; best fit, and lists by size class, can need about
/// M * n. With alignments up to a granule more than k times the size, the bound is
/// M * (1 + k + (3 + 2k) * ceil(log2 n)).
///
/// Not thread-safe. Movable; a moved-from one can only be assigned to or destroyed. Nothing throws;
/// a process without memory for metadata gets a refusal.
class OffsetAllocator {
 public:
  struct Block {
    std::uint64_t offset;
    std::uint64_t bytes;  ///< of the range that is taken: the request, rounded up to the granule
  };
  struct Statistics {
    std::uint64_t capacity_bytes;
    std::uint64_t used_bytes;          ///< in live blocks, rounded up to the granule
    std::uint64_t free_bytes;          ///< `capacity_bytes - used_bytes`
    std::uint64_t largest_free_bytes;  ///< a request of this size at granule alignment succeeds
    std::uint64_t live_blocks;
    std::uint64_t free_blocks;  ///< at most `live_blocks + 1`
  };

  /// @param capacity_bytes  below 2^63, rounded down to whole granules; in 0 nothing fits.
  /// @param granule_bytes   a power of two.
  OffsetAllocator(std::uint64_t capacity_bytes, std::uint64_t granule_bytes);

  /// Takes `bytes` at a multiple of `alignment`, a power of two; what lies before an aligned start
  /// stays free. Refuses 0 bytes, another alignment, and what fits nowhere.
  ///
  /// Alignments over the granule: the lowest place is found among the first 8 free blocks that are
  /// long enough; beyond them, the first block counts that holds the request wherever it begins.
  /// Only if there is none, all long enough blocks are looked at, in linear time, so that a request
  /// that fits anywhere is never refused.
  std::optional<std::uint64_t> Allocate(std::uint64_t bytes, std::uint64_t alignment);

  /// Gives a block back.
  /// @return its length; nothing, and nothing changed, unless `offset` starts a live block.
  std::optional<std::uint64_t> Free(std::uint64_t offset);

  /// Length of the live block that starts at `offset`, if one does.
  std::optional<std::uint64_t> SizeOf(std::uint64_t offset) const;
  /// The live block that `offset` lies in, if any.
  std::optional<Block> Find(std::uint64_t offset) const;

  Statistics Stats() const;
  /// The largest request that succeeds now at `alignment`, a power of two; 0 if none does. Looks at
  /// the free blocks that are longer than the best before them.
  std::uint64_t LargestFree(std::uint64_t alignment) const;
  /// End of the last live block, 0 if there is none: `Shrink()` can go down to here.
  std::uint64_t UsedEnd() const;

  /// Moves the end of the range up, or down over free space. `new_capacity_bytes` is rounded down
  /// to whole granules.
  /// @return false, with nothing changed, if the end would move the other way, down into a live
  ///   block, or up to 2^63.
  bool Grow(std::uint64_t new_capacity_bytes);
  bool Shrink(std::uint64_t new_capacity_bytes);

 private:
  std::uint64_t Units(std::uint64_t bytes) const { return bytes >> granule_shift_; }
  std::uint64_t Bytes(std::uint64_t units) const { return units << granule_shift_; }
  std::uint64_t AlignmentMask(std::uint64_t alignment) const;
  bool SeekLive(std::uint64_t offset, BlockTree::Cursor& at) const;
  bool FindPlace(std::uint64_t units, std::uint64_t mask, BlockTree::Cursor& at) const;
  bool FindPlaceBeyond(std::uint64_t units, std::uint64_t mask, BlockTree::Cursor& at) const;

  unsigned granule_shift_;
  BlockTree blocks_;  ///< starts and lengths in granules
  std::uint64_t used_units_ = 0;
  std::uint64_t live_blocks_ = 0;
  std::uint64_t free_blocks_ = 0;
};

}  // namespace mori::shmem
