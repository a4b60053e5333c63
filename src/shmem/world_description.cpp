// What a World says of itself to people.
#include <unistd.h>

#include "shmem/world.hpp"

namespace mori::shmem {

std::string World::Describe() const {
  const HeapStats stats = heap_->Stats();
  std::string text = fmt::format("PE {} of {}, process {} on host {}\n", rank_, size_, ::getpid(),
                                 pes_[static_cast<std::size_t>(rank_)].host);
  text += fmt::format("backend  {} ({}); MORI_SHMEM_BACKEND={}\n", BackendName(runtime_->backend()),
                      runtime_->Describe(), BackendName(config_.backend));
  text += fmt::format("heap     {} mode, {}, {} used in {} blocks, largest free block {}\n",
                      HeapModeName(heap_->mode()), FormatByteSize(stats.total_bytes),
                      FormatByteSize(stats.used_bytes), stats.live_blocks,
                      FormatByteSize(stats.largest_free_bytes));
  text += fmt::format("mapping  {}\n", heap_->Describe());
  text += fmt::format("memory   {}: {}\n", HeapTypeName(config_.heap_type),
                      runtime_->DescribeHeapType(config_.heap_type));
  text += fmt::format("node     {}, PEs {}\n", pes_[static_cast<std::size_t>(rank_)].node_id,
                      PeList(topology_.PesAround(rank_)));
  text += fmt::format("waiting  {}\n", board_->may_spin()
                                           ? "spins first: each PE of the node can have a CPU"
                                           : "sleeps early: PEs of the node share CPUs");
  if (network_) text += fmt::format("network  {}\n", network_->Describe());
  for (const PeInfo& info : pes_) {
    text += fmt::format(
        "reach    PE {}: {} (host {}, process {}{}{})\n", info.pe,
        RouteName(routes_[static_cast<std::size_t>(info.pe)], network_ ? network_->name() : ""),
        info.host, info.process_id, info.device.empty() ? "" : ", GPU ", info.device);
  }
  return text;
}

}  // namespace mori::shmem
