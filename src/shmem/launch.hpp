// Who this process is, by what its launcher put into the environment.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// Reads a variable; null if it is not set.
using EnvironmentReader = std::function<const char*(const char*)>;

/// Rank and size as a launcher says them.
struct LaunchedAs {
  std::string launcher;  ///< "mori run", "torchrun", "Open MPI", "MPICH", "srun", ...
  int rank = 0;
  int size = 1;
  std::optional<bool> one_node;  ///< empty: the launcher does not say
  /// The same for all ranks of this job, and another for other jobs on this machine as far as the
  /// launcher tells them apart.
  std::string job;
  std::string job_variables;  ///< what the job is named by, for messages; may be empty
  std::string unique_id;      ///< MORI_UNIQUE_ID, if set
};

/// What the environment says; nothing without a launcher. The innermost launcher counts: the order
/// is that of the table in docs/launchers.md. @return kInvalidConfig for values that are no rank
/// and size, and for a rank of several whose launcher does not name the job or the size.
Result<std::optional<LaunchedAs>> ReadLaunch(const EnvironmentReader& environment);

/// This process's index among those of its node, as its launcher counts them, the innermost one
/// that does; nothing without one.
std::optional<int> ReadLocalRank(const EnvironmentReader& environment);

/// Every variable that `ReadLaunch()` and `ReadLocalRank()` read.
std::vector<std::string> LaunchVariables();

/// Where no launcher is known: two variables that look as if an unknown one had made this process a
/// rank of many, as `HOROVOD_RANK="1" and HOROVOD_SIZE="2"`; else empty.
/// @param environment  entries "NAME=value"
std::string LooksLikeARankOfMany(const std::vector<std::string>& environment);

struct Launch {
  int rank = 0;
  int size = 1;
  UniqueId id{};
  /// Ranks on several nodes: the next init needs an id that the world of this one hands on.
  bool needs_next_id = false;
  std::chrono::milliseconds waited{};  ///< for other ranks: that much of the budget is over
};

/// Rank, size and a unique id that all ranks of this job have. Collective over the ranks of the
/// job, as each of them comes to the same call for the same time; waits for them at most
/// `MORI_BOOTSTRAP_TIMEOUT`. Where the launcher names no id, this process has its rank in the job
/// until it ends: another process that says to be the same rank of the same job is refused.
/// On several nodes the first call takes `MORI_UNIQUE_ID`, and each later one what was given to
/// `KeepNextId()` since the one before.
/// @return kUnsupported for a job on several nodes without an id for this call; kMismatch for a
/// rank that another process has; kInvalidConfig, kTimeout, kPeerLost, kSystem.
Result<Launch> FindLaunch();

/// Keeps the id of the next init, which all ranks were given. Thread-safe.
void KeepNextId(const UniqueId& id);

}  // namespace mori::shmem
