// Seam: how this PE reaches the memory of others.
//
// Implementations: p2p (load and store, within a node). RDMA between nodes supplies the same.
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

/// How a PE is reached from here.
enum class Reach { kNone, kSelf, kP2p };
std::string_view ReachName(Reach reach);

/// What selection needs to know of a PE.
struct Peer {
  int pe = 0;
  std::string node_id;
  std::string host;
};

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

/// Reach of every PE from PE `self`, by what this machine and `config` allow.
/// @return kUnsupported if one is not reached; the sentence names it and says why.
Result<std::vector<Reach>> SelectReach(const Config& config, int self,
                                       const std::vector<Peer>& peers);

/// The transport to the PEs of this node: `node_pes` by index, as in `exchange`.
std::unique_ptr<Transport> MakeP2pTransport(DeviceRuntime* runtime, FdExchange* exchange,
                                            std::vector<int> node_pes, int self, int world_size);

}  // namespace mori::shmem
