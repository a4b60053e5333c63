// Sockets between processes of one user on one machine, without a name in the file system.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"

namespace mori::shmem {

/// Listens under `name`. All sockets made here are non-blocking, closed on exec, and closed in
/// forked children.
Result<UniqueFd> ListenAbstract(const std::string& name);

/// Connects to `name`, unless another user listens there (kMismatch).
/// @return kPeerLost if nobody does.
Result<UniqueFd> ConnectAbstract(const std::string& name, const Deadline& deadline);

/// Takes a waiting connection of the same user; empty if none waits, it was another user's, or it
/// has failed meanwhile.
/// @return kSystem for a shortage of descriptors or memory here.
Result<UniqueFd> AcceptAbstract(int listening_fd);

/// The process at the other end of a connection, or of a pair of sockets: the one that made that
/// end. Empty if it is no local socket, or the process is not to be seen from here.
std::optional<pid_t> PeerProcess(int socket);

/// A name made of a hash: says nothing of `text`, and is the same for the same text.
std::string AbstractNameFor(std::string_view text);

}  // namespace mori::shmem
