#include "shmem/world.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "base/machine.hpp"
#include "bootstrap/factory.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/unique_id.hpp"
#include "shmem/launch.hpp"
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

World::World(Config config, int rank, int size)
    : id_(NextWorldId()),
      config_(std::move(config)),
      rank_(rank),
      size_(size),
      published_(PublishedContext::Make()) {}

World::~World() {
  published_->Hide();
  // Relaxed: nothing else is told by it.
  is_ending_.store(true, std::memory_order_relaxed);
  proxy_.reset();
  if (device_access_ != nullptr) device_access_->SetAtomics(nullptr);
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

Result<Streams*> World::streams() const {
  MORI_RETURN_IF_ERROR(streams_.status());
  return streams_->get();
}

void World::Publish() {
  const bool is_host = runtime_->IsHostMemory();
  // A heap on a device has kernels whose faults each call asks for.
  published_->Show({rank_, size_, heap_.get(), is_host, is_host && network_ == nullptr});
  LogStart({&config_, runtime_.get(), heap_.get(), rank_, size_, topology_.PesAround(rank_).size(),
            topology_.n_nodes()});
}

Status World::KeepsWaiting(std::chrono::milliseconds so_far) const {
  MORI_RETURN_IF_ERROR(Health());
  if (is_ending_.load(std::memory_order_relaxed) && so_far >= kPatienceAtEnd)
    return Error(ErrorCode::kTimeout, "this PE has ended");
  if (!config_.wait_timeout || so_far < *config_.wait_timeout) return Status();
  return Error(ErrorCode::kTimeout, "no end within {:g} s (MORI_SHMEM_TIMEOUT)",
               static_cast<double>(config_.wait_timeout->count()) / 1e3);
}

Status World::Fault() const {
  if (device_state_ == nullptr) return Status();
  const auto fault = device_state_->TakeFault();
  const bool is_remote = fault && fault->reason == device::FaultReason::kRemoteFailed;
  if (proxy_ != nullptr && (!fault || is_remote)) {
    // A fault of the ring without a reason: that has been told already.
    return proxy_->TakeFailure();
  }
  if (!fault) return Status();
  const bool is_lost =
      fault->reason == device::FaultReason::kPeLost && fault->pe >= 0 && fault->pe < size_;
  return is_lost ? LostInKernel(*fault, peers_->Lost(fault->pe)) : DescribeFault(*fault);
}

Status World::Agree(const Proposal& proposal, const char* call) {
  runtime_->UnmapPassed();
  bool news = drop_box_->HasNews(runtime_->kernels());
  operations_->Synchronize();
  MORI_RETURN_IF_ERROR(group_->Meet(proposal, call, &news));
  operations_->Synchronize();
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
  published_->ShowSpan(*heap_);
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
  published_->ShowSpan(*heap_);
  return static_cast<void*>(block);
}

Status World::CompletePosted() {
  const Status streams = streams_.ok() ? (*streams_)->Complete() : Status();
  const Status ring = CompleteRing();
  const Status network = operations_->Quiet();
  if (!streams.ok()) return streams;
  return ring.ok() ? network : ring;
}

Status World::CompleteRing() {
  if (proxy_ == nullptr) return Status();
  MORI_ASSIGN_OR_RETURN(const std::uint64_t tickets, device_state_->RingTickets());
  const Status awaited = proxy_->Await(
      tickets, [this](std::chrono::milliseconds so_far) { return KeepsWaiting(so_far); });
  if (awaited.ok()) return Status();
  return Error(awaited.code(), "{}; it waited for commands of kernels", awaited.message());
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

void World::ShareNextId() {
  Bytes mine;
  if (hands_on_an_id_ && rank_ == 0) {
    const auto id = RendezvousService::Instance().Open(config_);
    if (id.ok()) mine.assign(std::begin(id->bytes), std::end(id->bytes));
    if (!id.ok()) LogDebug("finalize: no id for a next init: {}", id.status().message());
  }
  // Rank 0 decides alone, so that nobody waits for one who has no need of an id.
  const auto the_one = [](ByteView a, ByteView b) {
    const ByteView said = a.empty() ? b : a;
    return Bytes(said.begin(), said.end());
  };
  const auto limit = Deadline::After(config_.wait_timeout.value_or(config_.bootstrap_timeout));
  const auto given = bootstrap_->Combine(mine, the_one, limit);
  UniqueId id{};
  if (!given.ok() || given->size() != sizeof id.bytes) return;
  std::memcpy(id.bytes, given->data(), sizeof id.bytes);
  if (hands_on_an_id_ && DecodeUniqueId(id).ok()) KeepNextId(id);
}

Status World::Finalize() {
  Status posted = CompletePosted();
  // Kernels of the program, too: they lose their state, and the memory that they reach.
  if (posted.ok() && device_state_ != nullptr) posted = runtime_->kernels()->AwaitDevice();
  if (posted.ok() && proxy_ != nullptr) posted = CompletePosted();
  if (posted.ok()) posted = Fault();
  Status left = Health();
  if (left.ok()) {
    FaultPoint("finalize: before all came");
    left = MeetToFinalize();  // nobody unmaps while another may still be reading
  }
  published_->Hide();
  if (left.ok() && runtime_->ChoosesAddresses()) {
    heap_->ReleasePeers();
    if (device_state_ != nullptr) device_state_->ReleasePeers();
    left = MeetToFinalize();  // nobody frees what another has open
  }
  // Who was in another call goes on without this PE, and must not wait for it.
  if (left.code() == ErrorCode::kMismatch) bootstrap_->Abort(left);
  bootstrap_->Observe(nullptr);
  if (left.ok() && topology_.n_nodes() > 1) ShareNextId();
  bootstrap_->Leave();
  return left.ok() ? posted : left;
}

void World::AbandonAfterFork() { published_->Hide(); }

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

}  // namespace mori::shmem
