#include "heap/offset_allocator.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace mori::shmem {
namespace {

using TreeBlock = BlockTree::Block;
using Cursor = BlockTree::Cursor;

/// Blocks that an aligned request tries before it settles for one that holds it in any case.
constexpr int kAlignedTries = 8;
/// Sums of two lengths stay below 2^64.
constexpr std::uint64_t kMaxBytes = (std::uint64_t{1} << 63) - 1;

bool IsPowerOfTwo(std::uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

/// From the start of a block to the first multiple of `mask` + 1.
std::uint64_t GapOf(const TreeBlock& block, std::uint64_t mask) { return (0 - block.start) & mask; }

bool Holds(const TreeBlock& block, std::uint64_t units, std::uint64_t mask) {
  const std::uint64_t gap = GapOf(block, mask);
  return gap <= block.units && units <= block.units - gap;
}

}  // namespace

OffsetAllocator::OffsetAllocator(std::uint64_t capacity_bytes, std::uint64_t granule_bytes)
    : granule_shift_(static_cast<unsigned>(std::countr_zero(granule_bytes))) {
  assert(IsPowerOfTwo(granule_bytes) && capacity_bytes <= kMaxBytes);
  Grow(capacity_bytes);
}

std::uint64_t OffsetAllocator::AlignmentMask(std::uint64_t alignment) const {
  return std::max<std::uint64_t>(Units(alignment), 1) - 1;
}

std::optional<std::uint64_t> OffsetAllocator::Allocate(std::uint64_t bytes,
                                                       std::uint64_t alignment) {
  if (bytes == 0 || bytes > kMaxBytes || !IsPowerOfTwo(alignment)) return std::nullopt;
  const std::uint64_t units = Units(bytes - 1) + 1;
  const std::uint64_t mask = AlignmentMask(alignment);
  Cursor at;
  if (!blocks_.Reserve() || !FindPlace(units, mask, at)) return std::nullopt;

  const TreeBlock whole = BlockTree::At(at);
  const std::uint64_t gap = GapOf(whole, mask);
  const TreeBlock taken{whole.start + gap, units, false};
  const std::uint64_t rest = whole.units - gap - units;
  TreeBlock pieces[3];
  std::size_t count = 0;
  if (gap > 0) pieces[count++] = {whole.start, gap, true};
  pieces[count++] = taken;
  if (rest > 0) pieces[count++] = {taken.end(), rest, true};
  blocks_.Divide(at, pieces, count);

  used_units_ += units;
  ++live_blocks_;
  free_blocks_ = free_blocks_ + count - 2;
  return Bytes(taken.start);
}

std::optional<std::uint64_t> OffsetAllocator::Free(std::uint64_t offset) {
  Cursor at;
  if (!SeekLive(offset, at)) return std::nullopt;
  const std::uint64_t units = BlockTree::At(at).units;
  used_units_ -= units;
  --live_blocks_;
  free_blocks_ = free_blocks_ + 1 - blocks_.Release(at);
  return Bytes(units);
}

std::optional<std::uint64_t> OffsetAllocator::SizeOf(std::uint64_t offset) const {
  Cursor at;
  if (!SeekLive(offset, at)) return std::nullopt;
  return Bytes(BlockTree::At(at).units);
}

std::optional<OffsetAllocator::Block> OffsetAllocator::Find(std::uint64_t offset) const {
  if (Units(offset) >= blocks_.end()) return std::nullopt;
  Cursor at;
  blocks_.Seek(Units(offset), at);
  const TreeBlock block = BlockTree::At(at);
  if (block.is_free) return std::nullopt;
  return Block{Bytes(block.start), Bytes(block.units)};
}

OffsetAllocator::Statistics OffsetAllocator::Stats() const {
  Statistics stats{};
  stats.capacity_bytes = Bytes(blocks_.end());
  stats.used_bytes = Bytes(used_units_);
  stats.free_bytes = stats.capacity_bytes - stats.used_bytes;
  stats.largest_free_bytes = Bytes(blocks_.LargestFree());
  stats.live_blocks = live_blocks_;
  stats.free_blocks = free_blocks_;
  return stats;
}

std::uint64_t OffsetAllocator::LargestFree(std::uint64_t alignment) const {
  const std::uint64_t mask = AlignmentMask(alignment);
  std::uint64_t largest = 0;
  Cursor at;
  for (bool found = blocks_.FirstWithRoom(1, at); found;
       found = blocks_.NextWithRoom(largest + 1, at)) {
    const TreeBlock block = BlockTree::At(at);
    const std::uint64_t gap = GapOf(block, mask);
    if (gap < block.units) largest = std::max(largest, block.units - gap);
  }
  return Bytes(largest);
}

std::uint64_t OffsetAllocator::UsedEnd() const {
  if (blocks_.end() == 0) return 0;
  Cursor at;
  blocks_.Seek(blocks_.end() - 1, at);
  const TreeBlock last = BlockTree::At(at);
  return Bytes(last.is_free ? last.start : last.end());
}

bool OffsetAllocator::Grow(std::uint64_t new_capacity_bytes) {
  const std::uint64_t end = Units(new_capacity_bytes);
  if (end < blocks_.end() || new_capacity_bytes > kMaxBytes || !blocks_.Reserve()) return false;
  if (end == blocks_.end()) return true;
  const bool is_end_free = UsedEnd() < Bytes(blocks_.end());
  if (!is_end_free) ++free_blocks_;
  blocks_.SetEnd(end);
  return true;
}

bool OffsetAllocator::Shrink(std::uint64_t new_capacity_bytes) {
  const std::uint64_t end = Units(new_capacity_bytes);
  const std::uint64_t used_end = UsedEnd();
  if (end > blocks_.end() || Bytes(end) < used_end) return false;
  if (end == blocks_.end()) return true;
  if (Bytes(end) == used_end) --free_blocks_;
  blocks_.SetEnd(end);
  return true;
}

bool OffsetAllocator::SeekLive(std::uint64_t offset, Cursor& at) const {
  const std::uint64_t start = Units(offset);
  if (start >= blocks_.end() || Bytes(start) != offset) return false;
  blocks_.Seek(start, at);
  const TreeBlock block = BlockTree::At(at);
  return !block.is_free && block.start == start;
}

/// Where `units` go at a multiple of `mask` + 1, as the contract of `Allocate()` says.
bool OffsetAllocator::FindPlace(std::uint64_t units, std::uint64_t mask, Cursor& at) const {
  if (!blocks_.FirstWithRoom(units, at)) return false;
  for (int tries = 1; !Holds(BlockTree::At(at), units, mask); ++tries) {
    if (tries == kAlignedTries) return FindPlaceBeyond(units, mask, at);
    if (!blocks_.NextWithRoom(units, at)) return false;
  }
  return true;
}

/// The rest of `FindPlace()`, after blocks up to `at` were tried.
bool OffsetAllocator::FindPlaceBeyond(std::uint64_t units, std::uint64_t mask, Cursor& at) const {
  const Cursor tried = at;
  if (blocks_.NextWithRoom(units + mask, at)) return true;
  at = tried;
  while (blocks_.NextWithRoom(units, at)) {
    if (Holds(BlockTree::At(at), units, mask)) return true;
  }
  return false;
}

}  // namespace mori::shmem
