#include "shmem/world.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "base/machine.hpp"
#include "bootstrap/factory.hpp"
#include "shmem/start_lines.hpp"
#include "shmem/wait.hpp"
#include "transport/factory.hpp"

namespace mori::shmem {
namespace {

/// How long what is left of a world waits for its device.
constexpr std::chrono::milliseconds kPatienceAtEnd{1000};

std::uint64_t NextWorldId() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

/// What inline operations read. Of all worlds ever: a thread may look at it after its world is
/// gone, or be in the middle of looking when it goes.
struct World::Published {
  HostContext context{};
  std::vector<std::byte*> bases;  ///< behind `context.near_bases`

  static Published* Make() {
    static auto* const mutex = new std::mutex;
    static auto* const all = new std::vector<std::unique_ptr<Published>>;
    const std::lock_guard lock(*mutex);
    all->push_back(std::make_unique<Published>());
    return all->back().get();
  }
};

World::World(Config config, int rank, int size)
    : id_(NextWorldId()),
      config_(std::move(config)),
      rank_(rank),
      size_(size),
      published_(Published::Make()) {}

const HostContext* World::context() const { return &published_->context; }

World::~World() {
  Unpublish();
  if (bootstrap_) bootstrap_->Observe(nullptr);
  if (runtime_ == nullptr) return;
  // What runs on the device after finalize has waited for it keeps its memory. Said by the first
  // part that waits, and then known to all.
  auto gave_up = std::make_shared<std::atomic<bool>>(false);
  runtime_->SetPatience([gave_up](std::chrono::milliseconds so_far) {
    // Relaxed: nothing else is told by it.
    if (so_far < kPatienceAtEnd && !gave_up->load(std::memory_order_relaxed)) return Status();
    gave_up->store(true, std::memory_order_relaxed);
    return Error(ErrorCode::kTimeout, "the device did not become idle");
  });
}

Result<std::unique_ptr<World>> World::Create(const Result<Config>& config,
                                             const Rendezvous& rendezvous, int rank, int size) {
  std::unique_ptr<World> world(new World(config.ok() ? *config : Config{}, rank, size));
  const std::chrono::milliseconds budget = world->config_.bootstrap_timeout;
  const Deadline deadline = Deadline::After(budget);
  MORI_RETURN_IF_ERROR(world->Connect(config, rendezvous));
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

Status World::Connect(const Result<Config>& config, const Rendezvous& rendezvous) {
  BootstrapOptions options;
  options.rank = rank_;
  options.size = size_;
  options.version = MORI_SHMEM_VERSION;
  options.host = HostName();
  options.budget = config_.bootstrap_timeout;
  options.failure = config.status();
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
  MORI_RETURN_IF_ERROR(ExchangeInfo(listener.token(), deadline));
  FaultPoint("init: information exchanged");
  LogDebug("init: node {} has PEs {}", pes_[static_cast<std::size_t>(rank_)].node_id,
           PeList(topology_.PesAround(rank_)));
  MORI_RETURN_IF_ERROR(CheckSettings(pes_));
  routes_ = ChooseRoutes(config_, topology_, rank_);
  MORI_RETURN_IF_ERROR(CheckLinks());
  MORI_RETURN_IF_ERROR(ShareNode(std::move(listener), deadline));
  MORI_RETURN_IF_ERROR(OpenNetwork(deadline));
  MORI_RETURN_IF_ERROR(ShareMemory(deadline));
  FaultPoint("init: memory shared");
  auto all_done = bootstrap_->AllGather({}, deadline);
  FaultPoint("init: done");
  return all_done.status();
}

Status World::ExchangeInfo(const FdListener::Token& token, const Deadline& deadline) {
  PeInfo mine;
  mine.host = HostName();
  mine.process_id = static_cast<std::uint32_t>(::getpid());
  mine.node_id = config_.node_id;
  if (mine.node_id.empty()) {
    MORI_ASSIGN_OR_RETURN(mine.node_id, BootId());
  }
  mine.cpus = UsableCpus();
  mine.device = runtime_->Identity();
  if (runtime_->kernels() != nullptr) mine.multiprocessors = runtime_->kernels()->multiprocessors();
  mine.token = token;
  mine.settings = SettingsOf(config_, *runtime_);
  MORI_ASSIGN_OR_RETURN(const auto messages, bootstrap_->AllGather(EncodePeInfo(mine), deadline));
  for (int pe = 0; pe < size_; ++pe) {
    MORI_ASSIGN_OR_RETURN(PeInfo info, DecodePeInfo(pe, messages[static_cast<std::size_t>(pe)]));
    pes_.push_back(std::move(info));
  }
  std::vector<std::string> node_ids;
  for (const PeInfo& info : pes_) node_ids.push_back(info.node_id);
  topology_ = Topology::Of(node_ids);
  return Status();
}

Status World::ShareNode(FdListener listener, const Deadline& deadline) {
  const std::vector<int>& node_pes = topology_.PesAround(rank_);
  const int index = topology_.IndexOf(rank_);
  const int count = static_cast<int>(node_pes.size());
  const auto first = static_cast<std::size_t>(node_pes.front());
  MORI_ASSIGN_OR_RETURN(fd_exchange_,
                        FdExchange::Connect(bootstrap_.get(), index, count, std::move(listener),
                                            pes_[first].token, deadline));
  FaultPoint("init: descriptors connected");
  std::vector<CpuMask> cpus;
  for (const int pe : node_pes) cpus.push_back(pes_[static_cast<std::size_t>(pe)].cpus);
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
                              Budget{config_.wait_timeout}, config_.bootstrap_timeout});
  return Status();
}

Status World::OpenNetwork(const Deadline& deadline) {
  if (!NeedsNetwork(config_, topology_)) return Status();
  Result<std::unique_ptr<RemoteTransport>> opened =
      Error(ErrorCode::kUnsupported, "the {} backend has no network yet: {}",
            BackendName(runtime_->backend()), "MORI_SHMEM_BACKEND=host takes the CPU's memory");
  if (runtime_->IsHostMemory()) {
    RemoteParts parts;
    parts.self = rank_;
    parts.n_pes = size_;
    parts.may_spin = board_->may_spin();
    parts.on_loss = [this](int pe, const std::string& why) { peers_->NoteLoss({pe, why}); };
    parts.keeps_waiting = [this](std::chrono::milliseconds so_far) { return KeepsWaiting(so_far); };
    opened = MakeRemoteTransport(config_, std::move(parts));
  }
  MORI_RETURN_IF_ERROR(group_->AgreeOnOutcome(opened.status()));
  network_ = std::move(*opened);
  MORI_ASSIGN_OR_RETURN(auto addresses, bootstrap_->AllGather(network_->Address(), deadline));
  for (int pe = 0; pe < size_; ++pe) {
    if (!IsRemote(pe)) addresses[static_cast<std::size_t>(pe)].clear();
  }
  LogDebug("init: network: {}", network_->Describe());
  return group_->AgreeOnOutcome(network_->Connect(addresses, deadline));
}

Status World::ShareMemory(const Deadline& deadline) {
  std::vector<int> near_pes;
  for (int pe = 0; pe < size_; ++pe) {
    if (!IsRemote(pe)) near_pes.push_back(pe);
  }
  p2p_ = MakeP2pTransport(runtime_.get(), fd_exchange_.get(), near_pes, rank_, size_);
  const auto agree = [this](const Status& mine) { return group_->AgreeOnOutcome(mine); };
  const SpaceParts parts{runtime_.get(), p2p_.get(),     rank_,           size_,
                         agree,          network_.get(), bootstrap_.get()};
  MORI_ASSIGN_OR_RETURN(heap_, MakeHeap(config_, parts));
  memory_.emplace(heap_.get(), &routes_);
  LogDebug("init: {} heap: {}", HeapModeName(heap_->mode()), heap_->Describe());
  if (!runtime_->IsHostMemory()) {
    MORI_ASSIGN_OR_RETURN(device_state_,
                          DeviceState::Create(parts, *heap_, board_->first_lost_word(), deadline));
  }
  MakeOperations();
  return Status();
}

Status World::CheckLinks() {
  const PeInfo& mine = pes_[static_cast<std::size_t>(rank_)];
  for (const PeInfo& other : pes_) {
    if (other.node_id != mine.node_id || other.device == mine.device) continue;
    if (!runtime_->CanReach(other.device).value_or(true)) {
      return Error(ErrorCode::kUnsupported,
                   "GPU {} (PE {}) does not load from and store to memory of GPU {} (PE {}): take "
                   "GPUs that reach each other (nvidia-smi topo -p2p r), or the CPU's memory "
                   "(MORI_SHMEM_BACKEND=host)",
                   mine.device, rank_, other.device, other.pe);
    }
    if (runtime_->HasAtomicsOn(other.device).value_or(true)) continue;
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
    devices.push_back({info.node_id + "/" + info.device, info.multiprocessors});
  return shmem::MakeDeviceStreams(device_state_->kernels()->get(), device_state_->context(),
                                  SmallestShare(devices));
}

void World::MakeOperations() {
  Operations::Parts parts{&*memory_, runtime_.get(), network_.get(), nullptr, &without_atomics_};
  if (device_state_ != nullptr) {
    streams_ = MakeDeviceStreams();
    parts.device = &streams_;
    operations_.emplace(parts);
    return;
  }
  operations_.emplace(parts);
  streams_ = MakeHostStreams({&*operations_, rank_, size_, [this] { return BarrierAll(); },
                              [this](const std::uint64_t* word, Cmp cmp, std::uint64_t value) {
                                return WaitFor(*this, "a wait on a stream", word, cmp, value);
                              }});
}

Result<Streams*> World::streams() const {
  MORI_RETURN_IF_ERROR(streams_.status());
  return streams_->get();
}

void World::Publish() {
  HostContext& context = published_->context;
  published_->bases.assign(heap_->peer_bases(), heap_->peer_bases() + size_);
  context.near_bases = published_->bases.data();
  context.word_bases = published_->bases.data();
  context.heap_base = reinterpret_cast<std::uintptr_t>(heap_->base());
  PublishSpan();
  context.my_pe = static_cast<std::uint32_t>(rank_);
  // A heap on a device has kernels whose faults each call asks for.
  if (runtime_->IsHostMemory() && network_ == nullptr) context.flags = HostContext::kFencesSuffice;
  context.n_pes = static_cast<std::uint32_t>(size_);
  LogStart({&config_, runtime_.get(), heap_.get(), rank_, size_, topology_.PesAround(rank_).size(),
            topology_.n_nodes()});
}

Status World::KeepsWaiting(std::chrono::milliseconds so_far) const {
  MORI_RETURN_IF_ERROR(Health());
  if (!config_.wait_timeout || so_far < *config_.wait_timeout) return Status();
  return Error(ErrorCode::kTimeout, "no end within {:g} s (MORI_SHMEM_TIMEOUT)",
               static_cast<double>(config_.wait_timeout->count()) / 1e3);
}

Status World::Fault() const {
  if (device_state_ == nullptr) return Status();
  const auto fault = device_state_->TakeFault();
  if (!fault) return Status();
  const bool is_lost =
      fault->reason == device::FaultReason::kPeLost && fault->pe >= 0 && fault->pe < size_;
  return is_lost ? LostInKernel(*fault, peers_->Lost(fault->pe)) : DescribeFault(*fault);
}

Status World::Agree(const Proposal& proposal, const char* call) {
  runtime_->UnmapPassed();
  bool news = drop_box_->HasNews(runtime_->kernels());
  MORI_RETURN_IF_ERROR(group_->Meet(proposal, call, &news));
  return news ? CollectDropped() : Status();
}

Status World::CollectDropped() {
  // A put into such a block may be under way. A fault of the device shows in the next call of it.
  static_cast<void>(CompletePosted());
  ByteWriter mine;
  for (const std::uint64_t offset : drop_box_->Released()) mine.Int(offset);
  MORI_ASSIGN_OR_RETURN(const auto lists, group_->AllGather(mine.bytes()));
  std::map<std::uint64_t, int> counts;
  for (const Bytes& list : lists) {
    ByteReader reader(list);
    while (reader.ok() && !reader.AtEnd()) ++counts[reader.Int<std::uint64_t>()];
  }
  Heap::Freed all;
  for (const auto& [offset, count] : counts) {
    if (count < size_) continue;
    MORI_ASSIGN_OR_RETURN(Heap::Freed one, FreeBlock(heap_->base() + offset));
    all.unmaps = all.unmaps || one.unmaps;
    if (all.outcome.ok()) all.outcome = std::move(one.outcome);
  }
  return AwaitUnmapped(all);
}

Result<Heap::Freed> World::FreeBlock(const void* ptr) {
  MORI_ASSIGN_OR_RETURN(Heap::Freed freed, heap_->Free(ptr));
  drop_box_->Forget(*heap_->OffsetOf(ptr));
  PublishSpan();
  return freed;
}

Status World::AwaitUnmapped(const Heap::Freed& freed) {
  return freed.unmaps ? group_->AgreeOnOutcome(freed.outcome) : Status();
}

Result<std::uint64_t> World::Own(const void* ptr) {
  const auto offset = heap_->OffsetOf(ptr);
  if (!offset || heap_->BlockBytes(ptr) == 0) {
    return Error(ErrorCode::kInvalidArgument, "{} is no live block: pass the start of one", ptr);
  }
  const std::uint64_t token = drop_box_->Own(*offset);
  if (token == 0) return Error(ErrorCode::kInvalidArgument, "the block at {} has an owner", ptr);
  return token;
}

/// Flags as HIP's extended allocation has them. Memory of an own kind needs memory of its own.
Result<HeapType> World::TypeFor(unsigned flags) const {
  switch (flags) {
    case MORI_SHMEM_MALLOC_DEFAULT: return config_.heap_type;
    case MORI_SHMEM_MALLOC_FINE_GRAINED:
      if (runtime_->IsFineGrained(config_.heap_type)) return config_.heap_type;
      [[fallthrough]];  // what is not cached is the same for all at any time
    case MORI_SHMEM_MALLOC_UNCACHED:
      if (config_.heap_type == HeapType::kUncached || config_.heap_mode == HeapMode::kIsolation)
        return HeapType::kUncached;
      return Error(ErrorCode::kUnsupported,
                   "flags {:#x} need memory that is not cached, and this heap is: set "
                   "MORI_SHMEM_HEAP_TYPE=uncached, or MORI_SHMEM_MODE=isolation, where each "
                   "allocation has its own memory",
                   flags);
    default:
      return Error(ErrorCode::kInvalidArgument,
                   "flags {:#x} are unknown: 0x0 default, 0x1 fine-grained, 0x3 uncached", flags);
  }
}

void World::PublishSpan() {
  if (!runtime_->IsHostMemory()) return;  // 0: every operation asks out of line
  // Relaxed: threads of this PE may be reading it, but they can name a new block only once they
  // were told of it.
  __atomic_store_n(&published_->context.heap_bytes, heap_->span_bytes(), __ATOMIC_RELAXED);
}

void World::Unpublish() {
  // Relaxed: a thread that reads them meanwhile uses an address after or while another one
  // finalizes. The bases stay where they are.
  __atomic_store_n(&published_->context.n_pes, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&published_->context.flags, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&published_->context.heap_bytes, 0, __ATOMIC_RELAXED);
}

Status World::Closing() const {
  // Relaxed: nothing is read because of it.
  if (!is_closing_.load(std::memory_order_relaxed)) return Status();
  return Error(ErrorCode::kNotInitialized, "another thread has finalized this PE");
}

Result<void*> World::Malloc(std::uint64_t bytes, std::uint64_t alignment, unsigned flags,
                            const char* call) {
  MORI_RETURN_IF_ERROR(Agree({Proposal::Call::kMalloc, bytes, alignment, flags}, call));
  if (bytes == 0) return Error(ErrorCode::kInvalidArgument, "an allocation of 0 bytes");
  if (!std::has_single_bit(alignment)) {
    return Error(ErrorCode::kInvalidArgument, "alignment {} is no power of two", alignment);
  }
  MORI_ASSIGN_OR_RETURN(const HeapType type, TypeFor(flags));
  MORI_ASSIGN_OR_RETURN(std::byte * block,
                        heap_->Allocate(bytes, std::max(alignment, DefaultAlignment(bytes)), type));
  PublishSpan();
  return static_cast<void*>(block);
}

Status World::CompletePosted() {
  const Status streams = streams_.ok() ? (*streams_)->Complete() : Status();
  const Status network = operations_->Quiet();
  return streams.ok() ? network : streams;
}

Status World::Free(void* ptr) {
  const Status posted = CompletePosted();  // a put into the block may be under way
  const bool is_in_use = IsGivenUp(posted);
  const auto offset = heap_->OffsetOf(ptr);
  const Status agreed = Agree({Proposal::Call::kFree, offset.value_or(0), offset ? 1u : 0u,
                               ptr == nullptr ? kFreeOfNull : (is_in_use ? kFreeInUse : 0)},
                              "shmem_free");
  if (is_in_use) return posted;
  MORI_RETURN_IF_ERROR(agreed);
  if (ptr == nullptr) return Status();
  MORI_ASSIGN_OR_RETURN(const Heap::Freed freed, FreeBlock(ptr));
  const Status unmapped = AwaitUnmapped(freed);
  if (!unmapped.ok()) return unmapped;
  return posted.ok() ? Fault() : posted;
}

Status World::BarrierAll() {
  // A fault of the device keeps nobody waiting: the others get their barrier.
  const Status posted = CompletePosted();
  // The agreement publishes with release and acquire, which is all that load/store transports need.
  const Status agreed = Agree(Proposal{}, "shmem_barrier_all");
  if (!agreed.ok()) return agreed;
  return posted.ok() ? Fault() : posted;
}

Status World::MeetToFinalize() {
  const Proposal proposal{Proposal::Call::kFinalize, 0, 0, 0};
  if (config_.wait_timeout) return group_->Meet(proposal, "shmem_finalize");
  return group_->Meet(proposal, "shmem_finalize", nullptr,
                      {config_.bootstrap_timeout, "MORI_BOOTSTRAP_TIMEOUT"});
}

Status World::Finalize() {
  Status posted = CompletePosted();
  // Kernels of the program, too: they lose their state, and the memory that they reach.
  if (posted.ok() && device_state_ != nullptr) posted = runtime_->kernels()->AwaitDevice();
  if (posted.ok()) posted = Fault();
  Status left = Health();
  if (left.ok()) {
    FaultPoint("finalize: before all came");
    left = MeetToFinalize();  // nobody unmaps while another may still be reading
  }
  Unpublish();
  if (left.ok() && runtime_->ChoosesAddresses()) {
    heap_->ReleasePeers();
    if (device_state_ != nullptr) device_state_->ReleasePeers();
    left = MeetToFinalize();  // nobody frees what another has open
  }
  // Who was in another call goes on without this PE, and must not wait for it.
  if (left.code() == ErrorCode::kMismatch) bootstrap_->Abort(left);
  bootstrap_->Observe(nullptr);
  bootstrap_->Leave();
  return left.ok() ? posted : left;
}

void World::AbandonAfterFork() { Unpublish(); }

Status World::InitModule(void* module) const {
  if (device_state_ == nullptr) {
    return Error(ErrorCode::kUnsupported, "the {} backend has no device modules",
                 BackendName(runtime_->backend()));
  }
  return device_state_->Publish(module);
}

Status World::InitLibrary(void* library) const {
  if (device_state_ == nullptr) {
    return Error(ErrorCode::kUnsupported, "the {} backend has no device libraries",
                 BackendName(runtime_->backend()));
  }
  return device_state_->PublishToLibrary(library);
}

Status World::RegisterBuffer(const void* ptr, std::uint64_t bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(ptr);
  if (ptr == nullptr || bytes == 0 || start + bytes < start) {
    return Error(ErrorCode::kInvalidArgument, "no range to register: {} bytes at {}", bytes, ptr);
  }
  const std::lock_guard lock(buffers_mutex_);
  ++buffers_[{start, bytes}];
  return Status();
}

Status World::DeregisterBuffer(const void* ptr, std::uint64_t bytes) {
  const std::lock_guard lock(buffers_mutex_);
  const auto found = buffers_.find({reinterpret_cast<std::uintptr_t>(ptr), bytes});
  if (found == buffers_.end()) {
    return Error(ErrorCode::kInvalidArgument, "{} bytes at {} are not registered", bytes, ptr);
  }
  if (--found->second == 0) buffers_.erase(found);
  return Status();
}

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
