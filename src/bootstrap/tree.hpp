// The shape of the tree along which the ranks of a world exchange messages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace mori::shmem {

/// Most children of one kind that a rank of the tree has: depth grows with log8.
inline constexpr int kTreeFanOut = 8;

/// Place `index` of `count` in a heap, where every place but 0 has a parent before it.
inline int HeapParent(int index) { return (index - 1) / kTreeFanOut; }
std::vector<int> HeapChildren(int index, int count);

/// A tree that crosses the network once per node: the first rank of each node leads it. Leaders
/// form a heap by node; the ranks of a node form a heap by rank, with the leader at its top. Ranks
/// of a node may lie anywhere. Read-only once made.
class Tree {
 public:
  /// All ranks on one node.
  explicit Tree(int size) : size_(size) {}
  /// @param node_of  of every rank: nodes numbered from 0 by their first rank, ascending
  explicit Tree(std::span<const std::uint32_t> node_of);

  int size() const { return size_; }
  int nodes() const { return first_of_.empty() ? 1 : static_cast<int>(first_of_.size()) - 1; }
  /// Nothing for rank 0, at the top.
  std::optional<int> Parent(int rank) const;
  std::vector<int> Children(int rank) const;
  /// The child of `from` that `to` is or lies below; nothing if it does not lie below `from`.
  std::optional<int> ChildTowards(int from, int to) const;

 private:
  int size_;
  // Empty where all ranks are on one node.
  std::vector<std::uint32_t> node_of_;
  std::vector<std::uint32_t> index_of_;  ///< of a rank within its node
  std::vector<std::uint32_t> first_of_;  ///< of a node: where its ranks begin in `ranks_`
  std::vector<std::int32_t> ranks_;      ///< by node, ascending
};

}  // namespace mori::shmem
