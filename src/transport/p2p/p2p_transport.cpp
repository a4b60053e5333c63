#include "transport/p2p/p2p_transport.hpp"

namespace mori::shmem {

Result<std::vector<std::unique_ptr<DeviceMemory>>> P2pTransport::Share(const DeviceMemory& mine,
                                                                       const Deadline& deadline) {
  std::vector<std::unique_ptr<DeviceMemory>> peers(static_cast<std::size_t>(world_size_));
  if (node_pes_.size() == 1) return peers;
  MORI_ASSIGN_OR_RETURN(UniqueFd exported, mine.Export());
  MORI_ASSIGN_OR_RETURN(auto descriptors, exchange_->AllGather(exported.get(), deadline));
  for (std::size_t i = 0; i < node_pes_.size(); ++i) {
    if (node_pes_[i] == self_) continue;
    MORI_ASSIGN_OR_RETURN(peers[static_cast<std::size_t>(node_pes_[i])],
                          runtime_->Import(std::move(descriptors[i]), mine.bytes()));
  }
  return peers;
}

}  // namespace mori::shmem
