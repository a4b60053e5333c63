// Who this process is, by what its launcher put into the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/status.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// Reads a variable; null if it is not set.
using EnvironmentReader = std::function<const char*(const char*)>;

/// Rank and size as a launcher says them.
struct LaunchedAs {
  std::string launcher;  ///< "mori run", "torchrun", "Open MPI", "MPICH", "srun"
  int rank = 0;
  int size = 1;
  bool one_node = true;
  std::string job;  ///< the same for all ranks of this job, and for no other job on this machine
  std::string unique_id;  ///< MORI_UNIQUE_ID, if set
};

/// What the environment says; nothing without a launcher. The innermost launcher counts: `mori
/// run`, then torchrun, then MPI, then srun. @return kInvalidConfig for values that are no rank and
/// size.
Result<std::optional<LaunchedAs>> ReadLaunch(const EnvironmentReader& environment);

/// This process's index among those of its node, as its launcher counts them, the innermost one
/// that does; nothing without one.
std::optional<int> ReadLocalRank(const EnvironmentReader& environment);

struct Launch {
  int rank = 0;
  int size = 1;
  UniqueId id{};
};

/// Rank, size and a unique id that all ranks of this job have. Collective over the ranks of the
/// job, as each of them comes to the same call for the same time; waits for them at most
/// `MORI_BOOTSTRAP_TIMEOUT`.
/// @return kUnsupported for a job on several nodes without `MORI_UNIQUE_ID`; kInvalidConfig,
/// kTimeout, kSystem.
Result<Launch> FindLaunch();

}  // namespace mori::shmem
