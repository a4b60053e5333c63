// Makes the bootstrap of a world: the one place that knows the concrete classes.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/unique_id.hpp"

namespace mori::shmem {

struct BootstrapOptions {
  int rank = 0;
  int size = 1;
  std::string version;
  std::string host;
  std::string node;  ///< equal for ranks of one node: one connection per node crosses the network
  std::vector<IpAddress> listen_addresses;  ///< where this rank's children may connect
  std::chrono::milliseconds budget{300'000};
  std::chrono::milliseconds waited{};  ///< the part of it that is over before this begins
  std::chrono::seconds silence = kSilence;
  Status failure;  ///< why this rank cannot take part: told to all others, and returned
};

/// Once all have come, what is left to do has at least this much time, or the budget if that is
/// less: the last rank may have come just in time.
inline constexpr std::chrono::seconds kAfterMeeting{30};

/// Meets the other ranks. Collective; waits at most about `budget` for others to come. What fails
/// here is told to all others.
/// @return kMismatch, kTimeout with the missing ranks, kPeerLost with the rank, or if nobody
///   answers for this id; kInvalidArgument for rank and size; or `failure`.
Result<std::unique_ptr<Bootstrap>> MakeBootstrap(const Rendezvous& rendezvous,
                                                 const BootstrapOptions& options);

}  // namespace mori::shmem
