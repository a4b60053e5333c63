#include "heap/offset_allocator.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>
#include <new>

namespace mori::shmem {
namespace {

constexpr std::size_t kFanout = 16;
/// Neighbours under one parent that hold no more than this together become one node.
constexpr std::size_t kMergeUpTo = kFanout / 2;
/// Nodes of one level are on average fuller than 4, so this many levels outlast any memory.
constexpr std::size_t kMaxHeight = 20;
constexpr std::size_t kNodesPerChunk = 64;
/// Blocks that an aligned request tries before it settles for one that holds it in any case.
constexpr int kAlignedTries = 8;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

}  // namespace

/// A block: in leaves they tile the range.
struct OffsetAllocator::Entry {
  std::uint64_t start;
  std::uint64_t units;
  bool live;
};

struct OffsetAllocator::Node {
  std::uint64_t start[kFanout];  ///< of the block, or of the first one below the child
  std::uint64_t room[kFanout];   ///< length of the largest free block there; 0 if there is none
  union {
    std::uint64_t units[kFanout];  ///< in a leaf: length of the block
    Node* child[kFanout];          ///< above: what lies below; in a spare node: the next one
  };
  std::size_t count;

  std::uint64_t Room() const {
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, room[i]);
    return largest;
  }
  /// The last slot that starts at or before `position`.
  std::size_t SlotOf(std::uint64_t position) const {
    std::size_t slot = 0;
    for (std::size_t i = 1; i < count; ++i) slot += start[i] <= position ? 1 : 0;
    return slot;
  }
  Entry At(std::size_t slot) const { return {start[slot], units[slot], room[slot] == 0}; }

  void CopySlots(std::size_t to, const Node& from, std::size_t first, std::size_t n) {
    std::copy_n(from.start + first, n, start + to);
    std::copy_n(from.room + first, n, room + to);
    std::copy_n(from.units + first, n, units + to);
  }
  /// Moves the slots from `first` on by `distance`.
  void Shift(std::size_t first, std::ptrdiff_t distance) {
    const auto move = [&](std::uint64_t* slots) {
      if (distance > 0) std::copy_backward(slots + first, slots + count, slots + count + distance);
      if (distance < 0) std::copy(slots + first, slots + count, slots + first + distance);
    };
    move(start);
    move(room);
    move(units);
    count = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(count) + distance);
  }
};

/// The way from the root to a block: a node and a slot on each level.
struct OffsetAllocator::Cursor {
  std::array<Node*, kMaxHeight> node;
  std::array<std::size_t, kMaxHeight> slot;
};

OffsetAllocator::OffsetAllocator(std::uint64_t capacity_bytes, std::uint64_t granule_bytes)
    : granule_shift_(static_cast<unsigned>(std::countr_zero(granule_bytes))), capacity_(0) {
  assert(std::has_single_bit(granule_bytes));
  Grow(capacity_bytes);
}

OffsetAllocator::~OffsetAllocator() = default;
OffsetAllocator::OffsetAllocator(OffsetAllocator&&) noexcept = default;
OffsetAllocator& OffsetAllocator::operator=(OffsetAllocator&&) noexcept = default;

// ---- calls ----

std::uint64_t OffsetAllocator::AlignmentMask(std::uint64_t alignment) const {
  return std::max<std::uint64_t>(Units(alignment), 1) - 1;
}

std::optional<std::uint64_t> OffsetAllocator::Allocate(std::uint64_t bytes,
                                                       std::uint64_t alignment) {
  if (bytes == 0 || !std::has_single_bit(alignment)) return std::nullopt;
  const std::uint64_t units = Units(bytes - 1) + 1;
  const std::uint64_t mask = AlignmentMask(alignment);
  Cursor at;
  if (units > capacity_ || !ReserveNodes() || !FindPlace(units, mask, at)) return std::nullopt;

  const Entry whole = at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
  const std::uint64_t gap = (0 - whole.start) & mask;
  const std::uint64_t start = whole.start + gap;
  const std::uint64_t rest = whole.units - gap - units;
  Entry entries[3];
  std::size_t count = 0;
  if (gap > 0) entries[count++] = {whole.start, gap, false};
  entries[count++] = {start, units, true};
  if (rest > 0) entries[count++] = {start + units, rest, false};
  Replace(at, 1, entries, count);

  used_ += units;
  ++live_blocks_;
  free_blocks_ = free_blocks_ + count - 2;
  return Bytes(start);
}

bool OffsetAllocator::Free(std::uint64_t offset) {
  Cursor at;
  if (!SeekLive(offset, at)) return false;
  Entry merged = at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
  used_ -= merged.units;
  --live_blocks_;
  ++free_blocks_;

  merged.live = false;
  AbsorbOutsideLeaf(at, merged);
  const Node& leaf = *at.node[LeafLevel()];
  std::size_t& slot = at.slot[LeafLevel()];
  std::size_t removed = 1;
  if (slot + 1 < leaf.count && leaf.room[slot + 1] > 0) {
    merged.units += leaf.room[slot + 1];
    ++removed;
  }
  if (slot > 0 && leaf.room[slot - 1] > 0) {
    --slot;
    merged.start = leaf.start[slot];
    merged.units += leaf.room[slot];
    ++removed;
  }
  free_blocks_ -= removed - 1;
  Replace(at, removed, &merged, 1);
  return true;
}

std::optional<std::uint64_t> OffsetAllocator::SizeOf(std::uint64_t offset) const {
  Cursor at;
  if (!SeekLive(offset, at)) return std::nullopt;
  return Bytes(at.node[LeafLevel()]->units[at.slot[LeafLevel()]]);
}

std::optional<OffsetAllocator::Block> OffsetAllocator::Find(std::uint64_t offset) const {
  if (Units(offset) >= capacity_) return std::nullopt;
  const Cursor at = Seek(Units(offset));
  const Entry entry = at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
  if (!entry.live) return std::nullopt;
  return Block{Bytes(entry.start), Bytes(entry.units)};
}

OffsetAllocator::Statistics OffsetAllocator::Stats() const {
  const std::uint64_t largest = height_ == 0 ? 0 : root_->Room();
  return {Bytes(capacity_), Bytes(used_), Bytes(capacity_ - used_),
          Bytes(largest),   live_blocks_, free_blocks_};
}

std::uint64_t OffsetAllocator::LargestFree(std::uint64_t alignment) const {
  const std::uint64_t mask = AlignmentMask(alignment);
  std::uint64_t largest = 0;
  if (height_ == 0) return 0;
  for (Cursor at = Start(); NextWithRoom(at, largest + 1);) {
    const Entry block = at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
    const std::uint64_t gap = (0 - block.start) & mask;
    if (gap < block.units) largest = std::max(largest, block.units - gap);
  }
  return Bytes(largest);
}

std::uint64_t OffsetAllocator::UsedEnd() const {
  if (capacity_ == 0) return 0;
  Cursor at;
  const Entry last = Last(at);
  return Bytes(last.live ? capacity_ : last.start);
}

bool OffsetAllocator::Grow(std::uint64_t new_capacity_bytes) {
  const std::uint64_t new_capacity = Units(new_capacity_bytes);
  if (new_capacity < capacity_ || !ReserveNodes()) return false;
  if (new_capacity == capacity_) return true;
  Entry last{capacity_, new_capacity - capacity_, false};
  Cursor at;
  if (capacity_ == 0) {
    MakeRoot();
    at = Seek(0);
    Replace(at, 0, &last, 1);
    ++free_blocks_;
  } else if (const Entry old = Last(at); old.live) {
    const Entry entries[] = {old, last};
    Replace(at, 1, entries, 2);
    ++free_blocks_;
  } else {
    last = {old.start, new_capacity - old.start, false};
    Replace(at, 1, &last, 1);
  }
  capacity_ = new_capacity;
  return true;
}

bool OffsetAllocator::Shrink(std::uint64_t new_capacity_bytes) {
  const std::uint64_t new_capacity = Units(new_capacity_bytes);
  if (new_capacity > capacity_ || Bytes(new_capacity) < UsedEnd()) return false;
  if (new_capacity == capacity_) return true;
  Cursor at;
  Entry last = Last(at);
  last.units = new_capacity - last.start;
  const std::size_t kept = last.units > 0 ? 1 : 0;
  free_blocks_ -= 1 - kept;
  capacity_ = new_capacity;
  Replace(at, 1, &last, kept);
  return true;
}

// ---- finding ----

/// The block that contains `start`, or the last one; slot 0 in an empty tree.
OffsetAllocator::Cursor OffsetAllocator::Seek(std::uint64_t start) const {
  Cursor at;
  Node* node = root_;
  for (std::size_t level = 0;; ++level) {
    at.node[level] = node;
    at.slot[level] = node->SlotOf(start);
    if (level == LeafLevel()) return at;
    node = node->child[at.slot[level]];
  }
}

bool OffsetAllocator::SeekLive(std::uint64_t offset, Cursor& at) const {
  const std::uint64_t start = Units(offset);
  if (start >= capacity_ || Bytes(start) != offset) return false;
  at = Seek(start);
  const Entry entry = at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
  return entry.live && entry.start == start;
}

OffsetAllocator::Entry OffsetAllocator::Last(Cursor& at) const {
  at = Seek(kMax);
  return at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
}

/// Moves to the next or previous block; false, with `at` undefined, if there is none.
bool OffsetAllocator::Step(Cursor& at, bool forward) const {
  const auto is_at_edge = [&](std::size_t level) {
    return at.slot[level] == (forward ? at.node[level]->count - 1 : 0);
  };
  std::size_t level = LeafLevel();
  while (is_at_edge(level)) {
    if (level == 0) return false;
    --level;
  }
  at.slot[level] = forward ? at.slot[level] + 1 : at.slot[level] - 1;
  for (; level < LeafLevel(); ++level) {
    Node* const child = at.node[level]->child[at.slot[level]];
    at.node[level + 1] = child;
    at.slot[level + 1] = forward ? 0 : child->count - 1;
  }
  return true;
}

/// Stands before the first block.
OffsetAllocator::Cursor OffsetAllocator::Start() const {
  Cursor at;
  for (std::size_t level = 0; level < height_; ++level) {
    at.node[level] = level == 0 ? root_ : at.node[level - 1]->child[0];
    at.slot[level] = 0;
  }
  at.slot[LeafLevel()] = kMax;
  return at;
}

/// Moves to the next free block of at least `units`, which is over 0; false, with `at` undefined,
/// if there is none.
bool OffsetAllocator::NextWithRoom(Cursor& at, std::uint64_t units) const {
  std::size_t level = LeafLevel();
  std::size_t slot = at.slot[level] + 1;
  while (true) {
    const Node& node = *at.node[level];
    while (slot < node.count && node.room[slot] < units) ++slot;
    if (slot == node.count) {
      if (level == 0) return false;
      --level;
      slot = at.slot[level] + 1;
      continue;
    }
    at.slot[level] = slot;
    if (level == LeafLevel()) return true;
    ++level;
    at.node[level] = node.child[slot];
    slot = 0;
  }
}

/// Where `units` go at a multiple of `mask` + 1, as the contract of `Allocate()` says.
bool OffsetAllocator::FindPlace(std::uint64_t units, std::uint64_t mask, Cursor& at) const {
  const auto holds = [&] {
    const Entry block = at.node[LeafLevel()]->At(at.slot[LeafLevel()]);
    const std::uint64_t gap = (0 - block.start) & mask;
    return gap <= block.units && units <= block.units - gap;
  };
  at = Start();
  for (int tries = 0; tries < kAlignedTries; ++tries) {
    if (!NextWithRoom(at, units)) return false;
    if (holds()) return true;
  }
  const Cursor tried = at;
  if (units <= kMax - mask && NextWithRoom(at, units + mask)) return true;
  at = tried;
  while (NextWithRoom(at, units)) {
    if (holds()) return true;
  }
  return false;
}

// ---- changing ----

/// Puts `count` blocks in place of `removed` ones of one leaf, from `at` on. Leaves `at` undefined.
void OffsetAllocator::Replace(Cursor& at, std::size_t removed, const Entry* entries,
                              std::size_t count) {
  if (count > removed) MakeSpace(at, count - removed);
  Node& leaf = *at.node[LeafLevel()];
  const std::size_t slot = at.slot[LeafLevel()];
  if (count != removed) {
    leaf.Shift(slot + removed,
               static_cast<std::ptrdiff_t>(count) - static_cast<std::ptrdiff_t>(removed));
  }
  for (std::size_t i = 0; i < count; ++i) {
    leaf.start[slot + i] = entries[i].start;
    leaf.room[slot + i] = entries[i].live ? 0 : entries[i].units;
    leaf.units[slot + i] = entries[i].units;
  }
  Repair(at);
}

/// Splits until the leaf of `at` takes `count` blocks more. Keeps `at` at its block.
void OffsetAllocator::MakeSpace(Cursor& at, std::size_t count) {
  while (at.node[LeafLevel()]->count + count > kFanout) {
    const std::uint64_t start = at.node[LeafLevel()]->start[at.slot[LeafLevel()]];
    std::size_t level = LeafLevel();
    while (level > 0 && at.node[level - 1]->count == kFanout) --level;
    Split(at, level);
    at = Seek(start);
  }
}

/// Moves the upper half of a node into a new one beside it; its parent has a slot left.
void OffsetAllocator::Split(Cursor& at, std::size_t level) {
  Node* const left = at.node[level];
  Node* const right = TakeNode();
  Node* parent = nullptr;
  std::size_t slot = 0;
  if (level == 0) {
    assert(height_ < kMaxHeight);
    parent = TakeNode();
    parent->count = 1;
    parent->start[0] = left->start[0];
    parent->child[0] = left;
    root_ = parent;
    ++height_;
  } else {
    parent = at.node[level - 1];
    slot = at.slot[level - 1];
  }
  const std::size_t kept = left->count / 2;
  right->count = left->count - kept;
  right->CopySlots(0, *left, kept, right->count);
  left->count = kept;

  parent->Shift(slot + 1, 1);
  parent->start[slot + 1] = right->start[0];
  parent->child[slot + 1] = right;
  parent->room[slot] = left->Room();
  parent->room[slot + 1] = right->Room();
}

/// Brings the nodes above the changed leaf of `at` up to date, and merges what has become empty
/// enough.
void OffsetAllocator::Repair(Cursor& at) {
  for (std::size_t level = LeafLevel(); level > 0; --level) {
    Node& parent = *at.node[level - 1];
    std::size_t slot = at.slot[level - 1];
    Node* const node = at.node[level];
    const auto refresh = [&parent](std::size_t i) {
      parent.start[i] = parent.child[i]->start[0];
      parent.room[i] = parent.child[i]->Room();
    };
    const auto drop = [&](std::size_t i) {
      ReturnNode(parent.child[i]);
      parent.Shift(i + 1, -1);
    };
    const auto merge_into_left = [&](std::size_t i) {
      Node& left = *parent.child[i];
      const Node& right = *parent.child[i + 1];
      if (left.count + right.count > kMergeUpTo) return false;
      left.CopySlots(left.count, right, 0, right.count);
      left.count += right.count;
      drop(i + 1);
      return true;
    };

    if (node->count == 0) {
      drop(slot);
      continue;
    }
    bool changed = false;
    if (slot > 0 && merge_into_left(slot - 1)) {
      --slot;
      changed = true;
    }
    if (slot + 1 < parent.count && merge_into_left(slot)) changed = true;
    const std::uint64_t old_start = parent.start[slot];
    const std::uint64_t old_room = parent.room[slot];
    refresh(slot);
    if (!changed && parent.start[slot] == old_start && parent.room[slot] == old_room) break;
  }
  while (height_ > 1 && root_->count == 1) {
    Node* const old_root = root_;
    root_ = old_root->child[0];
    ReturnNode(old_root);
    --height_;
  }
}

/// Takes the free neighbours of the block at `at` that lie in other leaves out of the tree and adds
/// them to `merged`. Keeps `at` at its block.
void OffsetAllocator::AbsorbOutsideLeaf(Cursor& at, Entry& merged) {
  for (const bool forward : {true, false}) {
    const Node& leaf = *at.node[LeafLevel()];
    const std::size_t edge = forward ? leaf.count - 1 : 0;
    if (at.slot[LeafLevel()] != edge) continue;
    const std::uint64_t start = leaf.start[edge];
    Cursor neighbour = at;
    if (!Step(neighbour, forward)) continue;
    const Entry entry = neighbour.node[LeafLevel()]->At(neighbour.slot[LeafLevel()]);
    if (entry.live) continue;
    if (!forward) merged.start = entry.start;
    merged.units += entry.units;
    --free_blocks_;
    Replace(neighbour, 1, nullptr, 0);
    at = Seek(start);
  }
}

// ---- nodes ----

/// Makes sure that one change finds its nodes: a split on every level and a new root.
bool OffsetAllocator::ReserveNodes() {
  static_assert(kNodesPerChunk > kMaxHeight);
  if (spare_count_ > kMaxHeight) return true;
  try {
    chunks_.push_back(std::make_unique_for_overwrite<Node[]>(kNodesPerChunk));
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (std::size_t i = kNodesPerChunk; i > 0; --i) ReturnNode(&chunks_.back()[i - 1]);
  return true;
}

/// The tree of an empty range is a leaf without blocks.
void OffsetAllocator::MakeRoot() {
  if (root_ != nullptr) return;
  root_ = TakeNode();
  height_ = 1;
}

OffsetAllocator::Node* OffsetAllocator::TakeNode() {
  Node* const node = spare_;
  spare_ = node->child[0];
  --spare_count_;
  node->count = 0;
  return node;
}

void OffsetAllocator::ReturnNode(Node* node) {
  node->child[0] = spare_;
  spare_ = node;
  ++spare_count_;
}

}  // namespace mori::shmem
