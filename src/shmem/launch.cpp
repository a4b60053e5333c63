#include "shmem/launch.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/config.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/unique_id.hpp"
#include "node/abstract_socket.hpp"
#include "node/id_exchange.hpp"
#include "node/rank_claim.hpp"

namespace mori::shmem {
namespace {

/// Names of variables of which the first that is set counts.
using Names = std::vector<const char*>;

/// What a launcher sets. Names of jobs are never taken from the process tree: a shell may stand
/// between the launcher and any of its ranks.
struct Launcher {
  const char* name;
  const char* sign;  ///< is set by this launcher and by none below it in the table
  const char* rank;
  Names size;
  Names local_rank = {};
  Names local_size = {};
  Names nodes = {};  ///< how many nodes the job has
  Names job = {};    ///< all of these that are set name the job, its step and its restart
  /// Whether the other end of the socket in PMI_FD names the job, too: that of the process that
  /// serves the ranks of this node.
  bool has_pmi_socket = false;
  const char* remedy = "give each job a unique id of its own in MORI_UNIQUE_ID";
  /// How ranks of several nodes get a unique id.
  const char* over_nodes = "start it under 'mori meet', which sets MORI_UNIQUE_ID";
};

/// The innermost launcher first. Slurm, PMIx and PMI come last, since they also serve those above.
const std::vector<Launcher>& Launchers() {
  static const auto* const launchers = new std::vector<Launcher>{
      {.name = "mori run",
       .sign = "MORI_RANK",
       .rank = "MORI_RANK",
       .size = {"MORI_WORLD_SIZE"},
       .local_rank = {"MORI_LOCAL_RANK"},
       .local_size = {"MORI_LOCAL_WORLD_SIZE"},
       .job = {"MORI_UNIQUE_ID"}},
      {.name = "torchrun",
       .sign = "TORCHELASTIC_RUN_ID",
       .rank = "RANK",
       .size = {"WORLD_SIZE"},
       .local_rank = {"LOCAL_RANK"},
       .local_size = {"LOCAL_WORLD_SIZE"},
       .job = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
       .remedy = "give each job its own MASTER_PORT",
       .over_nodes = "call shmem_torch_process_group_init() once torch.distributed is initialized"},
      {.name = "a launcher of torch",
       .sign = "MASTER_PORT",
       .rank = "RANK",
       .size = {"WORLD_SIZE"},
       .local_rank = {"LOCAL_RANK"},
       .local_size = {"LOCAL_WORLD_SIZE"},
       .job = {"MASTER_ADDR", "MASTER_PORT"},
       .remedy = "give each job its own MASTER_PORT",
       .over_nodes = "call shmem_torch_process_group_init() once torch.distributed is initialized"},
      {.name = "jsrun",
       .sign = "JSM_NAMESPACE_RANK",
       .rank = "JSM_NAMESPACE_RANK",
       .size = {"JSM_NAMESPACE_SIZE"},
       .local_rank = {"JSM_NAMESPACE_LOCAL_RANK"},
       .local_size = {"JSM_NAMESPACE_LOCAL_SIZE"},
       .job = {"LSB_JOBID", "PMIX_NAMESPACE"}},
      {.name = "Open MPI",
       .sign = "OMPI_COMM_WORLD_RANK",
       .rank = "OMPI_COMM_WORLD_RANK",
       .size = {"OMPI_COMM_WORLD_SIZE"},
       .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
       .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"},
       .over_nodes = "start it as in 'mori meet mpirun -x MORI_UNIQUE_ID ...'"},
      {.name = "MVAPICH2",
       .sign = "MV2_COMM_WORLD_RANK",
       .rank = "MV2_COMM_WORLD_RANK",
       .size = {"MV2_COMM_WORLD_SIZE"},
       .local_rank = {"MV2_COMM_WORLD_LOCAL_RANK"},
       .local_size = {"MV2_COMM_WORLD_LOCAL_SIZE"},
       .job = {"MPIRUN_ID", "MPISPAWN_MPIRUN_ID", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID"},
       .has_pmi_socket = true},
      {.name = "MVAPICH",
       .sign = "MVP_COMM_WORLD_RANK",
       .rank = "MVP_COMM_WORLD_RANK",
       .size = {"MVP_COMM_WORLD_SIZE"},
       .local_rank = {"MVP_COMM_WORLD_LOCAL_RANK"},
       .local_size = {"MVP_COMM_WORLD_LOCAL_SIZE"},
       .job = {"MPIRUN_ID", "MPISPAWN_MPIRUN_ID", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID"},
       .has_pmi_socket = true},
      {.name = "MPICH",  // its launcher Hydra, also that of Intel MPI
       .sign = "MPI_LOCALNRANKS",
       .rank = "PMI_RANK",
       .size = {"PMI_SIZE"},
       .local_rank = {"MPI_LOCALRANKID"},
       .local_size = {"MPI_LOCALNRANKS"},
       .job = {"PMI_PORT"},
       .has_pmi_socket = true,
       .over_nodes = "start it as in 'mori meet mpiexec ...'"},
      {.name = "Flux",
       .sign = "FLUX_TASK_RANK",
       .rank = "FLUX_TASK_RANK",
       .size = {"FLUX_JOB_SIZE"},
       .local_rank = {"FLUX_TASK_LOCAL_ID"},
       .nodes = {"FLUX_JOB_NNODES"},
       .job = {"FLUX_JOB_ID", "FLUX_URI"}},
      {.name = "PALS",
       .sign = "PALS_RANKID",
       .rank = "PALS_RANKID",
       .size = {"PALS_SIZE", "PMI_SIZE"},
       .local_rank = {"PALS_LOCAL_RANKID"},
       .local_size = {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
       .job = {"PALS_APID", "PBS_JOBID"}},
      {.name = "srun",
       .sign = "SLURM_STEP_NUM_TASKS",
       .rank = "SLURM_PROCID",
       .size = {"SLURM_STEP_NUM_TASKS"},
       .local_rank = {"SLURM_LOCALID"},
       .local_size = {"SLURM_STEP_TASKS_PER_NODE"},
       .nodes = {"SLURM_STEP_NUM_NODES"},
       .job = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
       .over_nodes = "start it as in 'mori meet srun ...'"},
      {.name = "PMIx",
       .sign = "PMIX_RANK",
       .rank = "PMIX_RANK",
       .size = {"PMIX_SIZE", "PMI_SIZE"},
       .local_rank = {"PMIX_LOCAL_RANK"},
       .local_size = {"PMIX_LOCAL_SIZE"},
       .job = {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID"}},
      {.name = "PMI",
       .sign = "PMI_SIZE",
       .rank = "PMI_RANK",
       .size = {"PMI_SIZE"},
       .local_rank = {"PMI_LOCAL_RANK", "MPI_LOCALRANKID"},
       .local_size = {"PMI_LOCAL_SIZE"},
       .job = {"PMI_JOBID", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID"},
       .has_pmi_socket = true},
  };
  return *launchers;
}

constexpr const char* kPmiSocket = "PMI_FD";

bool IsSet(const EnvironmentReader& environment, const char* name) {
  const char* value = environment(name);
  return value != nullptr && *value != '\0';
}

/// The first of `names` that is set; null if none is.
const char* FirstSet(const EnvironmentReader& environment, const Names& names) {
  const auto found =
      std::ranges::find_if(names, [&](const char* name) { return IsSet(environment, name); });
  return found == names.end() ? nullptr : *found;
}

std::string Setting(const EnvironmentReader& environment, const char* name) {
  return fmt::format("{}={}", name, Quote(environment(name)));
}

/// The whole number of `text`, not negative. Slurm writes "4(x2)" for four tasks on each of two
/// nodes, and "4,2" for two that differ: where `per_node`, the number in front counts.
std::optional<int> NumberOf(std::string_view text, bool per_node = false) {
  int value = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool ends_well = stop == end || (per_node && (*stop == '(' || *stop == ','));
  if (error != std::errc() || !ends_well || value < 0) return std::nullopt;
  return value;
}

Result<int> ReadNumber(const EnvironmentReader& environment, const char* name, const char* launcher,
                       bool per_node = false) {
  const std::optional<int> value = NumberOf(environment(name), per_node);
  if (value) return *value;
  return Error(ErrorCode::kInvalidConfig, "{} is no number, as {} would set it",
               Setting(environment, name), launcher);
}

Result<int> ReadSize(const EnvironmentReader& environment, const Launcher& launcher) {
  const char* const name = FirstSet(environment, launcher.size);
  if (name == nullptr) {
    return Error(ErrorCode::kInvalidConfig,
                 "{} makes this process a rank of {}, but {}, the number of ranks, is not set: set "
                 "it, or use shmem_init_attr()",
                 Setting(environment, launcher.rank), launcher.name, launcher.size.front());
  }
  MORI_ASSIGN_OR_RETURN(const int size, ReadNumber(environment, name, launcher.name));
  if (size > kMaxRanks) {
    return Error(ErrorCode::kInvalidConfig, "{} is too large: a world has {} PEs at most",
                 Setting(environment, name), kMaxRanks);
  }
  return size;
}

/// Whether all ranks are on this node; empty if the launcher says nothing about it.
Result<std::optional<bool>> ReadOneNode(const EnvironmentReader& environment,
                                        const Launcher& launcher, int size) {
  if (const char* const name = FirstSet(environment, launcher.local_size)) {
    MORI_ASSIGN_OR_RETURN(const int local_size,
                          ReadNumber(environment, name, launcher.name, /*per_node=*/true));
    return std::optional(local_size == size);
  }
  if (const char* const name = FirstSet(environment, launcher.nodes)) {
    MORI_ASSIGN_OR_RETURN(const int nodes, ReadNumber(environment, name, launcher.name));
    return std::optional(nodes == 1);
  }
  return size == 1 ? std::optional(true) : std::nullopt;
}

/// When a process started: tells it from later processes of the same id.
std::optional<std::string> StartOf(pid_t pid) {
  constexpr int kStartTime = 22;  // of the fields of /proc/<pid>/stat, the third is behind the name
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const auto close = line.rfind(')');
  if (close == std::string::npos || close + 2 >= line.size()) return std::nullopt;
  std::istringstream fields(line.substr(close + 2));
  std::string field;
  for (int index = 3; index <= kStartTime; ++index) {
    if (!(fields >> field)) return std::nullopt;
  }
  return field;
}

/// The process that serves PMI to the ranks of this node, with its start: it made the pair of
/// sockets of which PMI_FD is one. Empty if it is not known.
std::string PmiServer(const EnvironmentReader& environment) {
  if (!IsSet(environment, kPmiSocket)) return "";
  const std::optional<int> fd = NumberOf(environment(kPmiSocket));
  const std::optional<pid_t> server = fd ? PeerProcess(*fd) : std::nullopt;
  const auto start = server ? StartOf(*server) : std::nullopt;
  return start ? fmt::format("{} {}", *server, *start) : "";
}

void NameJob(const EnvironmentReader& environment, const Launcher& launcher, LaunchedAs* launched) {
  launched->job = launcher.name;
  for (const char* name : launcher.job) {
    const char* const value = environment(name);
    launched->job += fmt::format("\n{}={}", name, value != nullptr ? value : "");
    const bool is_secret = std::string_view(name) == "MORI_UNIQUE_ID";
    if (!IsSet(environment, name) || is_secret) continue;
    if (!launched->job_variables.empty()) launched->job_variables += ", ";
    launched->job_variables += Setting(environment, name);
  }
  if (launcher.has_pmi_socket) launched->job += "\nserver=" + PmiServer(environment);
}

Result<LaunchedAs> ReadAs(const EnvironmentReader& environment, const Launcher& launcher) {
  LaunchedAs launched;
  launched.launcher = launcher.name;
  MORI_ASSIGN_OR_RETURN(launched.rank, ReadNumber(environment, launcher.rank, launcher.name));
  MORI_ASSIGN_OR_RETURN(launched.size, ReadSize(environment, launcher));
  if (launched.size < 1 || launched.rank >= launched.size) {
    return Error(ErrorCode::kInvalidConfig, "{} and {} are no rank and size, as {} would set them",
                 Setting(environment, launcher.rank),
                 Setting(environment, FirstSet(environment, launcher.size)), launcher.name);
  }
  MORI_ASSIGN_OR_RETURN(launched.one_node, ReadOneNode(environment, launcher, launched.size));
  NameJob(environment, launcher, &launched);
  if (IsSet(environment, "MORI_UNIQUE_ID")) launched.unique_id = environment("MORI_UNIQUE_ID");
  return launched;
}

/// RANK and WORLD_SIZE alone: nothing says of which job. Not an error where they cannot be meant.
Status CheckRankWithoutJob(const EnvironmentReader& environment) {
  if (!IsSet(environment, "RANK") || !IsSet(environment, "WORLD_SIZE")) return Status();
  const auto rank = NumberOf(environment("RANK")), size = NumberOf(environment("WORLD_SIZE"));
  if (!rank || !size || *size < 2 || *rank >= *size) return Status();
  return Error(ErrorCode::kInvalidConfig,
               "{} and {} make this process one of several, but nothing says of which job: set "
               "MASTER_ADDR and MASTER_PORT, start it with torchrun or mori run, or unset both",
               Setting(environment, "RANK"), Setting(environment, "WORLD_SIZE"));
}

std::chrono::milliseconds Budget(const Result<Config>& config) {
  // A configuration that cannot be used is reported by the init itself, where the other ranks learn
  // of it.
  return config.ok() ? config->bootstrap_timeout : Config{}.bootstrap_timeout;
}

Result<UniqueId> NewId(const Result<Config>& config) {
  return RendezvousService::Instance().Open(config.ok() ? *config : Config{});
}

const Launcher& LauncherOf(const LaunchedAs& launched) {
  return *std::ranges::find_if(
      Launchers(), [&](const Launcher& known) { return known.name == launched.launcher; });
}

Status Claim(const LaunchedAs& launched, const std::string& job) {
  MORI_ASSIGN_OR_RETURN(const auto owner, ClaimRank(job, launched.rank));
  if (!owner) return Status();
  const Launcher& launcher = LauncherOf(launched);
  const std::string named_by =
      launched.job_variables.empty() ? "" : fmt::format(" ({})", launched.job_variables);
  return Error(
      ErrorCode::kMismatch,
      "process {} of this user is rank {} of {} of the same job{} already: two jobs at the "
      "same time need different names: {}",
      *owner, launched.rank, launched.size, named_by, launcher.remedy);
}

/// What a rank that waits for others of this machine says of those of other machines.
std::string HintAboutNodes(const LaunchedAs& launched) {
  if (launched.one_node) return "";
  return fmt::format(
      "{} does not say how many ranks are on this node, and those of other nodes cannot be found: "
      "if there are any, the job needs a unique id: {}, or use shmem_init_attr()",
      launched.launcher, LauncherOf(launched).over_nodes);
}

/// Ranks of several nodes that have no id for this init.
Status NoIdOverNodes(const LaunchedAs& launched, int call) {
  if (!launched.unique_id.empty()) {
    return Error(ErrorCode::kUnsupported,
                 "MORI_UNIQUE_ID has served the first initialization, this is number {}, and the "
                 "world before left no id for it, as it does where all PEs finalize without an "
                 "error: use shmem_init_attr() with a new id",
                 call + 1);
  }
  return Error(ErrorCode::kUnsupported,
               "this job of {} has {} ranks on several nodes, which need a unique id: {}, or use "
               "shmem_init_attr()",
               launched.launcher, launched.size, LauncherOf(launched).over_nodes);
}

std::vector<std::string> ProcessEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return entries;
}

Result<UniqueId> IdForWorldOfOne(const Result<Config>& config) {
  const std::string rank_of_many = LooksLikeARankOfMany(ProcessEnvironment());
  if (!rank_of_many.empty()) {
    LogWarn(
        "this process is PE 0 of 1, since no launcher that is known here started it; but {} look "
        "as "
        "if it were one of many: then use mori run, or shmem_init_attr() with rank and size",
        rank_of_many);
  }
  return NewId(config);
}

/// Of the next init, where a world has handed one on.
class NextId {
 public:
  void Keep(const UniqueId& id) {
    const std::lock_guard lock(mutex_);
    id_ = id;
  }
  std::optional<UniqueId> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(id_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::optional<UniqueId> id_;
};
NextId next_id;

}  // namespace

void KeepNextId(const UniqueId& id) { next_id.Keep(id); }

Result<std::optional<LaunchedAs>> ReadLaunch(const EnvironmentReader& environment) {
  for (const Launcher& launcher : Launchers()) {
    if (!IsSet(environment, launcher.sign) || !IsSet(environment, launcher.rank)) continue;
    MORI_ASSIGN_OR_RETURN(LaunchedAs launched, ReadAs(environment, launcher));
    return std::optional(std::move(launched));
  }
  MORI_RETURN_IF_ERROR(CheckRankWithoutJob(environment));
  return std::optional<LaunchedAs>();
}

std::optional<int> ReadLocalRank(const EnvironmentReader& environment) {
  for (const Launcher& launcher : Launchers()) {
    const char* const name = FirstSet(environment, launcher.local_rank);
    if (!IsSet(environment, launcher.sign) || name == nullptr) continue;
    if (const auto rank = NumberOf(environment(name))) return rank;
  }
  return std::nullopt;
}

std::vector<std::string> LaunchVariables() {
  std::set<std::string> names{"MORI_UNIQUE_ID", kPmiSocket};
  for (const Launcher& launcher : Launchers()) {
    names.insert({launcher.sign, launcher.rank});
    for (const Names* more : {&launcher.size, &launcher.local_rank, &launcher.local_size,
                              &launcher.nodes, &launcher.job})
      names.insert(more->begin(), more->end());
  }
  return {names.begin(), names.end()};
}

std::string LooksLikeARankOfMany(const std::vector<std::string>& environment) {
  constexpr std::array kSizes = {"SIZE", "WORLD_SIZE", "NPROCS", "NRANKS", "NTASKS"};
  constexpr std::array kPartsOfAWorld = {"LOCAL", "NODE", "GROUP", "ROLE", "HOST"};
  constexpr std::string_view kRank = "RANK";
  const auto number_of = [&](const std::string& name) -> std::optional<int> {
    const auto found = std::ranges::find_if(
        environment, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    return found == environment.end() ? std::nullopt : NumberOf(found->substr(name.size() + 1));
  };
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if (!name.ends_with(kRank)) continue;
    const std::string stem = name.substr(0, name.size() - kRank.size());
    if (std::ranges::any_of(kPartsOfAWorld,
                            [&](const char* part) { return stem.find(part) != std::string::npos; }))
      continue;
    const auto rank = number_of(name);
    for (const char* suffix : kSizes) {
      const auto size = number_of(stem + suffix);
      if (!rank || !size || *size < 2 || *rank >= *size) continue;
      return fmt::format("{}=\"{}\" and {}=\"{}\"", OneLine(name), *rank, OneLine(stem + suffix),
                         *size);
    }
  }
  return "";
}

Result<Launch> FindLaunch() {
  static std::atomic<int> calls{0};
  const int call = calls.fetch_add(1, std::memory_order_relaxed);
  MORI_ASSIGN_OR_RETURN(const auto launched,
                        ReadLaunch([](const char* name) { return std::getenv(name); }));
  const Result<Config> config = Config::FromEnvironment();
  Launch launch;
  if (!launched) {
    MORI_ASSIGN_OR_RETURN(launch.id, IdForWorldOfOne(config));
    return launch;
  }
  launch.rank = launched->rank;
  launch.size = launched->size;
  launch.needs_next_id = !launched->unique_id.empty() && launched->one_node != true;
  if (const auto kept = next_id.Take(); kept && launch.needs_next_id) {
    launch.id = *kept;
    return launch;
  }
  if (!launched->unique_id.empty() && call == 0) {
    auto id = UniqueIdFromHex(launched->unique_id);
    if (!id.ok())
      return Error(ErrorCode::kInvalidConfig, "MORI_UNIQUE_ID: {}", id.status().message());
    launch.id = *id;
    return launch;
  }
  if (launched->one_node == false) return NoIdOverNodes(*launched, call);
  // The id of the launcher serves one init; later ones, and launchers without an id, get theirs
  // from rank 0.
  const std::string job = fmt::format("{}\nuser={}", launched->job, ::geteuid());
  if (launch.size > 1) MORI_RETURN_IF_ERROR(Claim(*launched, job));
  const auto start = Deadline::Clock::now();
  const IdExchange exchange(fmt::format("{}\ncall={}", job, call), launch.rank, launch.size,
                            Deadline::After(Budget(config)), {.hint = HintAboutNodes(*launched)});
  std::optional<UniqueId> made;
  const Result<UniqueId> id = exchange.Run([&] {
    const Result<UniqueId> fresh = NewId(config);
    if (fresh.ok()) made = *fresh;
    return fresh;
  });
  // Some ranks may have it, and wait where it leads them.
  if (!id.ok() && made) RendezvousService::Instance().GiveUp(*made, id.status(), launch.size - 1);
  MORI_RETURN_IF_ERROR(id.status());
  launch.id = *id;
  launch.waited =
      std::min(Budget(config),
               std::chrono::floor<std::chrono::milliseconds>(Deadline::Clock::now() - start));
  return launch;
}

}  // namespace mori::shmem
