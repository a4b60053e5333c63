// The blocks of a range, in the order of their offsets, found by offset or by free length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mori::shmem {

/// Unused nodes of one kind, taken from chunks that stay where they are.
template <typename Node>
class NodePool {
 public:
  NodePool();
  ~NodePool();
  NodePool(NodePool&&) noexcept;
  NodePool& operator=(NodePool&&) noexcept;

  /// Makes sure that `Take()` succeeds `nodes` times.
  /// @return false if there is no memory.
  bool Reserve(std::size_t nodes);
  Node* Take();
  void Return(Node* node);

 private:
  union Slot;
  std::vector<std::unique_ptr<Slot[]>> chunks_;
  Slot* spare_ = nullptr;
  std::size_t spare_count_ = 0;
};

/// A B+ tree over blocks, free and live, that tile [0, end). A leaf holds the borders between its
/// blocks; a branch knows the largest free block below each child. Calls cost O(log blocks), base 3
/// at worst, about 10 in practice. No two free blocks are neighbours.
///
/// Lengths are in units of the caller's choice. Not thread-safe. Nothing throws. After a move only
/// destruction and assignment are left to the source.
class BlockTree {
 public:
  struct Block {
    std::uint64_t start;
    std::uint64_t units;
    bool is_free;
    std::uint64_t end() const { return start + units; }
  };

  /// Of two neighbours one holds 6 slots or more, so nodes hold over 3 on average: so many levels
  /// outlast any memory.
  static constexpr std::size_t kMaxDepth = 20;
  struct Leaf;
  struct Branch;
  /// The way from the root to a block. Valid until the tree changes.
  struct Cursor {
    std::array<Branch*, kMaxDepth> branch;
    std::array<std::size_t, kMaxDepth> slot;
    Leaf* leaf;
    std::size_t leaf_slot;
  };

  BlockTree();
  ~BlockTree();
  BlockTree(BlockTree&&) noexcept;
  BlockTree& operator=(BlockTree&&) noexcept;

  std::uint64_t end() const { return end_; }
  /// Length of the largest free block; 0 if there is none.
  std::uint64_t LargestFree() const;

  static Block At(const Cursor& at);
  /// Moves to the block that contains `position`, which is below `end()`.
  void Seek(std::uint64_t position, Cursor& at) const;
  /// Moves to the first free block, or the next one after `at`, of at least `units`, which are not
  /// 0.
  /// @return false, with `at` undefined, if there is none.
  bool FirstWithRoom(std::uint64_t units, Cursor& at) const;
  bool NextWithRoom(std::uint64_t units, Cursor& at) const;

  /// Makes sure that the next `Divide()` or `SetEnd()` finds its nodes.
  /// @return false if there is no memory.
  bool Reserve();
  /// Puts `count` blocks, at most 3, which tile that at `at`, in its place.
  void Divide(Cursor& at, const Block* pieces, std::size_t count);
  /// Makes the live block at `at` free, as one with its free neighbours.
  /// @return how many of these there were. Needs no nodes.
  std::size_t Release(Cursor& at);
  /// Adds free space at the end, or takes some away. There is enough of it.
  void SetEnd(std::uint64_t end);

 private:
  /// What happened in a node: the largest free length among the affected slots before and after,
  /// and whether it has fewer slots now.
  struct Change {
    std::uint64_t old_room;
    std::uint64_t new_room;
    bool is_smaller;
  };

  void DescendToRoom(std::uint64_t units, std::size_t level, Cursor& at) const;
  Block Neighbour(const Cursor& at, bool is_after) const;

  void Replace(Cursor& at, std::size_t removed, const Block* blocks, std::size_t count);
  void MakeSpace(Cursor& at, std::size_t count);
  template <typename Node>
  void AddLevel(Node* old_root);
  template <typename Node>
  void Split(Branch& parent, std::size_t slot);
  void Repair(Cursor& at, Change change);
  template <typename Node>
  bool Update(Branch& parent, std::size_t slot, Node* node, Change& change);
  template <typename Node>
  bool Merge(Branch& parent, std::size_t slot);
  template <typename Node>
  NodePool<Node>& Pool();

  std::uint64_t end_ = 0;
  std::size_t depth_ = 0;  ///< levels of branches above the leaves
  void* root_ = nullptr;   ///< a leaf if `depth_` is 0; null until the first block
  NodePool<Leaf> leaves_;
  NodePool<Branch> branches_;
};

}  // namespace mori::shmem
