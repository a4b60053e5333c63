#include "bootstrap/tree.hpp"

#include <algorithm>

namespace mori::shmem {

std::vector<int> HeapChildren(int index, int count) {
  std::vector<int> children;
  const int first = index * kTreeFanOut + 1;
  for (int child = first; child < std::min(first + kTreeFanOut, count); ++child)
    children.push_back(child);
  return children;
}

Tree::Tree(std::span<const std::uint32_t> node_of) : size_(static_cast<int>(node_of.size())) {
  const auto nodes = node_of.empty() ? 1 : *std::ranges::max_element(node_of) + 1;
  if (nodes == 1) return;
  node_of_.assign(node_of.begin(), node_of.end());
  first_of_.assign(nodes + 1, 0);
  for (const std::uint32_t node : node_of_) ++first_of_[node + 1];
  for (std::uint32_t node = 0; node < nodes; ++node) first_of_[node + 1] += first_of_[node];
  std::vector<std::uint32_t> came(nodes);
  ranks_.resize(node_of_.size());
  for (std::size_t rank = 0; rank < node_of_.size(); ++rank) {
    const std::uint32_t node = node_of_[rank];
    index_of_.push_back(came[node]++);
    ranks_[first_of_[node] + index_of_[rank]] = static_cast<std::int32_t>(rank);
  }
}

std::optional<int> Tree::Parent(int rank) const {
  if (rank == 0) return std::nullopt;
  if (node_of_.empty()) return HeapParent(rank);
  const auto at = static_cast<std::size_t>(rank);
  const std::uint32_t node = node_of_[at];
  if (index_of_[at] == 0) return ranks_[first_of_[HeapParent(static_cast<int>(node))]];
  return ranks_[first_of_[node] + HeapParent(static_cast<int>(index_of_[at]))];
}

std::vector<int> Tree::Children(int rank) const {
  if (node_of_.empty()) return HeapChildren(rank, size_);
  std::vector<int> children;
  const auto at = static_cast<std::size_t>(rank);
  const std::uint32_t node = node_of_[at];
  if (index_of_[at] == 0) {
    // Other nodes first: what goes over the network takes longer.
    const auto nodes = static_cast<int>(first_of_.size()) - 1;
    for (const int other : HeapChildren(static_cast<int>(node), nodes))
      children.push_back(ranks_[first_of_[static_cast<std::size_t>(other)]]);
  }
  const std::uint32_t count = first_of_[node + 1] - first_of_[node];
  for (const int index : HeapChildren(static_cast<int>(index_of_[at]), static_cast<int>(count)))
    children.push_back(ranks_[first_of_[node] + static_cast<std::uint32_t>(index)]);
  return children;
}

std::optional<int> Tree::ChildTowards(int from, int to) const {
  for (int at = to;;) {
    const std::optional<int> parent = Parent(at);
    if (!parent) return std::nullopt;
    if (*parent == from) return at;
    at = *parent;
  }
}

}  // namespace mori::shmem
