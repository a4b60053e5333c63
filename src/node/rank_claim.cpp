#include "node/rank_claim.hpp"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "node/abstract_socket.hpp"

namespace mori::shmem {
namespace {

/// What the process holds. A forked child has a copy, and not the socket.
struct Claim {
  UniqueFd socket;  ///< listens under the name of the claim, and never answers
  std::string name;
  pid_t process = 0;
};

Claim& OwnClaim() {
  static auto* const claim = new Claim;  // never destroyed: the kernel ends it with the process
  return *claim;
}

}  // namespace

Result<std::optional<pid_t>> ClaimRank(const std::string& job, int rank) {
  std::string name = AbstractNameFor(fmt::format("{}\nclaimed rank={}", job, rank));
  Claim& own = OwnClaim();
  if (own.process == ::getpid() && own.name == name) return std::optional<pid_t>();
  auto listener = ListenAbstract(name);
  if (!listener.ok()) {
    // It may be gone between the two calls: then the first one's error is the one to tell.
    const auto owner = ConnectAbstract(name, Deadline::After(std::chrono::seconds(0)));
    const std::optional<pid_t> process = owner.ok() ? PeerProcess(owner->get()) : std::nullopt;
    if (!process) return listener.status();
    // Another copy of the library in this process has it.
    return *process == ::getpid() ? std::optional<pid_t>() : process;
  }
  own = {std::move(*listener), std::move(name), ::getpid()};
  return std::optional<pid_t>();
}

}  // namespace mori::shmem
