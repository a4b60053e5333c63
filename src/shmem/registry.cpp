#include "shmem/registry.hpp"

#include <pthread.h>

#include <atomic>

#include "base/log.hpp"
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
thread_local Binding binding;

constinit const HostContext kNoContext{};

}  // namespace

namespace detail {
constinit __thread const HostContext* host_context = &kNoContext;
}

Registry& Registry::Instance() {
  static auto* const registry =
      new Registry;  // never destroyed: worlds may be used until the very end
  return *registry;
}

Registry::Registry() {
  // The locks are held across a fork, so that the child finds both tables whole.
  ::pthread_atfork(
      [] {
        Instance().mutex_.lock();
        RendezvousService::Instance().BeforeFork();
      },
      [] {
        RendezvousService::Instance().AfterForkInParent();
        Instance().mutex_.unlock();
      },
      [] {
        RendezvousService::Instance().AfterForkInChild();
        Instance().AfterForkInChild();
      });
}

void Registry::AfterForkInChild() {
  for (auto& [rank, entry] : entries_) {
    if (entry.world == nullptr) continue;
    entry.world->AbandonAfterFork();
    abandoned_.push_back(entry.world.release());
  }
  entries_.clear();
  generation.fetch_add(1, std::memory_order_acq_rel);
  binding = {};
  detail::host_context = &kNoContext;
  mutex_.unlock();
}

Status Registry::NoWorld() {
  const std::lock_guard lock(mutex_);
  return abandoned_.empty()
             ? Error(ErrorCode::kNotInitialized,
                     "this thread has no PE: before init, or after finalize")
             : Error(
                   ErrorCode::kNotInitialized,
                   "this process was forked from PE {} of {}, which only the parent can use: start "
                   "processes that use the library with exec or spawn",
                   abandoned_[0]->my_pe(), abandoned_[0]->n_pes());
}

std::optional<Status> Registry::Claim(std::unique_lock<std::mutex>* lock,
                                      const RendezvousName& name, int rank, int size) {
  if (!abandoned_.empty()) {
    return Error(ErrorCode::kUnsupported,
                 "this process was forked from PE {} of {} and cannot become a PE: start it with "
                 "exec or spawn",
                 abandoned_[0]->my_pe(), abandoned_[0]->n_pes());
  }
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
  several_ = !entries_.empty();
  entries_[rank] = {};
  return std::nullopt;
}

void Registry::Bind(World* world) {
  // Release: a thread that sees the new generation finds the world in the table, which the lock
  // guards anyway.
  const std::uint64_t now = generation.fetch_add(1, std::memory_order_acq_rel) + 1;
  binding = {world, world->id(), now, true};
  SetLogPe(world->my_pe(), world->n_pes());
  detail::host_context = world->context();
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
    } else if (found == nullptr && !several_) {
      found = entry.world.get();
    }
  }
  binding = {found, found != nullptr ? found->id() : 0, now, own};
  SetLogPe(found != nullptr ? found->my_pe() : 0, found != nullptr ? found->n_pes() : 0);
  detail::host_context = found != nullptr ? found->context() : &kNoContext;
  return found;
}

std::unique_ptr<World> Registry::Remove() {
  const std::lock_guard lock(mutex_);
  World* current = Resolve();
  if (current == nullptr) return nullptr;
  const auto entry = entries_.find(current->my_pe());
  std::unique_ptr<World> world = std::move(entry->second.world);
  entries_.erase(entry);
  generation.fetch_add(1, std::memory_order_acq_rel);
  binding = {};
  detail::host_context = &kNoContext;
  return world;
}

}  // namespace mori::shmem
