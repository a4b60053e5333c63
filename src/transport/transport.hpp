// Seam: how memory of other PEs comes into this PE's addresses.
//
// Implementations: p2p (load and store, within a node).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.hpp"
#include "bootstrap/bootstrap.hpp"
#include "node/fd_exchange.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  /// Whether `pe`, another one, is reached by it.
  virtual bool Reaches(int pe) const = 0;
  using Memories = std::vector<std::unique_ptr<DeviceMemory>>;
  /// Makes `mine` reachable for the PEs that this transport reaches, and takes theirs. Collective
  /// over these PEs, who all pass the same number of pieces and the same sizes.
  /// @return the peers' memory by PE of the world and piece; empty where it is not reached, and for
  ///   this PE. After an error other than kPeerLost and kTimeout the PEs are in step, and the next
  ///   call may succeed.
  virtual Result<std::vector<Memories>> Share(std::span<const std::unique_ptr<DeviceMemory>> mine,
                                              const Deadline& deadline) = 0;
};

/// The transport to `near_pes`, this PE among them: all PEs of the node, by index as in `exchange`,
/// or this PE alone.
std::unique_ptr<Transport> MakeP2pTransport(DeviceRuntime* runtime, FdExchange* exchange,
                                            std::vector<int> near_pes, int self, int world_size);

}  // namespace mori::shmem
