// The public host functions: each finds its world, makes one call, and reports what went wrong.
#include "mori/shmem/shmem_api.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/log.hpp"
#include "base/standard_descriptors.hpp"
#include "base/text.hpp"
#include "bootstrap/rendezvous.hpp"
#include "shmem/edge.hpp"
#include "shmem/info.hpp"
#include "shmem/launch.hpp"

namespace mori::shmem {
namespace {

/// The configuration of the next init. What the environment says about logging holds from here on.
Result<Config> ReadConfig() {
  auto config = Config::FromEnvironment();
  if (!config.ok()) return config;
  SetLogLevel(config->log_level);
  if (!config->local_rank)
    config->local_rank = ReadLocalRank([](const char* name) { return std::getenv(name); });
  return config;
}

/// Once a job: rank 0 says it for all, at its first init.
void WarnOnce(const Result<Config>& config, int rank) {
  if (!config.ok() || rank != 0) return;
  static std::once_flag warned;
  std::call_once(warned, [&] {
    for (const auto& warning : config->warnings) LogWarn("{}", warning);
  });
}

void ShowVariables(const Result<Config>& config) {
  if (!config.ok()) return;
  for (const auto& [name, value] : config->set_variables)
    LogDebug("init: {}={}", name, Quote(value));
}

/// @param needs_next_id  see Launch
/// @param waited  for other ranks, before
Status Init(int rank, int size, const UniqueId& id, bool needs_next_id = false,
            std::chrono::milliseconds waited = {}) {
  OccupyStandardDescriptors();
  MORI_ASSIGN_OR_RETURN(const Rendezvous rendezvous, DecodeUniqueId(id));
  if (size < 1) {
    return Error(ErrorCode::kInvalidArgument, "the world size is {}; it must be 1 or more", size);
  }
  if (rank < 0 || rank >= size) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank {} is out of range: a world of {} has ranks 0 to {}", rank, size, size - 1);
  }
  return Registry::Instance().Init(rendezvous.name, rank, size, [&] {
    const auto config = ReadConfig();
    WarnOnce(config, rank);
    ShowVariables(config);
    auto world = World::Create(config, rendezvous, rank, size, waited);
    if (world.ok() && needs_next_id) (*world)->HandOnAnId();
    // After a success, too: its thread may not have run yet, and nothing of it is to be left.
    RendezvousService::Instance().AwaitLastWord(rendezvous.name);
    RendezvousService::Instance().Reap();
    return world;
  });
}

void* Malloc(const char* name, std::size_t alignment, std::size_t bytes, unsigned flags) {
  void* block = nullptr;
  OnWorld(name, [&](World& world) {
    auto made = world.Malloc(bytes, alignment, flags, name);
    if (made.ok()) block = *made;
    return made.status();
  });
  return block;
}

}  // namespace

int ShmemGetUniqueId(UniqueId* id) {
  const auto open = [&]() -> Status {
    OccupyStandardDescriptors();
    if (id == nullptr) return Error(ErrorCode::kInvalidArgument, "the id to be filled is null");
    MORI_ASSIGN_OR_RETURN(const Config config, ReadConfig());
    MORI_ASSIGN_OR_RETURN(*id, RendezvousService::Instance().Open(config));
    return Status();
  };
  return Reported("shmem_get_unique_id", open);
}

int ShmemInitAttr(InitFlag flag, int rank, int world_size, const UniqueId& id) {
  constexpr const char* kName = "shmem_init_attr";
  if (flag == MORI_SHMEM_INIT_WITH_UNIQUEID)
    return Reported(kName, [&] { return Init(rank, world_size, id); });
  return Report(
      kName,
      Error(
          ErrorCode::kInvalidArgument,
          "flag {} does not go with a unique id: that is MORI_SHMEM_INIT_WITH_UNIQUEID, 1 (an MPI "
          "communicator is passed through mori/shmem/mpi.hpp)",
          static_cast<unsigned>(flag)));
}

int ShmemInit() {
  const auto init = []() -> Status {
    if (Registry::IsForkedChild()) return Registry::ForkedChild(ErrorCode::kUnsupported);
    const Registry::InitUnderWay under_way;
    OccupyStandardDescriptors();
    // One thread finds out who we are; others that come meanwhile then find the world.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (Registry::Instance().Enter()) return Status();
    MORI_ASSIGN_OR_RETURN(const Launch launch, FindLaunch());
    return Init(launch.rank, launch.size, launch.id, launch.needs_next_id, launch.waited);
  };
  return Reported("shmem_init", init);
}

int ShmemFinalize() {
  const int code = Reported("shmem_finalize", []() -> Status {
    std::unique_ptr<World> world = Registry::Instance().Remove();
    if (world == nullptr) return Registry::Instance().NoWorld();
    Status left = world->Finalize();
    world.reset();
    RendezvousService::Instance().Reap();
    return left;
  });
  SetLogPe(0, 0);
  return code;
}

bool ShmemInitialized() {
  return !Registry::IsForkedChild() && static_cast<bool>(Registry::Instance().Enter());
}

int ShmemMyPe() {
  int pe = -1;
  OnWorld("shmem_mype", [&](const World& world) { return pe = world.my_pe(), Status(); });
  return pe;
}

int ShmemNPes() {
  int pes = -1;
  OnWorld("shmem_npes", [&](const World& world) { return pes = world.n_pes(), Status(); });
  return pes;
}

int ShmemNumQpPerPe() {
  int queue_pairs = -1;
  OnWorld("shmem_num_qp_per_pe",
          [&](const World& world) { return queue_pairs = world.config().num_qp_per_pe, Status(); });
  return queue_pairs;
}

int ShmemDevice() {
  int device = -1;
  OnWorld("shmem_device",
          [&](const World& world) { return device = world.runtime().ordinal(), Status(); });
  return device;
}

void* ShmemMalloc(std::size_t bytes) { return Malloc("shmem_malloc", 1, bytes, 0); }

void* ShmemMallocAlign(std::size_t alignment, std::size_t bytes) {
  return Malloc("shmem_malloc_align", alignment, bytes, 0);
}

void* ShmemExtMallocWithFlags(std::size_t bytes, unsigned flags) {
  return Malloc("shmem_ext_malloc_with_flags", 1, bytes, flags);
}

int ShmemFree(void* ptr) {
  return OnWorld("shmem_free", [&](World& world) { return world.Free(ptr); });
}

int ShmemHeapStats(HeapStats* stats) {
  return OnWorld("shmem_heap_stats", [&](const World& world) -> Status {
    if (stats == nullptr)
      return Error(ErrorCode::kInvalidArgument, "the statistics to be filled are null");
    *stats = world.heap().Stats();
    return Status();
  });
}

int ShmemBufferRegister(void* ptr, std::size_t bytes) {
  return OnWorld("shmem_buffer_register",
                 [&](World& world) { return world.buffers().Add(ptr, bytes); });
}

int ShmemBufferDeregister(void* ptr, std::size_t bytes) {
  return OnWorld("shmem_buffer_deregister",
                 [&](World& world) { return world.buffers().Remove(ptr, bytes); });
}

void* ShmemRetainMemory(const void* ptr) {
  void* handle = nullptr;
  OnWorld("retain memory", [&](const World& world) -> Status {
    auto retained = world.heap().Retain(ptr);
    if (retained == nullptr)
      return Error(ErrorCode::kInvalidArgument, "{} is in no PE's heap", ptr);
    handle = new std::shared_ptr<const void>(std::move(retained));
    return Status();
  });
  return handle;
}

void ShmemReleaseMemory(void* handle) {
  // What the parent retained is the child's to leave alone: a thread that is not there may hold the
  // locks of that memory.
  if (!Registry::IsForkedChild()) delete static_cast<std::shared_ptr<const void>*>(handle);
}

namespace {

struct OwnedBlock {
  std::shared_ptr<DropBox> box;
  std::uint64_t offset;
  std::uint64_t token;
};

}  // namespace

void* ShmemOwnBlock(void* ptr) {
  void* handle = nullptr;
  OnWorld("own a block", [&](World& world) -> Status {
    MORI_ASSIGN_OR_RETURN(const std::uint64_t token, world.Own(ptr));
    handle = new OwnedBlock{world.drop_box(), *world.heap().OffsetOf(ptr), token};
    return Status();
  });
  return handle;
}

void ShmemDropBlock(void* handle) {
  if (Registry::IsForkedChild()) return;  // as above
  const std::unique_ptr<OwnedBlock> block(static_cast<OwnedBlock*>(handle));
  if (block != nullptr) block->box->Drop(block->offset, block->token);
}

std::uint64_t ShmemPtrP2p(std::uint64_t ptr, int my_pe, int dest_pe) {
  std::uint64_t remote = 0;
  OnWorld("shmem_ptr_p2p", [&](const World& world) -> Status {
    if (my_pe != world.my_pe()) {
      return Error(ErrorCode::kInvalidArgument, "my_pe is {}, but this is PE {}", my_pe,
                   world.my_pe());
    }
    if (dest_pe < 0 || dest_pe >= world.n_pes()) {
      return Error(ErrorCode::kInvalidArgument, "PE {} is out of range: there are PEs 0 to {}",
                   dest_pe, world.n_pes() - 1);
    }
    remote = reinterpret_cast<std::uintptr_t>(
        world.heap().Translate(reinterpret_cast<const void*>(ptr), 0, dest_pe));
    return Status();
  });
  return remote;
}

int ShmemBarrierAll() {
  return OnWorld("shmem_barrier_all", [](World& world) { return world.BarrierAll(); });
}

int ShmemLatePes(int* pes, int capacity) {
  int count = -1;
  OnWorld("shmem_late_pes", [&](const World& world) -> Status {
    if (capacity < 0 || (pes == nullptr && capacity > 0)) {
      return Error(ErrorCode::kInvalidArgument, "no room for {} PEs at {}", capacity,
                   static_cast<const void*>(pes));
    }
    const std::vector<int> late = world.peers().LateOrLost();
    count = static_cast<int>(late.size());
    std::copy_n(late.begin(), std::min(count, capacity), pes);
    return Status();
  });
  return count;
}

int ShmemModuleInit(void* module) {
  return OnWorld("shmem_module_init", [&](const World& world) { return world.InitModule(module); });
}

int ShmemLibraryInit(void* library) {
  return OnWorld("shmem_library_init",
                 [&](const World& world) { return world.InitLibrary(library); });
}

const char* ShmemLastError() { return LastErrorText().c_str(); }
int ShmemLastErrorCode() { return static_cast<int>(LastErrorCode()); }
const char* ShmemErrorName(int code) { return ErrorCodeName(static_cast<ErrorCode>(code)).data(); }
const char* ShmemVersion() { return MORI_SHMEM_VERSION; }

std::string ShmemInfo() {
  const Lease world = Registry::IsForkedChild() ? Lease() : Registry::Instance().Enter();
  return LibraryInfo() + "\n" + SetVariablesInfo() + "\n" + WorldInfo(world.get());
}

}  // namespace mori::shmem
