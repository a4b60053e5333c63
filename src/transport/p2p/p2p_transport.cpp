#include "transport/p2p/p2p_transport.hpp"

namespace mori::shmem {
namespace {

Result<std::vector<UniqueFd>> ExportAll(std::span<const std::unique_ptr<DeviceMemory>> memories) {
  std::vector<UniqueFd> exported;
  for (const auto& memory : memories) {
    MORI_ASSIGN_OR_RETURN(UniqueFd one, memory->Export());
    exported.push_back(std::move(one));
  }
  return exported;
}

}  // namespace

Result<std::vector<Transport::Memories>> P2pTransport::Share(
    std::span<const std::unique_ptr<DeviceMemory>> mine, const Deadline& deadline) {
  std::vector<Memories> peers(static_cast<std::size_t>(world_size_));
  if (near_pes_.size() == 1) return peers;
  const auto exported = ExportAll(mine);
  std::vector<int> raw;
  if (exported.ok()) {
    for (const UniqueFd& fd : *exported) raw.push_back(fd.get());
  }
  // The others wait for us even if we have nothing for them.
  auto gathered = exchange_->AllGather(raw, mine.size(), deadline);
  MORI_RETURN_IF_ERROR(exported.status());
  MORI_ASSIGN_OR_RETURN(auto descriptors, std::move(gathered));
  for (std::size_t i = 0; i < near_pes_.size(); ++i) {
    if (near_pes_[i] == self_) continue;
    Memories& theirs = peers[static_cast<std::size_t>(near_pes_[i])];
    for (std::size_t piece = 0; piece < mine.size(); ++piece) {
      MORI_ASSIGN_OR_RETURN(
          auto memory,
          runtime_->Import(std::move(descriptors[i * mine.size() + piece]), mine[piece]->bytes()));
      theirs.push_back(std::move(memory));
    }
  }
  return peers;
}

}  // namespace mori::shmem
