#include "node/rank_claim.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "node/abstract_socket.hpp"

namespace mori::shmem {
namespace {

/// A socket that listens under the name of the claim and never answers. The kernel closes it with
/// the process, however that ends. Relaxed: only its owner changes it, and a fork's child.
std::atomic<int> claim_fd{-1};

void CloseClaim() {
  const int fd = claim_fd.exchange(-1, std::memory_order_relaxed);
  if (fd >= 0) ::close(fd);
}

/// Kept by the caller of `ClaimRank()`, which is one thread at a time.
std::string& ClaimedName() {
  static auto* const name = new std::string;
  return *name;
}

}  // namespace

Result<std::optional<pid_t>> ClaimRank(const std::string& job, int rank) {
  static const int handler = ::pthread_atfork(nullptr, nullptr, CloseClaim);
  if (handler != 0) return Status::FromErrno(handler, "register a handler for fork");
  const std::string name = AbstractNameFor(fmt::format("{}\nclaimed rank={}", job, rank));
  if (claim_fd.load(std::memory_order_relaxed) >= 0 && name == ClaimedName())
    return std::optional<pid_t>();
  auto listener = ListenAbstract(name);
  if (!listener.ok()) {
    // It may be gone between the two calls: then the first one's error is the one to tell.
    const auto owner = ConnectAbstract(name, Deadline::After(std::chrono::seconds(0)));
    const std::optional<pid_t> process = owner.ok() ? PeerProcess(owner->get()) : std::nullopt;
    if (!process) return listener.status();
    // Another copy of the library in this process has it.
    return *process == ::getpid() ? std::optional<pid_t>() : process;
  }
  CloseClaim();
  ClaimedName() = name;
  claim_fd.store(listener->Release(), std::memory_order_relaxed);
  return std::optional<pid_t>();
}

}  // namespace mori::shmem
