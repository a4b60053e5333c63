#include "shmem/registry.hpp"

#include <pthread.h>

#include <atomic>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "bootstrap/rendezvous.hpp"

namespace mori::shmem {
namespace {

/// Moves whenever a world comes or goes: what a thread found out before is checked again then.
std::atomic<std::uint64_t> generation{1};

struct Binding {
  World* world = nullptr;
  std::uint64_t world_id = 0;
  std::uint64_t generation = 0;
  bool own = false;  ///< by this thread's init, not because the process has only one
};
thread_local constinit Binding binding __attribute__((tls_model("initial-exec")));

/// In a forked child: the PE that its parent was; no size if it was still in init.
int forked_from_pe = 0;
int forked_from_size = 0;

constinit const HostContext kNoContext{};

}  // namespace

namespace detail {
constinit __thread const HostContext* host_context_v2 = &kNoContext;
}

Registry& Registry::Instance() {
  static auto* const registry =
      new Registry;  // never destroyed: worlds may be used until the very end
  return *registry;
}

/// From the load of the library on: a thread may be in any of these locks when another one forks.
/// They are held across the fork, so that the child finds what they guard whole.
const int Registry::kForkHandlers = [] {
  // Its lock is taken while those below are held, and so it must be here: handlers that were
  // registered first run last.
  UniqueFd::WatchForks();
  return ::pthread_atfork(
      [] {
        Instance().mutex_.lock();
        RendezvousService::Instance().BeforeFork();
        LockLog();
      },
      [] {
        UnlockLog();
        RendezvousService::Instance().AfterForkInParent();
        Instance().mutex_.unlock();
      },
      [] {
        UnlockLog();
        RendezvousService::Instance().AfterForkInChild();
        Instance().AfterForkInChild();
      });
}();

void Registry::AfterForkInChild() {
  // Another thread may have finalized what this one was bound to.
  const World* own = Resolve();
  for (auto& [rank, entry] : entries_) {
    if (entry.world == nullptr) continue;
    entry.world->AbandonAfterFork();
    forked_from_pe = entry.world->my_pe();
    forked_from_size = entry.world->n_pes();
    abandoned_.push_back(entry.world.release());
  }
  if (own != nullptr) forked_from_pe = own->my_pe();
  if (!entries_.empty() || inits_under_way_.load(std::memory_order_relaxed) > 0)
    is_forked_child_.store(true, std::memory_order_relaxed);
  entries_.clear();
  generation.fetch_add(1, std::memory_order_acq_rel);
  binding = {};
  detail::host_context_v2 = &kNoContext;
  SetLogPe(0, 0);
  mutex_.unlock();
}

Status Registry::ForkedChild(ErrorCode code) {
  const std::string parent =
      forked_from_size > 0 ? fmt::format("from PE {} of {}, which only the parent can use",
                                         forked_from_pe, forked_from_size)
                           : "while its parent was in init, which only the parent can complete";
  return Error(
      code, "this process was forked {}: start processes that use the library with exec or spawn",
      parent);
}

Status Registry::NoWorld() {
  if (IsForkedChild()) return ForkedChild(ErrorCode::kNotInitialized);
  const std::lock_guard lock(mutex_);
  if (threads_are_pes_ && !entries_.empty()) {
    return Error(ErrorCode::kNotInitialized,
                 "this thread has no PE: this process has several, and only a thread that ran an "
                 "init is one");
  }
  return Error(ErrorCode::kNotInitialized, "this thread has no PE: before init, or after finalize");
}

std::optional<Status> Registry::Claim(std::unique_lock<std::mutex>* lock,
                                      const RendezvousName& name, int rank, int size) {
  if (IsForkedChild()) return ForkedChild(ErrorCode::kUnsupported);
  for (;;) {
    const auto existing = entries_.find(rank);
    if (entries_.empty()) break;
    if (name != name_ || size != size_) {
      return Error(ErrorCode::kAlreadyInitialized,
                   "already initialized as one of {} PEs with {}: finalize first, the running "
                   "world is unchanged",
                   size_, name == name_ ? "this unique id" : "another unique id");
    }
    const World* current = Resolve();
    if (current != nullptr && binding.own && current->my_pe() != rank) {
      return Error(ErrorCode::kAlreadyInitialized,
                   "this thread is PE {} of {} already and cannot become PE {} too: finalize first",
                   current->my_pe(), size_, rank);
    }
    if (existing == entries_.end()) break;
    if (existing->second.world != nullptr) {
      Bind(existing->second.world.get());
      return Status();
    }
    changed_.wait(*lock);  // another thread is at it: its outcome is ours
    if (!entries_.contains(rank)) {
      return Error(ErrorCode::kPeerLost, "init of rank {} failed in another thread of this process",
                   rank);
    }
  }
  if (!spent_.emplace(name, rank).second) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank {} has used this unique id already: each id serves one init, make a new one",
                 rank);
  }
  name_ = name;
  size_ = size;
  if (entries_.empty()) threads_are_pes_ = false;
  entries_[rank] = {};
  return std::nullopt;
}

void Registry::Bind(World* world) {
  // Release: a thread that sees the new generation finds the world in the table, which the lock
  // guards anyway.
  const std::uint64_t now = generation.fetch_add(1, std::memory_order_acq_rel) + 1;
  binding = {world, world->id(), now, true};
  SetLogPe(world->my_pe(), world->n_pes());
  detail::host_context_v2 = world->context();
}

Lease Registry::Enter() {
  while (World* world = Current()) {
    Lease lease = Lease::Take(world);
    // Sequentially consistent: see Lease::Take().
    if (binding.generation == generation.load(std::memory_order_seq_cst)) return lease;
  }
  return {};
}

World* Registry::Current() {
  if (binding.generation == generation.load(std::memory_order_acquire)) return binding.world;
  const std::lock_guard lock(mutex_);
  return Resolve();
}

World* Registry::Resolve() {
  const std::uint64_t now = generation.load(std::memory_order_acquire);
  if (binding.generation == now) return binding.world;
  World* found = nullptr;
  bool own = false;
  for (const auto& [rank, entry] : entries_) {
    if (entry.world == nullptr) continue;
    if (binding.own && entry.world->id() == binding.world_id) {
      found = entry.world.get();
      own = true;
    } else if (found == nullptr && !threads_are_pes_) {
      found = entry.world.get();
    }
  }
  binding = {found, found != nullptr ? found->id() : 0, now, own};
  SetLogPe(found != nullptr ? found->my_pe() : 0, found != nullptr ? found->n_pes() : 0);
  detail::host_context_v2 = found != nullptr ? found->context() : &kNoContext;
  return found;
}

std::unique_ptr<World> Registry::Remove() {
  if (IsForkedChild()) return nullptr;
  std::unique_ptr<World> world;
  {
    const std::lock_guard lock(mutex_);
    World* current = Resolve();
    if (current == nullptr) return nullptr;
    const auto entry = entries_.find(current->my_pe());
    world = std::move(entry->second.world);
    entries_.erase(entry);
    generation.fetch_add(1, std::memory_order_seq_cst);  // see Lease::Take()
    binding = {};
    detail::host_context_v2 = &kNoContext;
  }
  world->StartClosing();
  Lease::AwaitReturn(world.get());
  return world;
}

}  // namespace mori::shmem
