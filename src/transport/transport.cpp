#include "transport/transport.hpp"

#include "transport/p2p/p2p_transport.hpp"

namespace mori::shmem {

std::string_view ReachName(Reach reach) {
  switch (reach) {
    case Reach::kNone: return "none";
    case Reach::kSelf: return "self";
    case Reach::kP2p: return "p2p";
  }
  return "none";
}

Result<std::vector<Reach>> SelectReach(const Config& config, int self,
                                       const std::vector<Peer>& peers) {
  const std::string& my_node = peers[static_cast<std::size_t>(self)].node_id;
  std::vector<Reach> reach;
  for (const Peer& peer : peers) {
    if (peer.pe == self) {
      reach.push_back(Reach::kSelf);
    } else if (peer.node_id != my_node) {
      return Error(ErrorCode::kUnsupported,
                   "PE {} (host {}) is on another node than PE {} (node {} and {}), and this "
                   "version has no network "
                   "transport: start all PEs on one machine, or check MORI_NODE_ID",
                   peer.pe, peer.host, self, peer.node_id, my_node);
    } else if (config.disable_p2p) {
      return Error(ErrorCode::kUnsupported,
                   "MORI_DISABLE_P2P leaves no way from PE {} to PE {}: this version has no "
                   "network transport",
                   self, peer.pe);
    } else {
      reach.push_back(Reach::kP2p);
    }
  }
  return reach;
}

std::unique_ptr<Transport> MakeP2pTransport(DeviceRuntime* runtime, FdExchange* exchange,
                                            std::vector<int> node_pes, int self, int world_size) {
  return std::make_unique<P2pTransport>(runtime, exchange, std::move(node_pes), self, world_size);
}

}  // namespace mori::shmem
