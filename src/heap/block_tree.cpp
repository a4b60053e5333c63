#include "heap/block_tree.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

namespace mori::shmem {
namespace {

constexpr std::size_t kLeafSlots = 30;    // a leaf fills four cache lines,
constexpr std::size_t kBranchSlots = 15;  // a branch six
constexpr std::size_t kNodesPerChunk = 64;
constexpr std::uint64_t kUnused = std::numeric_limits<std::uint64_t>::max();

/// The last of `Slots` ascending numbers, of which the first is taken for 0, up to `position`.
/// Without branches, as a search in a tree has no use for prediction.
template <std::size_t Slots>
std::size_t SlotOf(const std::uint64_t* ascending, std::uint64_t position) {
  std::size_t slot = 0;
#pragma GCC unroll 32
  for (std::size_t i = 1; i < Slots; ++i) slot += ascending[i] <= position ? 1 : 0;
  return slot;
}

}  // namespace

// ---- nodes ----

struct alignas(64) BlockTree::Leaf {
  /// A node that shrinks to this size joins a neighbour under the same parent that is no larger.
  static constexpr std::size_t kSparse = kLeafSlots / 3;

  std::uint32_t count;
  std::uint32_t free_slots;  ///< bit i: block i is free
  /// Block i is [border[i], border[i + 1]). What follows the end of the last block is kUnused.
  std::uint64_t border[kLeafSlots + 1];

  void Clear() {
    count = 0;
    free_slots = 0;
    std::fill_n(border, kLeafSlots + 1, kUnused);
  }
  std::uint64_t Start() const { return border[0]; }
  std::uint64_t UnitsOf(std::size_t slot) const { return border[slot + 1] - border[slot]; }
  bool IsFree(std::size_t slot) const { return (free_slots >> slot & 1) != 0; }
  Block At(std::size_t slot) const { return {border[slot], UnitsOf(slot), IsFree(slot)}; }
  std::size_t SlotOf(std::uint64_t position) const {
    return mori::shmem::SlotOf<kLeafSlots>(border, position);
  }

  std::uint64_t Room() const {
    std::uint64_t largest = 0;
    for (std::uint32_t left = free_slots; left != 0; left &= left - 1) {
      largest = std::max(largest, UnitsOf(static_cast<std::size_t>(std::countr_zero(left))));
    }
    return largest;
  }
  /// The first free block from `slot` on with `units`; `count` if there is none.
  std::size_t FirstWithRoom(std::size_t slot, std::uint64_t units) const {
    for (std::uint32_t left = free_slots >> slot << slot; left != 0; left &= left - 1) {
      const auto candidate = static_cast<std::size_t>(std::countr_zero(left));
      if (UnitsOf(candidate) >= units) return candidate;
    }
    return count;
  }

  /// Puts `n` blocks in place of `removed` ones. Within the leaf they tile the same range.
  void Replace(std::size_t slot, std::size_t removed, const Block* blocks, std::size_t n) {
    const std::size_t tail = slot + removed;
    const bool drops_end = n == 0 && tail == count;
    if (!drops_end) {
      std::memmove(border + slot + n, border + tail, (count + 1 - tail) * sizeof(border[0]));
    }
    free_slots = (free_slots & ((1u << slot) - 1)) | free_slots >> tail << (slot + n);
    count = static_cast<std::uint32_t>(count + n - removed);
    for (std::size_t i = n; i < removed; ++i) border[count + 1 + i - n] = kUnused;
    for (std::size_t i = 0; i < n; ++i) {
      border[slot + i] = blocks[i].start;
      free_slots |= (blocks[i].is_free ? 1u : 0u) << (slot + i);
    }
    if (n > 0) border[slot + n] = blocks[n - 1].end();
  }
  /// Moves the blocks of `from`, from `first` on, to the end of this leaf.
  void TakeFrom(Leaf& from, std::size_t first) {
    const std::size_t n = from.count - first;
    std::copy_n(from.border + first, n + 1, border + count);
    std::fill_n(from.border + first + 1, n, kUnused);
    free_slots |= from.free_slots >> first << count;
    from.free_slots &= (1u << first) - 1;
    count += static_cast<std::uint32_t>(n);
    from.count = static_cast<std::uint32_t>(first);
  }
};

struct alignas(64) BlockTree::Branch {
  static constexpr std::size_t kSparse = kBranchSlots / 3;

  std::size_t count;
  std::uint64_t start[kBranchSlots];  ///< of the first block below the child; unused: kUnused
  std::uint64_t room[kBranchSlots];   ///< length of the largest free block below the child
  void* child[kBranchSlots];

  void Clear() {
    count = 0;
    std::fill_n(start, kBranchSlots, kUnused);
  }
  std::uint64_t Start() const { return start[0]; }
  std::uint64_t Room() const { return *std::max_element(room, room + count); }
  std::size_t SlotOf(std::uint64_t position) const {
    return mori::shmem::SlotOf<kBranchSlots>(start, position);
  }
  /// The first slot from `slot` on with a free block of `units`; `count` if there is none.
  std::size_t FirstWithRoom(std::size_t slot, std::uint64_t units) const {
    while (slot < count && room[slot] < units) ++slot;
    return slot;
  }

  Branch* BranchAt(std::size_t slot) const { return static_cast<Branch*>(child[slot]); }
  Leaf* LeafAt(std::size_t slot) const { return static_cast<Leaf*>(child[slot]); }
  template <typename Node>
  void Set(std::size_t slot, Node* node) {
    start[slot] = node->Start();
    room[slot] = node->Room();
    child[slot] = node;
  }
  template <typename Node>
  void Insert(std::size_t slot, Node* node) {
    for (std::size_t i = count; i > slot; --i) CopySlot(i, *this, i - 1);
    ++count;
    Set(slot, node);
  }
  void Erase(std::size_t slot) {
    --count;
    for (std::size_t i = slot; i < count; ++i) CopySlot(i, *this, i + 1);
    start[count] = kUnused;
  }
  /// Moves the slots of `from`, from `first` on, to the end of this branch.
  void TakeFrom(Branch& from, std::size_t first) {
    for (std::size_t i = first; i < from.count; ++i) {
      CopySlot(count++, from, i);
      from.start[i] = kUnused;
    }
    from.count = first;
  }

 private:
  void CopySlot(std::size_t to, const Branch& from, std::size_t slot) {
    start[to] = from.start[slot];
    room[to] = from.room[slot];
    child[to] = from.child[slot];
  }
};

template <typename Node>
union NodePool<Node>::Slot {
  Node node;
  Slot* next;
};

template <typename Node>
NodePool<Node>::NodePool() = default;
template <typename Node>
NodePool<Node>::~NodePool() = default;
template <typename Node>
NodePool<Node>::NodePool(NodePool&&) noexcept = default;
template <typename Node>
NodePool<Node>& NodePool<Node>::operator=(NodePool&&) noexcept = default;

template <typename Node>
bool NodePool<Node>::Reserve(std::size_t nodes) {
  assert(nodes <= kNodesPerChunk);
  if (spare_count_ >= nodes) return true;
  try {
    chunks_.push_back(std::make_unique_for_overwrite<Slot[]>(kNodesPerChunk));
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (std::size_t i = kNodesPerChunk; i > 0; --i) Return(&chunks_.back()[i - 1].node);
  return true;
}

template <typename Node>
Node* NodePool<Node>::Take() {
  assert(spare_ != nullptr);
  Slot* const slot = spare_;
  spare_ = slot->next;
  --spare_count_;
  Node* const node = new (&slot->node) Node;
  node->Clear();
  return node;
}

template <typename Node>
void NodePool<Node>::Return(Node* node) {
  auto* const slot = reinterpret_cast<Slot*>(node);
  slot->next = spare_;
  spare_ = slot;
  ++spare_count_;
}

template <typename Node>
NodePool<Node>& BlockTree::Pool() {
  if constexpr (std::is_same_v<Node, Leaf>) {
    return leaves_;
  } else {
    return branches_;
  }
}

BlockTree::BlockTree() = default;
BlockTree::~BlockTree() = default;
BlockTree::BlockTree(BlockTree&&) noexcept = default;
BlockTree& BlockTree::operator=(BlockTree&&) noexcept = default;

// ---- finding ----

std::uint64_t BlockTree::LargestFree() const {
  if (root_ == nullptr) return 0;
  return depth_ == 0 ? static_cast<Leaf*>(root_)->Room() : static_cast<Branch*>(root_)->Room();
}

BlockTree::Block BlockTree::At(const Cursor& at) { return at.leaf->At(at.leaf_slot); }

void BlockTree::Seek(std::uint64_t position, Cursor& at) const {
  void* node = root_;
  for (std::size_t level = 0; level < depth_; ++level) {
    auto* const branch = static_cast<Branch*>(node);
    at.branch[level] = branch;
    at.slot[level] = branch->SlotOf(position);
    node = branch->child[at.slot[level]];
  }
  at.leaf = static_cast<Leaf*>(node);
  at.leaf_slot = at.leaf->SlotOf(position);
}

bool BlockTree::FirstWithRoom(std::uint64_t units, Cursor& at) const {
  if (root_ == nullptr) return false;
  if (depth_ == 0) {
    at.leaf = static_cast<Leaf*>(root_);
    at.leaf_slot = at.leaf->FirstWithRoom(0, units);
    return at.leaf_slot < at.leaf->count;
  }
  at.branch[0] = static_cast<Branch*>(root_);
  at.slot[0] = at.branch[0]->FirstWithRoom(0, units);
  if (at.slot[0] == at.branch[0]->count) return false;
  DescendToRoom(units, 0, at);
  return true;
}

bool BlockTree::NextWithRoom(std::uint64_t units, Cursor& at) const {
  at.leaf_slot = at.leaf->FirstWithRoom(at.leaf_slot + 1, units);
  if (at.leaf_slot < at.leaf->count) return true;
  for (std::size_t level = depth_; level-- > 0;) {
    const std::size_t slot = at.branch[level]->FirstWithRoom(at.slot[level] + 1, units);
    if (slot == at.branch[level]->count) continue;
    at.slot[level] = slot;
    DescendToRoom(units, level, at);
    return true;
  }
  return false;
}

/// Goes on from a slot of `level` that has the room.
void BlockTree::DescendToRoom(std::uint64_t units, std::size_t level, Cursor& at) const {
  for (; level + 1 < depth_; ++level) {
    at.branch[level + 1] = at.branch[level]->BranchAt(at.slot[level]);
    at.slot[level + 1] = at.branch[level + 1]->FirstWithRoom(0, units);
  }
  at.leaf = at.branch[level]->LeafAt(at.slot[level]);
  at.leaf_slot = at.leaf->FirstWithRoom(0, units);
  assert(at.leaf_slot < at.leaf->count);
}

/// The block before or after that at `at`, which is the first or last of its leaf; one that is not
/// free if there is none.
BlockTree::Block BlockTree::Neighbour(const Cursor& at, bool is_after) const {
  const auto is_edge = [&](std::size_t level) {
    return at.slot[level] == (is_after ? at.branch[level]->count - 1 : 0);
  };
  std::size_t above = depth_;  // levels at or above the one where the ways part
  while (above > 0 && is_edge(above - 1)) --above;
  if (above == 0) return {};
  std::size_t level = above - 1;
  std::size_t slot = is_after ? at.slot[level] + 1 : at.slot[level] - 1;
  const Branch* branch = at.branch[level];
  for (; level + 1 < depth_; ++level) {
    branch = branch->BranchAt(slot);
    slot = is_after ? 0 : branch->count - 1;
  }
  const Leaf* const leaf = branch->LeafAt(slot);
  return leaf->At(is_after ? 0 : leaf->count - 1);
}

// ---- changing ----

/// One change splits at most a node on every level, and adds a root.
bool BlockTree::Reserve() {
  static_assert(kNodesPerChunk > kMaxDepth);
  return leaves_.Reserve(1) && branches_.Reserve(kMaxDepth + 1);
}

void BlockTree::Divide(Cursor& at, const Block* pieces, std::size_t count) {
  Replace(at, 1, pieces, count);
}

std::size_t BlockTree::Release(Cursor& at) {
  Block merged = At(at);
  assert(!merged.is_free);
  merged.is_free = true;
  std::size_t absorbed = 0;
  const auto absorb = [&](const Block& neighbour, bool is_after) {
    if (!is_after) merged.start = neighbour.start;
    merged.units += neighbour.units;
    ++absorbed;
  };

  // Neighbours in other leaves are taken out of the tree first.
  for (const bool is_after : {true, false}) {
    if (at.leaf_slot != (is_after ? at.leaf->count - 1 : 0)) continue;
    const Block neighbour = Neighbour(at, is_after);
    if (!neighbour.is_free) continue;
    const std::uint64_t start = At(at).start;
    Seek(neighbour.start, at);
    Replace(at, 1, nullptr, 0);
    Seek(start, at);
    absorb(neighbour, is_after);
  }

  std::size_t removed = 1;
  if (at.leaf_slot + 1 < at.leaf->count && at.leaf->IsFree(at.leaf_slot + 1)) {
    absorb(at.leaf->At(at.leaf_slot + 1), true);
    ++removed;
  }
  if (at.leaf_slot > 0 && at.leaf->IsFree(at.leaf_slot - 1)) {
    absorb(at.leaf->At(--at.leaf_slot), false);
    ++removed;
  }
  Replace(at, removed, &merged, 1);
  return absorbed;
}

void BlockTree::SetEnd(std::uint64_t end) {
  Cursor at;
  if (root_ == nullptr) root_ = leaves_.Take();
  Seek(end_ == 0 ? 0 : end_ - 1, at);
  const Block last = end_ == 0 ? Block{} : At(at);
  const Block space{last.is_free ? last.start : end_, end - (last.is_free ? last.start : end_),
                    true};
  const Block both[] = {last, space};
  if (end_ == 0) {
    Replace(at, 0, &space, 1);
  } else if (last.is_free) {
    Replace(at, 1, &space, space.units > 0 ? 1 : 0);
  } else {
    Replace(at, 1, both, 2);
  }
  end_ = end;
}

/// Puts `count` blocks in place of `removed` ones of one leaf, from `at` on. Leaves `at` undefined.
void BlockTree::Replace(Cursor& at, std::size_t removed, const Block* blocks, std::size_t count) {
  if (count > removed) MakeSpace(at, count - removed);
  Change change{0, 0, count < removed};
  for (std::size_t i = 0; i < removed; ++i) {
    if (!at.leaf->IsFree(at.leaf_slot + i)) continue;
    change.old_room = std::max(change.old_room, at.leaf->UnitsOf(at.leaf_slot + i));
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (blocks[i].is_free) change.new_room = std::max(change.new_room, blocks[i].units);
  }
  at.leaf->Replace(at.leaf_slot, removed, blocks, count);
  if (depth_ > 0) Repair(at, change);
}

/// Splits until the leaf of `at` takes `count` blocks more. Keeps `at` at its block.
void BlockTree::MakeSpace(Cursor& at, std::size_t count) {
  while (at.leaf->count + count > kLeafSlots) {
    const std::uint64_t start = At(at).start;
    std::size_t level = depth_;  // of the highest node to split: below it all are full
    while (level > 0 && at.branch[level - 1]->count == kBranchSlots) --level;
    if (level == 0) {
      if (depth_ == 0) {
        AddLevel(at.leaf);
      } else {
        AddLevel(at.branch[0]);
      }
    } else if (level == depth_) {
      Split<Leaf>(*at.branch[level - 1], at.slot[level - 1]);
    } else {
      Split<Branch>(*at.branch[level - 1], at.slot[level - 1]);
    }
    Seek(start, at);
  }
}

template <typename Node>
void BlockTree::AddLevel(Node* old_root) {
  assert(depth_ < kMaxDepth);
  Branch* const root = branches_.Take();
  root->Insert(0, old_root);
  root_ = root;
  ++depth_;
}

/// Moves the upper half of a child into a new one beside it. The parent has a slot left.
template <typename Node>
void BlockTree::Split(Branch& parent, std::size_t slot) {
  Node* const left = static_cast<Node*>(parent.child[slot]);
  Node* const right = Pool<Node>().Take();
  right->TakeFrom(*left, left->count / 2);
  parent.Set(slot, left);
  parent.Insert(slot + 1, right);
}

/// Brings the branches above a changed leaf up to date, as far as the change reaches.
void BlockTree::Repair(Cursor& at, Change change) {
  std::size_t level = depth_ - 1;
  bool is_changed = Update(*at.branch[level], at.slot[level], at.leaf, change);
  for (; is_changed && level > 0; --level) {
    is_changed = Update(*at.branch[level - 1], at.slot[level - 1], at.branch[level], change);
  }
  while (depth_ > 0 && static_cast<Branch*>(root_)->count == 1) {
    auto* const root = static_cast<Branch*>(root_);
    root_ = root->child[0];
    branches_.Return(root);
    --depth_;
  }
}

/// Passes the `change` of a child on to its parent. @return whether that one has changed too, and
/// how in `change`.
template <typename Node>
bool BlockTree::Update(Branch& parent, std::size_t slot, Node* node, Change& change) {
  if (node->count == 0) {
    change = {parent.room[slot], 0, true};
    parent.Erase(slot);
    Pool<Node>().Return(node);
    return true;
  }
  if (change.is_smaller && Merge<Node>(parent, slot)) {
    change = {kUnused, 0, true};  // either child may have had the largest room of the parent
    return true;
  }
  const std::uint64_t old_room = parent.room[slot];
  std::uint64_t room = old_room;
  if (change.new_room >= old_room) {
    room = change.new_room;
  } else if (change.old_room >= old_room) {
    room = node->Room();
  }
  if (room == old_room && node->Start() == parent.start[slot]) return false;
  parent.start[slot] = node->Start();
  parent.room[slot] = room;
  change = {old_room, room, false};
  return true;
}

/// Joins the child at `slot` with a neighbour if both are sparse. @return whether it did.
template <typename Node>
bool BlockTree::Merge(Branch& parent, std::size_t slot) {
  const auto is_sparse = [&](std::size_t i) {
    return static_cast<Node*>(parent.child[i])->count <= Node::kSparse;
  };
  if (!is_sparse(slot)) return false;
  if (slot > 0 && is_sparse(slot - 1)) {
    --slot;
  } else if (slot + 1 == parent.count || !is_sparse(slot + 1)) {
    return false;
  }
  Node* const left = static_cast<Node*>(parent.child[slot]);
  Node* const right = static_cast<Node*>(parent.child[slot + 1]);
  left->TakeFrom(*right, 0);
  parent.Set(slot, left);
  parent.Erase(slot + 1);
  Pool<Node>().Return(right);
  return true;
}

}  // namespace mori::shmem
