// All that one PE holds between init and finalize.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/unique_id.hpp"
#include "heap/heap.hpp"
#include "mori/shmem/host_ops.hpp"
#include "node/board.hpp"
#include "shmem/device_state.hpp"
#include "shmem/drop_box.hpp"
#include "shmem/group.hpp"
#include "shmem/operations.hpp"
#include "shmem/pe_info.hpp"
#include "shmem/peer_watch.hpp"
#include "shmem/proxy.hpp"
#include "shmem/published_context.hpp"
#include "shmem/registered_buffers.hpp"
#include "shmem/streams.hpp"
#include "topology/topology.hpp"
#include "transport/remote.hpp"
#include "transport/route.hpp"
#include "transport/staged_transport.hpp"
#include "transport/transport.hpp"

namespace mori::shmem {

/// Owns the parts in order of creation. The collective calls come from one thread of the PE at a
/// time.
class World {
 public:
  /// Joins. `config` may be an error: it is then told to all others, and returned. Collective;
  /// every PE gets the error of any.
  /// @param waited  for other ranks, before: one budget is for all of init
  static Result<std::unique_ptr<World>> Create(const Result<Config>& config,
                                               const Rendezvous& rendezvous, int rank, int size,
                                               std::chrono::milliseconds waited);
  ~World();

  /// Unlike the address, never used again in this process.
  std::uint64_t id() const { return id_; }
  int my_pe() const { return rank_; }
  int n_pes() const { return size_; }
  const Config& config() const { return config_; }
  const HostContext* context() const { return published_->context(); }
  const Heap& heap() const { return *heap_; }
  const DeviceRuntime& runtime() const { return *runtime_; }
  const SymmetricMemory& memory() const { return *memory_; }
  const Operations& operations() const { return *operations_; }
  /// For waits that spin, beside each look: what PEs of other nodes ask of this one goes on.
  void MakeProgress() const {
    if (network_ != nullptr) network_->channel().Progress();
  }

  /// Collective calls; see shmem_api.hpp.
  Result<void*> Malloc(std::uint64_t bytes, std::uint64_t alignment, unsigned flags,
                       const char* call);
  Status Free(void* ptr);
  Status BarrierAll();
  Status Finalize();
  /// `Finalize()` gives all ranks an id for their next init, which this one makes if it is rank 0:
  /// those of several nodes have no other way to one.
  void HandOnAnId() { hands_on_an_id_ = true; }

  /// Nobody finds this PE any more: waits of other threads end with an error. Thread-safe.
  void StartClosing() { is_closing_.store(true, std::memory_order_relaxed); }
  /// kNotInitialized once `StartClosing()` was called. Thread-safe.
  Status Closing() const;

  /// Makes the live block at `ptr` an owner's, who drops it by the token in `drop_box()`. It is
  /// freed at the first collective call after all PEs' owners have dropped it. Local.
  Result<std::uint64_t> Own(const void* ptr);
  const std::shared_ptr<DropBox>& drop_box() const { return drop_box_; }

  /// Local calls.
  Status InitModule(void* module) const;
  Status InitLibrary(void* library) const;
  /// What this PE puts on streams. @return kUnsupported in a build without kernels
  Result<Streams*> streams() const;
  RegisteredBuffers& buffers() { return buffers_; }
  /// In a forked child, which has none of the bootstrap's connections: publishes that there is no
  /// PE here.
  void AbandonAfterFork();
  /// Success while no PE is known to be lost.
  Status Health() const { return peers_->Health(); }
  const PeerWatch& peers() const { return *peers_; }
  /// Why a kernel of this PE ended early, once: what every call of the host ends with that has
  /// nothing worse to say.
  Status Fault() const;
  bool may_spin() const { return board_->may_spin(); }
  /// For `mori info`: what was chosen, a line each.
  std::string Describe() const;

 private:
  World(Config config, int rank, int size);

  Status Connect(const Result<Config>& config, const Rendezvous& rendezvous,
                 std::chrono::milliseconds waited);
  Status Build(const Deadline& deadline);
  Status ExchangeInfo(const FdListener::Token& token, const WaitLimit& limit);
  Status ShareNode(FdListener listener, const Deadline& deadline);
  Status OpenNetwork(const Deadline& deadline);
  Status ConnectNetwork(const Deadline& deadline);
  Status ShareMemory(const Deadline& deadline);
  void Publish();
  /// Meets all PEs in `call`, which must all propose the same.
  Status Agree(const Proposal& proposal, const char* call);
  /// Frees what the owners on all PEs have dropped. Collective.
  Status CollectDropped();
  /// Frees a live block. @return as `Heap::Free()`
  Result<Heap::Freed> FreeBlock(const void* ptr);
  Status MeetToFinalize();
  /// Whatever goes wrong: then there is no id for a next init, which says so.
  void ShareNextId();
  /// Collective, where memory went: returns once all PEs have unmapped it, with the error of any.
  Status AwaitUnmapped(const Heap::Freed& freed);
  Result<HeapType> TypeFor(unsigned flags) const;
  bool IsRemote(int pe) const {
    return routes_[static_cast<std::size_t>(pe)].reach == Reach::kRemote;
  }
  Result<std::unique_ptr<Streams>> MakeDeviceStreams() const;
  /// Serves the ring of this PE's kernels, if they have one.
  Status StartProxy();
  void MakeOperations();
  /// Whether this PE's GPU reaches those of others. Warns, once, of links without atomics.
  Status CheckLinks();
  /// Returns once what this PE put on streams, and over the network, has happened.
  Status CompletePosted();
  /// The same of what its kernels have put on their ring by now.
  Status CompleteRing();
  /// Whether a wait for the device goes on: not if a PE is lost, or it takes too long.
  Status KeepsWaiting(std::chrono::milliseconds so_far) const;

  bool hands_on_an_id_ = false;
  const std::uint64_t id_;
  const Config config_;
  const int rank_;
  const int size_;
  std::unique_ptr<DeviceRuntime> runtime_;
  std::unique_ptr<DeviceRuntime> host_runtime_ =
      MakeHostRuntime();  ///< of what PEs of a node share besides their heaps
  std::unique_ptr<Bootstrap> bootstrap_;
  TextPool texts_;
  std::vector<PeInfo> pes_;
  Topology topology_;
  std::vector<Route> routes_;
  std::unique_ptr<FdExchange> fd_exchange_;
  std::unique_ptr<Board> board_;
  std::map<int, std::string> without_atomics_;  ///< links that have none, by PE
  std::unique_ptr<PeerWatch> peers_;
  std::optional<Group> group_;
  std::unique_ptr<Transport> p2p_;
  std::unique_ptr<DeviceAccess> device_access_;  ///< null without a network to a device
  std::unique_ptr<RemoteTransport> network_;
  std::unique_ptr<Leaders> leaders_;  ///< where nodes meet over the network
  std::unique_ptr<Heap> heap_;
  std::optional<SymmetricMemory> memory_;
  std::unique_ptr<DeviceState> device_state_;  ///< null for the host, which has no kernels
  std::optional<Operations> operations_;
  Result<std::unique_ptr<Streams>> streams_ = Status(ErrorCode::kInternal, "not made yet");
  std::unique_ptr<Proxy> proxy_;  ///< null where kernels have no ring
  std::shared_ptr<DropBox> drop_box_ = std::make_shared<DropBox>();
  PublishedContext* const published_;
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> is_ending_{false};  ///< no wait lasts any more

  RegisteredBuffers buffers_;
};

}  // namespace mori::shmem
