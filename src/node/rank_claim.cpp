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
    const auto owner = ConnectAbstract(name, Deadline::After(std::chrono::seconds(0)));
    const std::optional<pid_t> process = owner.ok() ? PeerProcess(owner->get()) : std::nullopt;
    // Another copy of the library in this process has it.
    if (process) return *process == ::getpid() ? std::optional<pid_t>() : process;
    // Neither call got a socket: no other process is the reason.
    if (owner.status().code() == ErrorCode::kSystem) return listener.status();
    // It may have ended between the two calls.
    if (!owner.ok() && owner.status().code() == ErrorCode::kPeerLost)
      listener = ListenAbstract(name);
    if (!listener.ok()) {
      return Error(ErrorCode::kMismatch,
                   "a process that cannot be seen from here, of another user or in another "
                   "container, is rank {} of a job of the same name already: give the ranks of "
                   "each job a unique id in MORI_UNIQUE_ID",
                   rank);
    }
  }
  own = {std::move(*listener), std::move(name), ::getpid()};
  return std::optional<pid_t>();
}

}  // namespace mori::shmem
