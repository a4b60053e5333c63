#include "transport/route.hpp"

namespace mori::shmem {

std::vector<Route> ChooseRoutes(const Config& config, const Topology& topology, int self) {
  std::vector<Route> routes;
  for (int pe = 0; pe < topology.n_pes(); ++pe) {
    if (pe == self) {
      routes.push_back({Reach::kSelf, ""});
    } else if (!topology.AreTogether(self, pe)) {
      routes.push_back({Reach::kRemote, "another node"});
    } else if (config.disable_p2p) {
      routes.push_back({Reach::kRemote, "MORI_DISABLE_P2P"});
    } else {
      routes.push_back({Reach::kNear, "the same node"});
    }
  }
  return routes;
}

bool NeedsNetwork(const Config& config, const Topology& topology) {
  return topology.n_nodes() > 1 || (config.disable_p2p && topology.n_pes() > 1);
}

std::string_view RouteName(const Route& route, std::string_view network) {
  switch (route.reach) {
    case Reach::kSelf: return "self";
    case Reach::kNear: return "p2p";
    case Reach::kRemote: return network;
  }
  return "";
}

}  // namespace mori::shmem
