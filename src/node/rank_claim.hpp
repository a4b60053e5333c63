// One process for each rank of a job: who comes second is told, instead of being taken for another.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/status.hpp"

namespace mori::shmem {

/// Claims `rank` of `job` for this process, on this machine, until the process ends or claims
/// another; a forked child does not have it. To be called by one thread at a time.
/// @return the process of this user that has claimed it already; empty if it is ours now; kSystem.
Result<std::optional<pid_t>> ClaimRank(const std::string& job, int rank);

}  // namespace mori::shmem
