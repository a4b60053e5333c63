// Which PEs share a node, as pure functions of what the PEs said of themselves.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mori::shmem {

/// Nodes are numbered by their first PE, in ascending order: the same on every PE. PEs of a node
/// may lie anywhere in the world. Read-only once made.
class Topology {
 public:
  /// @param node_ids  of every PE, by PE; equal for PEs of one node
  static Topology Of(std::span<const std::string> node_ids);

  int n_pes() const { return static_cast<int>(node_of_.size()); }
  int n_nodes() const { return static_cast<int>(nodes_.size()); }
  int NodeOf(int pe) const { return node_of_[static_cast<std::size_t>(pe)]; }
  /// Ascending.
  const std::vector<int>& PesOf(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  /// PEs of the node of `pe`, with it. Ascending.
  const std::vector<int>& PesAround(int pe) const { return PesOf(NodeOf(pe)); }
  /// Place of a PE among those of its node.
  int IndexOf(int pe) const { return index_of_[static_cast<std::size_t>(pe)]; }
  /// The first PE of a node.
  int LeaderOf(int node) const { return PesOf(node).front(); }
  bool AreTogether(int a, int b) const { return NodeOf(a) == NodeOf(b); }

 private:
  std::vector<std::vector<int>> nodes_;
  std::vector<int> node_of_;
  std::vector<int> index_of_;
};

}  // namespace mori::shmem
