#include "shmem/launch.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "base/config.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/unique_id.hpp"
#include "node/id_exchange.hpp"

namespace mori::shmem {
namespace {

/// A launcher's variables for rank, size and ranks on this node.
struct LauncherVariables {
  const char* launcher;
  const char* sign;  ///< must be there too
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  std::initializer_list<const char*> job;  ///< together they name the job
};

const LauncherVariables kLaunchers[] = {
    {"mori run",
     "MORI_RANK",
     "MORI_RANK",
     "MORI_WORLD_SIZE",
     "MORI_LOCAL_RANK",
     "MORI_LOCAL_WORLD_SIZE",
     {"MORI_UNIQUE_ID"}},
    {"torchrun",
     "MASTER_PORT",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}},
    {"MPICH", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {}},
    {"srun",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     "SLURM_STEP_TASKS_PER_NODE",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

bool IsSet(const EnvironmentReader& environment, const char* name) {
  const char* value = environment(name);
  return value != nullptr && *value != '\0';
}

/// @param per_node  whether the value may list nodes: Slurm writes "4(x2)" for four tasks on each
/// of two nodes, "4,2" for two that differ; the number in front is what we want.
Result<int> ReadNumber(const EnvironmentReader& environment, const char* name, const char* launcher,
                       bool per_node = false) {
  const char* text = environment(name);
  int value = -1;
  const std::string_view view = text != nullptr ? text : "";
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  const bool ends_well =
      end == view.data() + view.size() || (per_node && (*end == '(' || *end == ','));
  if (error != std::errc() || !ends_well || value < 0) {
    return Error(ErrorCode::kInvalidConfig, "{}={} is no number, as {} would set it", name,
                 text != nullptr ? text : "(not set)", launcher);
  }
  return value;
}

/// Hydra gives its ranks no name of the job: the process that started them all stands for it, found
/// by its name among our ancestors and told apart from later ones of the same id by its start time.
std::string HydraJob() {
  for (pid_t pid = ::getppid(); pid > 1;) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string line;
    if (!std::getline(file, line)) break;
    const auto open = line.find('('), close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 2 >= line.size()) break;
    std::istringstream fields(line.substr(close + 2));
    std::string field, parent, start_time;
    for (int index = 3; index <= 22 && fields >> field; ++index) {
      if (index == 4) parent = field;
      if (index == 22) start_time = field;
    }
    if (line.substr(open + 1, close - open - 1).starts_with("hydra_pmi_proxy"))
      return fmt::format("{} {}", pid, start_time);
    pid = static_cast<pid_t>(std::strtol(parent.c_str(), nullptr, 10));
  }
  return fmt::format("{}", ::getppid());
}

std::string JobName(const LauncherVariables& variables, const EnvironmentReader& environment) {
  std::string job = variables.launcher;
  for (const char* name : variables.job) {
    const char* value = environment(name);
    job += fmt::format("\n{}={}", name, value != nullptr ? value : "");
  }
  if (variables.job.size() == 0) job += "\n" + HydraJob();
  return job;
}

std::chrono::milliseconds Budget(const Result<Config>& config) {
  // A configuration that cannot be used is reported by the init itself, where the other ranks learn
  // of it.
  return config.ok() ? config->bootstrap_timeout : Config{}.bootstrap_timeout;
}

Result<UniqueId> NewId(const Result<Config>& config) {
  return RendezvousService::Instance().Open(config.ok() ? *config : Config{});
}

}  // namespace

Result<std::optional<LaunchedAs>> ReadLaunch(const EnvironmentReader& environment) {
  for (const LauncherVariables& variables : kLaunchers) {
    if (!IsSet(environment, variables.sign) || !IsSet(environment, variables.rank)) continue;
    LaunchedAs launched;
    launched.launcher = variables.launcher;
    MORI_ASSIGN_OR_RETURN(launched.rank,
                          ReadNumber(environment, variables.rank, variables.launcher));
    MORI_ASSIGN_OR_RETURN(launched.size,
                          ReadNumber(environment, variables.size, variables.launcher));
    int local_size = launched.size;
    if (IsSet(environment, variables.local_size)) {
      MORI_ASSIGN_OR_RETURN(local_size,
                            ReadNumber(environment, variables.local_size, variables.launcher,
                                       /*per_node=*/true));
    }
    if (launched.size < 1 || launched.rank >= launched.size) {
      return Error(ErrorCode::kInvalidConfig,
                   "{}={} and {}={} are no rank and size, as {} would set them", variables.rank,
                   launched.rank, variables.size, launched.size, variables.launcher);
    }
    launched.one_node = local_size == launched.size;
    launched.job = JobName(variables, environment);
    if (IsSet(environment, "MORI_UNIQUE_ID")) launched.unique_id = environment("MORI_UNIQUE_ID");
    return std::optional(std::move(launched));
  }
  return std::optional<LaunchedAs>();
}

std::optional<int> ReadLocalRank(const EnvironmentReader& environment) {
  for (const LauncherVariables& variables : kLaunchers) {
    if (!IsSet(environment, variables.sign) || !IsSet(environment, variables.local_rank)) continue;
    const auto rank = ReadNumber(environment, variables.local_rank, variables.launcher);
    if (rank.ok()) return *rank;
  }
  return std::nullopt;
}

Result<Launch> FindLaunch() {
  static std::atomic<int> calls{0};
  const int call = calls.fetch_add(1, std::memory_order_relaxed);
  MORI_ASSIGN_OR_RETURN(const auto launched,
                        ReadLaunch([](const char* name) { return std::getenv(name); }));
  const Result<Config> config = Config::FromEnvironment();
  Launch launch;
  if (!launched) {
    MORI_ASSIGN_OR_RETURN(launch.id, NewId(config));
    return launch;
  }
  launch.rank = launched->rank;
  launch.size = launched->size;
  if (!launched->unique_id.empty() && call == 0) {
    auto id = UniqueIdFromHex(launched->unique_id);
    if (!id.ok())
      return Error(ErrorCode::kInvalidConfig, "MORI_UNIQUE_ID: {}", id.status().message());
    launch.id = *id;
    return launch;
  }
  if (!launched->one_node) {
    return Error(ErrorCode::kUnsupported,
                 "this job of {} has {} ranks on several nodes: give all of them a unique id in "
                 "MORI_UNIQUE_ID, or use "
                 "shmem_init_attr()",
                 launched->launcher, launched->size);
  }
  // The id of the launcher serves one init; later ones, and launchers without an id, get theirs
  // from rank 0.
  const std::string meeting = fmt::format("{}\ncall={}\nuser={}", launched->job, call, ::geteuid());
  const IdExchange exchange(meeting, launch.rank, launch.size, Deadline::After(Budget(config)));
  MORI_ASSIGN_OR_RETURN(launch.id, exchange.Run([&] { return NewId(config); }));
  return launch;
}

}  // namespace mori::shmem
