// How a World comes to be: its parts, in order.
#include <unistd.h>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "base/machine.hpp"
#include "bootstrap/factory.hpp"
#include "bootstrap/init_watch.hpp"
#include "shmem/wait.hpp"
#include "shmem/world.hpp"
#include "transport/factory.hpp"

namespace mori::shmem {
namespace {

Result<std::string> NodeIdOf(const Config& config) {
  return config.node_id.empty() ? BootId() : Result<std::string>(config.node_id);
}

}  // namespace

Result<std::unique_ptr<World>> World::Create(const Result<Config>& config,
                                             const Rendezvous& rendezvous, int rank, int size,
                                             std::chrono::milliseconds waited) {
  std::unique_ptr<World> world(new World(config.ok() ? *config : Config{}, rank, size));
  const std::chrono::milliseconds budget = world->config_.bootstrap_timeout;
  const Deadline deadline = Deadline::After(budget - waited);
  MORI_RETURN_IF_ERROR(world->Connect(config, rendezvous, waited));
  SetLogPe(rank, size);
  const Status built =
      world->Build(deadline.AtLeast(std::min<std::chrono::milliseconds>(budget, kAfterMeeting)));
  if (!built.ok()) {
    // Who notices first tells it: what the bootstrap knows already, it has told.
    if (world->bootstrap_->Health().ok()) world->bootstrap_->Abort(built);
    SetLogPe(0, 0);
    return built;
  }
  world->Publish();
  return world;
}

Status World::Connect(const Result<Config>& config, const Rendezvous& rendezvous,
                      std::chrono::milliseconds waited) {
  BootstrapOptions options;
  options.rank = rank_;
  options.size = size_;
  options.version = MORI_SHMEM_VERSION;
  options.host = HostName();
  options.budget = config_.bootstrap_timeout;
  options.waited = waited;
  options.failure = config.status();
  auto node = NodeIdOf(config_);
  if (node.ok()) options.node = std::move(*node);
  if (options.failure.ok()) options.failure = node.status();
  if (options.failure.ok()) {
    std::string why;
    auto runtime = MakeDeviceRuntime(config_, &why);
    if (!why.empty()) LogDebug("MORI_SHMEM_BACKEND=auto takes the host's memory: {}", why);
    if (runtime.ok()) runtime_ = std::move(*runtime);
    options.failure = runtime.ok() ? CheckHeapConfig(config_, *runtime_) : runtime.status();
    if (options.failure.ok())
      LogDebug("init: {} backend ({})", BackendName(runtime_->backend()), runtime_->Describe());
  }
  if (options.failure.ok() && size_ > 1) {
    auto addresses = SelectOwnAddresses(config_.socket_ifname);
    if (addresses.ok()) options.listen_addresses = std::move(*addresses);
    options.failure = addresses.status();
  }
  LogDebug("init: rank {} of {} meets the others by TCP at {} own address{}", rank_, size_,
           options.listen_addresses.size(), options.listen_addresses.size() == 1 ? "" : "es");
  MORI_ASSIGN_OR_RETURN(bootstrap_, MakeBootstrap(rendezvous, options));
  LogDebug("init: rank {} of {} is connected", rank_, size_);
  return Status();
}

Status World::Build(const Deadline& deadline) {
  MORI_ASSIGN_OR_RETURN(FdListener listener, FdListener::Open());
  FaultPoint("init: connected");
  InitWatch watch(bootstrap_.get(), config_.bootstrap_timeout);
  const WaitLimit limit(deadline, &watch);
  MORI_RETURN_IF_ERROR(ExchangeInfo(listener.token(), limit));
  FaultPoint("init: information exchanged");
  LogDebug("init: node {} has PEs {}", pes_[static_cast<std::size_t>(rank_)].node_id,
           PeList(topology_.PesAround(rank_)));
  MORI_RETURN_IF_ERROR(CheckNodes(pes_));
  MORI_RETURN_IF_ERROR(
      AgreeOnSettings(pes_, SettingsOf(config_, *runtime_), bootstrap_.get(), limit));
  routes_ = ChooseRoutes(config_, topology_, rank_);
  MORI_RETURN_IF_ERROR(CheckLinks());
  MORI_RETURN_IF_ERROR(ShareNode(std::move(listener), deadline));
  MORI_RETURN_IF_ERROR(OpenNetwork(deadline));
  MORI_RETURN_IF_ERROR(ShareMemory(deadline));
  FaultPoint("init: memory shared");
  const Status all_done = bootstrap_->Barrier(limit);
  FaultPoint("init: done");
  // From here on, waits are those of calls.
  group_->EndInit();
  if (config_.wait_timeout) fd_exchange_->SetVariable("MORI_SHMEM_TIMEOUT");
  return all_done;
}

Status World::ExchangeInfo(const FdListener::Token& token, const WaitLimit& limit) {
  MORI_ASSIGN_OR_RETURN(const std::string node_id, NodeIdOf(config_));
  const std::string host = HostName();
  const std::string machine = MachineId();
  const std::string device = runtime_->Identity();
  const CpuMask cpus = UsableCpus();
  PeInfo mine;
  mine.process_id = static_cast<std::uint32_t>(::getpid());
  mine.host = host;
  mine.node_id = node_id;
  mine.machine = machine;
  mine.device = device;
  mine.cpus = cpus;
  if (runtime_->kernels() != nullptr) mine.multiprocessors = runtime_->kernels()->multiprocessors();
  mine.token = token;
  mine.settings = DigestOf(SettingsOf(config_, *runtime_));
  MORI_ASSIGN_OR_RETURN(const auto messages, bootstrap_->AllGather(EncodePeInfo(mine), limit));
  for (int pe = 0; pe < size_; ++pe) {
    MORI_ASSIGN_OR_RETURN(PeInfo info,
                          DecodePeInfo(pe, messages[static_cast<std::size_t>(pe)], &texts_));
    pes_.push_back(info);
  }
  std::vector<std::string> node_ids;
  for (const PeInfo& info : pes_) node_ids.emplace_back(info.node_id);
  topology_ = Topology::Of(node_ids);
  return Status();
}

Status World::ShareNode(FdListener listener, const Deadline& deadline) {
  const std::vector<int>& node_pes = topology_.PesAround(rank_);
  const int index = topology_.IndexOf(rank_);
  const int count = static_cast<int>(node_pes.size());
  const auto first = static_cast<std::size_t>(node_pes.front());
  FdExchange::Names name_of = [this, node_pes](int place) {
    return NameOf(pes_[static_cast<std::size_t>(node_pes[static_cast<std::size_t>(place)])]);
  };
  MORI_ASSIGN_OR_RETURN(
      fd_exchange_,
      FdExchange::Connect(bootstrap_.get(), index, count, std::move(listener), pes_[first].token,
                          deadline, FdExchange::kPatience, std::move(name_of)));
  FaultPoint("init: descriptors connected");
  // Nodes of one machine share its CPUs.
  const PeInfo& mine = pes_[static_cast<std::size_t>(rank_)];
  std::vector<CpuMask> cpus;
  for (const PeInfo& info : pes_) {
    if (topology_.AreTogether(info.pe, rank_) || ShareAMachine(info, mine))
      cpus.emplace_back(info.cpus.begin(), info.cpus.end());
  }
  MORI_ASSIGN_OR_RETURN(board_, Board::Create(host_runtime_.get(), fd_exchange_.get(), index, count,
                                              EachHasACpu(cpus), deadline));
  std::vector<std::string> names;
  for (const PeInfo& info : pes_) names.push_back(NameOf(info));
  peers_ = std::make_unique<PeerWatch>(
      PeerWatch::Parts{board_.get(), rank_, std::move(names), node_pes, config_.wait_timeout,
                       topology_.n_nodes() > 1 ? bootstrap_.get() : nullptr});
  bootstrap_->Observe([this](const Bootstrap::Loss& loss) { peers_->NoteLoss(loss); });
  runtime_->SetPatience([this](std::chrono::milliseconds so_far) { return KeepsWaiting(so_far); });
  FaultPoint("init: board shared");
  LogDebug("init: descriptors and board are shared with {} PE{} of the node", count,
           count == 1 ? "" : "s");
  group_.emplace(Group::Parts{&topology_, board_.get(), bootstrap_.get(), peers_.get(), rank_,
                              Budget{config_.wait_timeout}, config_.bootstrap_timeout, deadline});
  return Status();
}

Status World::OpenNetwork(const Deadline& deadline) {
  if (!NeedsNetwork(config_, topology_)) return Status();
  RemoteParts parts;
  parts.self = rank_;
  parts.n_pes = size_;
  parts.name = [this](int pe) { return peers_->Names({pe}); };
  parts.may_spin = board_->may_spin();
  // The bootstrap tells all PEs, this one through its observer.
  parts.on_loss = [this](int pe, const std::string& why) { bootstrap_->Accuse(pe, why); };
  parts.keeps_waiting = [this](std::chrono::milliseconds so_far) { return KeepsWaiting(so_far); };
  auto opened = MakeRemoteTransport(config_, std::move(parts));
  Status ready = opened.status();
  if (ready.ok()) {
    network_ = std::move(*opened);
    // Over memory of the CPU, whatever heaps are made of.
    auto leaders = Leaders::Create({network_.get(), &topology_, board_.get(), rank_});
    ready = leaders.status();
    if (ready.ok()) leaders_ = std::move(*leaders);
  }
  MORI_RETURN_IF_ERROR(group_->AgreeOnOutcome(ready));
  if (!runtime_->IsHostMemory()) {
    device_access_ = std::make_unique<DeviceAccess>(runtime_.get());
    network_ = MakeStagedTransport(std::move(network_), runtime_.get(), device_access_.get());
  }
  LogDebug("init: network: {}", network_->Describe());
  board_->set_beside([this] { network_->channel().Progress(); });
  MORI_RETURN_IF_ERROR(ConnectNetwork(deadline));
  group_->MeetOverNetwork(leaders_.get());
  return Status();
}

Status World::ConnectNetwork(const Deadline& deadline) {
  const RemotePlace mine = leaders_->place();
  const Bytes message =
      ByteWriter().Block(network_->Address()).Int(mine.address).Int(mine.key).Take();
  MORI_ASSIGN_OR_RETURN(const auto messages, group_->AllGather(message));
  std::vector<Bytes> addresses(messages.size());
  std::vector<RemotePlace> places(messages.size());
  Status connected;
  for (std::size_t pe = 0; pe < messages.size(); ++pe) {
    ByteReader reader(messages[pe]);
    const ByteView address = reader.Block();
    places[pe].address = reader.Int<std::uint64_t>();
    places[pe].key = reader.Int<std::uint64_t>();
    if (!reader.AtEnd()) {
      connected = Error(ErrorCode::kInternal, "PE {} sent no address of the network: {} bytes", pe,
                        messages[pe].size());
    }
    if (IsRemote(static_cast<int>(pe))) addresses[pe].assign(address.begin(), address.end());
  }
  leaders_->SetPlaces(places);
  if (connected.ok()) connected = network_->Connect(addresses, deadline);
  return group_->AgreeOnOutcome(connected);
}

Status World::ShareMemory(const Deadline& deadline) {
  std::vector<int> near_pes;
  for (int pe = 0; pe < size_; ++pe) {
    if (!IsRemote(pe)) near_pes.push_back(pe);
  }
  p2p_ = MakeP2pTransport(runtime_.get(), fd_exchange_.get(), near_pes, rank_, size_);
  const auto agree = [this](const Status& mine) { return group_->AgreeOnOutcome(mine); };
  const auto gather = [this](ByteView mine) { return group_->AllGather(mine); };
  const SpaceParts parts{runtime_.get(), p2p_.get(), rank_, size_, agree, network_.get(), gather};
  MORI_ASSIGN_OR_RETURN(heap_, MakeHeap(config_, parts, deadline));
  memory_.emplace(heap_.get(), &routes_);
  LogDebug("init: {} heap: {}", HeapModeName(heap_->mode()), heap_->Describe());
  if (!runtime_->IsHostMemory()) {
    MORI_ASSIGN_OR_RETURN(device_state_,
                          DeviceState::Create(parts, *heap_, board_->first_lost_word(), deadline));
  }
  MakeOperations();
  return StartProxy();
}

Status World::StartProxy() {
  if (device_state_ == nullptr || device_state_->ring_pages() == nullptr) return Status();
  Proxy::Parts parts;
  parts.pages = device_state_->ring_pages();
  parts.channel = &network_->channel();
  parts.n_pes = size_;
  for (int pe = 0; pe < size_; ++pe) {
    if (IsRemote(pe)) parts.remote_pes.push_back(pe);
  }
  parts.locate = [this](device::RingMemory memory, std::uint64_t offset, std::uint64_t bytes,
                        int pe) {
    return memory == device::RingMemory::kHeap ? memory_->RemoteStretch(offset, bytes, pe)
                                               : device_state_->LocateSyncWords(offset, bytes, pe);
  };
  // The network knows of a loss first; then the bootstrap tells all, and it is marked.
  parts.await_loss = [this] {
    constexpr std::chrono::seconds kMarkedWithin{2};
    const Deadline end = Deadline::After(kMarkedWithin);
    for (Waiter waiter(false); board_->FirstLost() < 0 && !end.Expired(); waiter.Pause()) {
    }
  };
  parts.fault = device_state_->fault_record();
  parts.may_spin = board_->may_spin();
  MORI_ASSIGN_OR_RETURN(proxy_, Proxy::Start(std::move(parts)));
  return Status();
}

Status World::CheckLinks() {
  const PeInfo& mine = pes_[static_cast<std::size_t>(rank_)];
  for (const PeInfo& other : pes_) {
    if (other.node_id != mine.node_id || other.device == mine.device) continue;
    if (!runtime_->CanReach(std::string(other.device)).value_or(true)) {
      return Error(ErrorCode::kUnsupported,
                   "GPU {} (PE {}) does not load from and store to memory of GPU {} (PE {}): take "
                   "GPUs that reach each other (nvidia-smi topo -p2p r), or the CPU's memory "
                   "(MORI_SHMEM_BACKEND=host)",
                   mine.device, rank_, other.device, other.pe);
    }
    if (runtime_->HasAtomicsOn(std::string(other.device)).value_or(true)) continue;
    if (without_atomics_.empty()) {
      LogWarn(
          "the link from GPU {} to GPU {} (PE {}) has no atomics: the host refuses those that "
          "read and change a word over it, signals that add among them; of those that kernels do, "
          "some may be lost",
          mine.device, other.device, other.pe);
    }
    without_atomics_.emplace(other.pe,
                             fmt::format("from GPU {} to GPU {}", mine.device, other.device));
  }
  return Status();
}

Result<std::unique_ptr<Streams>> World::MakeDeviceStreams() const {
  MORI_RETURN_IF_ERROR(device_state_->kernels().status());
  std::vector<DeviceOfPe> devices;
  for (const PeInfo& info : pes_)
    devices.push_back({fmt::format("{}/{}", info.node_id, info.device), info.multiprocessors});
  return shmem::MakeDeviceStreams(device_state_->kernels()->get(), device_state_->context(),
                                  SmallestShare(devices));
}

void World::MakeOperations() {
  Operations::Parts parts{&*memory_, runtime_.get(), network_.get(), nullptr, &without_atomics_};
  if (device_state_ != nullptr) {
    streams_ = MakeDeviceStreams();
    parts.device = &streams_;
    operations_.emplace(parts);
    if (device_access_ == nullptr) return;
    device_access_->SetAtomics([this](detail::AtomicOp op, int width, void* word,
                                      std::uint64_t value,
                                      std::uint64_t expected) -> Result<std::uint64_t> {
      MORI_ASSIGN_OR_RETURN(Streams * streams, this->streams());
      return streams->Atomic(op, width, word, value, expected);
    });
    return;
  }
  operations_.emplace(parts);
  streams_ = MakeHostStreams({&*operations_, rank_, size_, [this] { return BarrierAll(); },
                              [this](const std::uint64_t* word, Cmp cmp, std::uint64_t value) {
                                return WaitFor(*this, "a wait on a stream", word, cmp, value);
                              }});
}

}  // namespace mori::shmem
