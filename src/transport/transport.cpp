#include "transport/transport.hpp"

#include "transport/p2p/p2p_transport.hpp"

namespace mori::shmem {

std::unique_ptr<Transport> MakeP2pTransport(DeviceRuntime* runtime, FdExchange* exchange,
                                            std::vector<int> near_pes, int self, int world_size) {
  return std::make_unique<P2pTransport>(runtime, exchange, std::move(near_pes), self, world_size);
}

}  // namespace mori::shmem
