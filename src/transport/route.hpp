// How each PE's memory is reached from here: chosen once, from what the PEs said of themselves.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.hpp"
#include "base/status.hpp"
#include "topology/topology.hpp"

namespace mori::shmem {

/// kNear: load and store, in this PE's addresses. kRemote: operations of a network.
enum class Reach { kSelf, kNear, kRemote };

struct Route {
  Reach reach = Reach::kSelf;
  /// Why no other was taken, for people: "another node", "MORI_DISABLE_P2P".
  std::string_view why;
};

/// The routes from one PE to all, by PE. Both ends of a pair choose alike, since all PEs have the
/// same settings and the same topology.
std::vector<Route> ChooseRoutes(const Config& config, const Topology& topology, int self);

/// Whether any PE of the world needs a network to reach another: the same answer on all PEs.
bool NeedsNetwork(const Config& config, const Topology& topology);

/// "self", "p2p" or the name of the network.
std::string_view RouteName(const Route& route, std::string_view network);

}  // namespace mori::shmem
