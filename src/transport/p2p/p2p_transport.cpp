#include "transport/p2p/p2p_transport.hpp"

namespace mori::shmem {

Result<std::vector<std::unique_ptr<DeviceMemory>>> P2pTransport::Share(const DeviceMemory& mine,
                                                                       const Deadline& deadline) {
  std::vector<std::unique_ptr<DeviceMemory>> peers(static_cast<std::size_t>(world_size_));
  if (node_pes_.size() == 1) return peers;
  auto exported = mine.Export();
  // The others wait for us even if we have nothing for them.
  auto gathered = exchange_->AllGather(exported.ok() ? exported->get() : -1, deadline);
  MORI_RETURN_IF_ERROR(exported.status());
  MORI_ASSIGN_OR_RETURN(auto descriptors, std::move(gathered));
  for (std::size_t i = 0; i < node_pes_.size(); ++i) {
    if (node_pes_[i] == self_) continue;
    MORI_ASSIGN_OR_RETURN(peers[static_cast<std::size_t>(node_pes_[i])],
                          runtime_->Import(std::move(descriptors[i]), mine.bytes()));
  }
  return peers;
}

}  // namespace mori::shmem
