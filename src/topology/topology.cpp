#include "topology/topology.hpp"

#include <map>

namespace mori::shmem {

Topology Topology::Of(std::span<const std::string> node_ids) {
  Topology topology;
  std::map<std::string_view, int> known;
  for (std::size_t pe = 0; pe < node_ids.size(); ++pe) {
    const auto [entry, is_new] = known.emplace(node_ids[pe], topology.n_nodes());
    if (is_new) topology.nodes_.emplace_back();
    std::vector<int>& pes = topology.nodes_[static_cast<std::size_t>(entry->second)];
    topology.node_of_.push_back(entry->second);
    topology.index_of_.push_back(static_cast<int>(pes.size()));
    pes.push_back(static_cast<int>(pe));
  }
  return topology;
}

}  // namespace mori::shmem
