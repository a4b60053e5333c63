// Load and store within a node: peers' memory is imported by descriptor and mapped by the heap.
#pragma once

#include <algorithm>

#include "transport/transport.hpp"

namespace mori::shmem {

class P2pTransport final : public Transport {
 public:
  P2pTransport(DeviceRuntime* runtime, FdExchange* exchange, std::vector<int> near_pes, int self,
               int world_size)
      : runtime_(runtime),
        exchange_(exchange),
        near_pes_(std::move(near_pes)),
        self_(self),
        world_size_(world_size) {}

  std::string_view name() const override { return "p2p"; }
  bool Reaches(int pe) const override {
    return pe != self_ && std::ranges::find(near_pes_, pe) != near_pes_.end();
  }
  Result<std::vector<Memories>> Share(std::span<const std::unique_ptr<DeviceMemory>> mine,
                                      const Deadline& deadline) override;

 private:
  DeviceRuntime* runtime_;
  FdExchange* exchange_;
  std::vector<int> near_pes_;
  int self_;
  int world_size_;
};

}  // namespace mori::shmem
