#include "shmem/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "base/config.hpp"
#include "base/variables.hpp"
#include "support/forked.hpp"

namespace mori::shmem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

using Environment = std::map<std::string, std::string>;

EnvironmentReader ReaderOf(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}
Result<std::optional<LaunchedAs>> Read(const Environment& environment) {
  return ReadLaunch(ReaderOf(environment));
}
std::optional<int> LocalRank(const Environment& environment) {
  return ReadLocalRank(ReaderOf(environment));
}

Environment With(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}
Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

/// What a launcher puts into the environment of rank 2 of 4, all on one node, and what that is.
struct LauncherRow {
  const char* launcher;
  Environment environment;
  const char* rank;
  const char* size;
  const char* local_rank;
  Environment two_nodes;                 ///< what says that two of the ranks are elsewhere
  std::vector<Environment> other_jobs;   ///< what another job of the user has instead
  const char* says_the_nodes = nullptr;  ///< without it the launcher says nothing about nodes
  Environment surroundings = {};         ///< of the launchers that it may be started by
};

void PrintTo(const LauncherRow& row, std::ostream* out) { *out << row.launcher; }

const std::vector<LauncherRow>& LauncherRows() {
  static const auto* const rows = new std::vector<LauncherRow>{
      {"mori run",
       {{"MORI_RANK", "2"},
        {"MORI_WORLD_SIZE", "4"},
        {"MORI_LOCAL_RANK", "2"},
        {"MORI_LOCAL_WORLD_SIZE", "4"},
        {"MORI_UNIQUE_ID", "abc"},
        {"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29500"}},
       "MORI_RANK",
       "MORI_WORLD_SIZE",
       "MORI_LOCAL_RANK",
       {{"MORI_LOCAL_WORLD_SIZE", "2"}},
       {{{"MORI_UNIQUE_ID", "xyz"}}},
       "MORI_LOCAL_WORLD_SIZE"},
      {"torchrun",
       {{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"GROUP_RANK", "0"},
        {"MASTER_ADDR", "localhost"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", "none"},
        {"TORCHELASTIC_RESTART_COUNT", "0"}},
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       {{"LOCAL_WORLD_SIZE", "2"}},
       {{{"MASTER_PORT", "29501"}},
        {{"MASTER_ADDR", "other"}},
        {{"TORCHELASTIC_RUN_ID", "second"}},
        {{"TORCHELASTIC_RESTART_COUNT", "1"}}},
       "LOCAL_WORLD_SIZE"},
      {"a launcher of torch",  // or a script that sets what torch reads
       {{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "localhost"},
        {"MASTER_PORT", "29500"}},
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       {{"LOCAL_WORLD_SIZE", "2"}},
       {{{"MASTER_PORT", "29501"}}, {{"MASTER_ADDR", "other"}}},
       "LOCAL_WORLD_SIZE"},
      {"jsrun",
       {{"JSM_NAMESPACE_RANK", "2"},
        {"JSM_NAMESPACE_SIZE", "4"},
        {"JSM_NAMESPACE_LOCAL_RANK", "2"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "4"},
        {"PMIX_RANK", "2"},
        {"PMIX_NAMESPACE", "5"},
        {"LSB_JOBID", "1234"}},
       "JSM_NAMESPACE_RANK",
       "JSM_NAMESPACE_SIZE",
       "JSM_NAMESPACE_LOCAL_RANK",
       {{"JSM_NAMESPACE_LOCAL_SIZE", "2"}},
       {{{"LSB_JOBID", "1235"}}, {{"PMIX_NAMESPACE", "6"}}},
       "JSM_NAMESPACE_LOCAL_SIZE"},
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "2"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
        {"PMIX_RANK", "2"},
        {"PMIX_NAMESPACE", "prterun-host-123@1"}},
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       {{{"PMIX_NAMESPACE", "prterun-host-124@1"}}, {{"OMPI_MCA_ess_base_jobid", "1"}}},
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       // its daemons are tasks of srun, one a node
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "77"}}},
      {"MVAPICH2",
       {{"MV2_COMM_WORLD_RANK", "2"},
        {"MV2_COMM_WORLD_SIZE", "4"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "2"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "4"},
        {"MPIRUN_RANK", "2"},
        {"MPIRUN_NPROCS", "4"},
        {"MPIRUN_ID", "4711"}},
       "MV2_COMM_WORLD_RANK",
       "MV2_COMM_WORLD_SIZE",
       "MV2_COMM_WORLD_LOCAL_RANK",
       {{"MV2_COMM_WORLD_LOCAL_SIZE", "2"}},
       {{{"MPIRUN_ID", "4712"}}, {{"SLURM_STEP_ID", "2"}}},
       "MV2_COMM_WORLD_LOCAL_SIZE",
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}},
      {"MVAPICH",
       {{"MVP_COMM_WORLD_RANK", "2"},
        {"MVP_COMM_WORLD_SIZE", "4"},
        {"MVP_COMM_WORLD_LOCAL_RANK", "2"},
        {"MVP_COMM_WORLD_LOCAL_SIZE", "4"},
        {"MPISPAWN_MPIRUN_ID", "4711"}},
       "MVP_COMM_WORLD_RANK",
       "MVP_COMM_WORLD_SIZE",
       "MVP_COMM_WORLD_LOCAL_RANK",
       {{"MVP_COMM_WORLD_LOCAL_SIZE", "2"}},
       {{{"MPISPAWN_MPIRUN_ID", "4712"}}},
       "MVP_COMM_WORLD_LOCAL_SIZE"},
      {"MPICH",
       {{"PMI_RANK", "2"},
        {"PMI_SIZE", "4"},
        {"PMI_PORT", "host:40001"},
        {"MPI_LOCALRANKID", "2"},
        {"MPI_LOCALNRANKS", "4"}},
       "PMI_RANK",
       "PMI_SIZE",
       "MPI_LOCALRANKID",
       {{"MPI_LOCALNRANKS", "2"}},
       {{{"PMI_PORT", "host:40002"}}},
       "MPI_LOCALNRANKS",
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}},
      {"Flux",
       {{"FLUX_TASK_RANK", "2"},
        {"FLUX_JOB_SIZE", "4"},
        {"FLUX_TASK_LOCAL_ID", "2"},
        {"FLUX_JOB_NNODES", "1"},
        {"FLUX_JOB_ID", "f2rzZ"},
        {"FLUX_URI", "local:///run/flux/local"},
        {"PMI_RANK", "2"},
        {"PMI_SIZE", "4"}},
       "FLUX_TASK_RANK",
       "FLUX_JOB_SIZE",
       "FLUX_TASK_LOCAL_ID",
       {{"FLUX_JOB_NNODES", "2"}},
       {{{"FLUX_JOB_ID", "f2rzY"}}, {{"FLUX_URI", "local:///tmp/flux-x/local"}}},
       "FLUX_JOB_NNODES",
       {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}},
      {"PALS",
       {{"PALS_RANKID", "2"},
        {"PMI_RANK", "2"},
        {"PMI_SIZE", "4"},
        {"PALS_LOCAL_RANKID", "2"},
        {"PALS_LOCAL_SIZE", "4"},
        {"PALS_APID", "6f1c"},
        {"PBS_JOBID", "88.host"}},
       "PALS_RANKID",
       "PMI_SIZE",
       "PALS_LOCAL_RANKID",
       {{"PALS_LOCAL_SIZE", "2"}},
       {{{"PALS_APID", "6f1d"}}, {{"PBS_JOBID", "89.host"}}},
       "PALS_LOCAL_SIZE"},
      {"srun",
       {{"SLURM_PROCID", "2"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_STEP_TASKS_PER_NODE", "4"},
        {"SLURM_LOCALID", "2"},
        {"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "0"}},
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}},
       {{{"SLURM_JOB_ID", "78"}}, {{"SLURM_STEP_ID", "1"}}, {{"SLURM_RESTART_COUNT", "1"}}},
       "SLURM_STEP_TASKS_PER_NODE",
       // what its plug-ins for PMI-1, PMI-2 and PMIx set, with ranks that only they would give
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "3"},
        {"PMI_JOBID", "77.0"},
        {"PMIX_RANK", "1"},
        {"PMIX_NAMESPACE", "slurm.pmix.77.0"}}},
      {"PMIx",
       {{"PMIX_RANK", "2"}, {"PMIX_SIZE", "4"}, {"PMIX_NAMESPACE", "n1"}, {"PMIX_LOCAL_RANK", "2"}},
       "PMIX_RANK",
       "PMIX_SIZE",
       "PMIX_LOCAL_RANK",
       {{"PMIX_LOCAL_SIZE", "2"}},
       {{{"PMIX_NAMESPACE", "n2"}}, {{"SLURM_JOB_ID", "1"}}}},
      {"PMI",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "2"}, {"PMI_JOBID", "9"}},
       "PMI_RANK",
       "PMI_SIZE",
       "PMI_LOCAL_RANK",
       {{"PMI_LOCAL_SIZE", "2"}},
       {{{"PMI_JOBID", "10"}},
        {{"PMI_PORT", "h:1"}},
        {{"SLURM_JOB_ID", "78"}},
        {{"SLURM_STEP_ID", "2"}},
        {{"PBS_JOBID", "3"}},
        {{"LSB_JOBID", "4"}}}},
  };
  return *rows;
}

const Environment& EnvironmentOf(std::string_view launcher) {
  for (const LauncherRow& row : LauncherRows()) {
    if (row.launcher == launcher) return row.environment;
  }
  throw std::invalid_argument("no such launcher");
}

class EveryLauncher : public ::testing::TestWithParam<LauncherRow> {
 protected:
  const LauncherRow& row() const { return GetParam(); }
  /// What is decided; fails if nothing is.
  static LaunchedAs Decided(const Environment& environment) {
    const auto launched = Read(environment);
    if (launched.ok() && launched->has_value()) return **launched;
    ADD_FAILURE() << (launched.ok() ? "no launcher" : launched.status().message());
    return {};
  }
};

INSTANTIATE_TEST_SUITE_P(Launchers, EveryLauncher, ::testing::ValuesIn(LauncherRows()),
                         [](const auto& tested) {
                           std::string name = tested.param.launcher;
                           std::erase(name, ' ');
                           return name;
                         });

TEST_P(EveryLauncher, IsKnownByWhatItSets) {
  const LaunchedAs launched = Decided(row().environment);
  EXPECT_EQ(launched.launcher, row().launcher);
  EXPECT_EQ(launched.rank, 2);
  EXPECT_EQ(launched.size, 4);
  EXPECT_EQ(launched.one_node,
            row().says_the_nodes != nullptr ? std::optional(true) : std::nullopt);
  EXPECT_THAT(launched.job, StartsWith(row().launcher));
}

TEST_P(EveryLauncher, IsToldFromThoseThatItWasStartedBy) {
  const LaunchedAs launched = Decided(With(row().surroundings, row().environment));
  EXPECT_EQ(launched.launcher, row().launcher);
  EXPECT_EQ(launched.rank, 2);
  EXPECT_EQ(launched.size, 4);
}

TEST_P(EveryLauncher, SaysTheLocalRank) {
  const char* const name = row().local_rank;
  const auto without_own = [&] {  // what another row would read, too
    Environment environment = Without(row().environment, name);
    if (name != std::string_view("LOCAL_RANK")) environment.erase("LOCAL_RANK");
    return environment;
  }();
  EXPECT_EQ(LocalRank(With(row().environment, {{name, "1"}})), 1);
  EXPECT_EQ(LocalRank(without_own), std::nullopt);
  EXPECT_EQ(LocalRank(With(without_own, {{name, "one"}})), std::nullopt);
}

TEST_P(EveryLauncher, TellsRanksOnOtherNodes) {
  EXPECT_EQ(Decided(With(row().environment, row().two_nodes)).one_node, std::optional(false));
}

TEST_P(EveryLauncher, DoesNotCountAsOneNodeUnlessItSaysSo) {
  Environment environment = row().environment;
  if (row().says_the_nodes != nullptr) environment.erase(row().says_the_nodes);
  EXPECT_EQ(Decided(environment).one_node, std::nullopt);
  environment = With(environment, {{row().rank, "0"}, {row().size, "1"}});
  EXPECT_EQ(Decided(environment).one_node, std::optional(true)) << "a rank alone is on one node";
}

TEST_P(EveryLauncher, NamesTheJobAlikeForItsRanksAndNoOther) {
  const std::string job = Decided(row().environment).job;
  EXPECT_EQ(Decided(With(row().environment, {{row().rank, "3"}, {row().local_rank, "3"}})).job,
            job);
  for (const Environment& other : row().other_jobs) {
    EXPECT_NE(Decided(With(row().environment, other)).job, job) << other.begin()->first;
    EXPECT_THAT(LaunchVariables(), ::testing::Contains(other.begin()->first));
  }
}

TEST_P(EveryLauncher, ChecksItsNumbers) {
  struct Row {
    const char* name;
    std::string value;
    const char* what;
  };
  const Row rows[] = {
      {row().rank, "two", "=\"two\" is no number, as "},
      {row().rank, "-1", "=\"-1\" is no number, as "},
      {row().rank, "2 ", "=\"2 \" is no number, as "},
      {row().rank, "2(x2)", "=\"2(x2)\" is no number, as "},
      {row().rank, "1,2", "=\"1,2\" is no number, as "},
      {row().rank, "99999999999", "=\"99999999999\" is no number, as "},
      {row().rank, "\xff\n", "=\"\\xff\\x0a\" is no number, as "},
      {row().rank, "4", "=\"4\" are no rank and size, as "},
      {row().size, "4.0", "=\"4.0\" is no number, as "},
      {row().size, "0", "=\"0\" are no rank and size, as "},
      {row().size, "2", "=\"2\" are no rank and size, as "},
      {row().size, "1048577", "=\"1048577\" is too large: a world has 1048576 PEs at most"},
      {row().size, "20000000", "=\"20000000\" is too large: a world has 1048576 PEs at most"},
      {row().size, "2147483647", "=\"2147483647\" is too large: a world has 1048576 PEs at most"},
  };
  for (const Row& wrong : rows) {
    const auto launched = Read(With(row().environment, {{wrong.name, wrong.value}}));
    ASSERT_FALSE(launched.ok()) << wrong.value;
    EXPECT_EQ(launched.status().code(), ErrorCode::kInvalidConfig);
    EXPECT_THAT(launched.status().message(), HasSubstr(std::string(wrong.name) + "="));
    EXPECT_THAT(launched.status().message(), HasSubstr(wrong.what));
  }
  EXPECT_EQ(Decided(With(row().environment, {{row().size, "1048576"}})).size, 1048576);
}

TEST_P(EveryLauncher, NeedsASize) {
  if (std::string_view(row().size) == "PMI_SIZE" ||
      std::string_view(row().size).starts_with("SLURM"))
    return;  // it is what they are known by
  for (const Environment& environment :
       {Without(row().environment, row().size), With(row().environment, {{row().size, ""}})}) {
    if (row().launcher == std::string_view("PALS")) continue;
    const auto launched = Read(environment);
    ASSERT_FALSE(launched.ok());
    EXPECT_EQ(launched.status().message(),
              fmt::format("{}=\"2\" makes this process a rank of {}, but {}, the number of ranks, "
                          "is not set: set it, or use shmem_init_attr()",
                          row().rank, row().launcher, row().size));
  }
}

TEST_P(EveryLauncher, ReadsNothingBesidesWhatIsListed) {
  std::set<std::string> read;
  const auto reader = [&](const char* name) -> const char* {
    read.insert(name);
    const auto found = row().environment.find(name);
    return found == row().environment.end() ? nullptr : found->second.c_str();
  };
  ASSERT_TRUE(ReadLaunch(reader).ok());
  static_cast<void>(ReadLocalRank(reader));
  EXPECT_THAT(LaunchVariables(), IsSupersetOf(read));
}

TEST(ReadLocalRank, TheInnermostLauncherThatSaysItCounts) {
  const Environment& srun = EnvironmentOf("srun");
  EXPECT_EQ(
      LocalRank(With(With(srun, EnvironmentOf("Open MPI")), {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}})),
      1);
  EXPECT_EQ(LocalRank(With(srun, {{"SLURM_LOCALID", "3"}, {"MORI_RANK", "0"}})), 3);
  EXPECT_EQ(LocalRank({{"LOCAL_RANK", "1"}}), std::nullopt);  // not by torchrun
}

TEST(ReadLaunch, WithoutALauncherThereIsNothing) {
  for (const Environment& environment :
       {Environment{}, Environment{{"HOME", "/"}},
        Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}},                // one alone
        Environment{{"RANK", "\xff"}, {"WORLD_SIZE", "2"}},             // something else
        Environment{{"RANK", "2"}, {"WORLD_SIZE", "2"}},                //
        Environment{{"MASTER_PORT", "29500"}},                          // a leftover
        Environment{{"MORI_WORLD_SIZE", "2"}},                          //
        Environment{{"MORI_RANK", ""}, {"MORI_WORLD_SIZE", ""}},        // empty is not set
        Environment{{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}}}) {  // in salloc's shell
    const auto launched = Read(environment);
    ASSERT_TRUE(launched.ok()) << launched.status().message();
    EXPECT_FALSE(launched->has_value()) << (*launched)->launcher;
  }
}

TEST(ReadLaunch, ARankOfSeveralWithoutAJobIsAnError) {
  const auto launched = Read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(launched.status().code(), ErrorCode::kInvalidConfig);
  EXPECT_EQ(launched.status().message(),
            "RANK=\"1\" and WORLD_SIZE=\"2\" make this process one of several, but nothing says of "
            "which job: set MASTER_ADDR and MASTER_PORT, start it with torchrun or mori run, or "
            "unset both");
}

TEST(ReadLaunch, TheInnermostLauncherCounts) {
  Environment all;
  for (const char* launcher : {"srun", "MPICH", "Open MPI", "torchrun", "mori run"}) {
    all = With(all, EnvironmentOf(launcher));
    const auto launched = Read(all);
    ASSERT_TRUE(launched.ok() && launched->has_value());
    EXPECT_EQ((*launched)->launcher, launcher);
  }
}

TEST(ReadLaunch, TheUniqueIdIsTakenAlong) {
  const Environment& torchrun = EnvironmentOf("torchrun");
  EXPECT_EQ((*Read(EnvironmentOf("mori run")))->unique_id, "abc");
  EXPECT_EQ((*Read(torchrun))->unique_id, "");
  EXPECT_EQ((*Read(With(torchrun, {{"MORI_UNIQUE_ID", "def"}})))->unique_id, "def");
}

TEST(ReadLaunch, TheUniqueIdIsASecret) {
  EXPECT_EQ((*Read(EnvironmentOf("mori run")))->job_variables, "");
  EXPECT_EQ((*Read(EnvironmentOf("torchrun")))->job_variables,
            "MASTER_ADDR=\"localhost\", MASTER_PORT=\"29500\", TORCHELASTIC_RUN_ID=\"none\", "
            "TORCHELASTIC_RESTART_COUNT=\"0\"");
}

TEST(ReadLaunch, SlurmListsTasksOfSeveralNodes) {
  for (const auto& [tasks, one_node] : {std::pair{"3,1", false}, std::pair{"2(x2)", false},
                                        std::pair{"4(x1)", true}, std::pair{"4", true}}) {
    const auto launched = Read(With(EnvironmentOf("srun"), {{"SLURM_STEP_TASKS_PER_NODE", tasks}}));
    ASSERT_TRUE(launched.ok()) << launched.status().message();
    EXPECT_EQ((*launched)->one_node, std::optional(one_node)) << tasks;
  }
  const auto odd = Read(With(EnvironmentOf("srun"), {{"SLURM_STEP_TASKS_PER_NODE", "(x2)"}}));
  EXPECT_EQ(odd.status().message(),
            "SLURM_STEP_TASKS_PER_NODE=\"(x2)\" is no number, as srun would set it");
}

/// The name of a job whose ranks have `fd` as their end of the connection to the PMI server.
std::string JobOverPmi(int fd) {
  const auto launched =
      Read(With(Without(EnvironmentOf("MPICH"), "PMI_PORT"), {{"PMI_FD", fmt::format("{}", fd)}}));
  return launched.ok() && launched->has_value() ? (*launched)->job : launched.status().message();
}

TEST(ReadLaunch, AJobOverPmiIsNamedByTheProcessAtTheOtherEnd) {
  int ranks_end[2][2];
  for (auto& ends : ranks_end) ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const std::string job = JobOverPmi(ranks_end[0][1]);
  EXPECT_THAT(job, HasSubstr(fmt::format("server={} ", ::getpid())));
  EXPECT_EQ(JobOverPmi(ranks_end[1][1]), job) << "another rank of the same server";
  for (const auto& ends : ranks_end) {
    for (const int fd : ends) ::close(fd);
  }
  // A descriptor that is none says nothing, and neither does the parent process.
  EXPECT_THAT(JobOverPmi(99'999), ::testing::EndsWith("server="));
}

TEST(ReadLaunch, NoProcessAmongTheAncestorsNamesAJob) {
  const std::string failures = testing::RunForked(1, [](int) -> std::string {
    ::prctl(PR_SET_NAME, "hydra_pmi_proxy");
    return testing::RunForked(1, [](int) -> std::string {
      const std::string job = JobOverPmi(99'999);
      return job.ends_with("server=") ? "" : job;
    });
  });
  EXPECT_EQ(failures, "");
}

TEST(LooksLikeARankOfMany, FindsARankWithItsSize) {
  using Entries = std::vector<std::string>;
  EXPECT_EQ(LooksLikeARankOfMany({"A=b", "HOROVOD_RANK=1", "HOROVOD_SIZE=2"}),
            "HOROVOD_RANK=\"1\" and HOROVOD_SIZE=\"2\"");
  EXPECT_EQ(LooksLikeARankOfMany({"MPIRUN_NPROCS=16", "MPIRUN_RANK=0"}),
            "MPIRUN_RANK=\"0\" and MPIRUN_NPROCS=\"16\"");
  EXPECT_EQ(LooksLikeARankOfMany({"\nX_RANK=0", "\nX_WORLD_SIZE=2"}),
            "\\x0aX_RANK=\"0\" and \\x0aX_WORLD_SIZE=\"2\"");
  for (const Entries& entries :
       {Entries{}, Entries{"X_RANK=0", "X_SIZE=1"}, Entries{"X_RANK=2", "X_SIZE=2"},
        Entries{"X_RANK=0"}, Entries{"X_RANK=a", "X_SIZE=2"}, Entries{"X_RANK=0", "Y_SIZE=2"},
        Entries{"X_LOCAL_RANK=0", "X_LOCAL_SIZE=2"}, Entries{"NODE_RANK=0", "NODE_SIZE=2"},
        Entries{"FRANKLIN=0", "FSIZE=3"}, Entries{"=", "", "RANK", "RANK="}}) {
    EXPECT_EQ(LooksLikeARankOfMany(entries), "");
  }
}

TEST(LaunchVariables, AreInTheDocumentation) {
  std::ifstream file(MORI_SOURCE_DIR "/docs/launchers.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& name : LaunchVariables())
    EXPECT_THAT(page.str(), HasSubstr("`" + name + "`"));
}

// Whatever is read, with bytes that nobody expects: an error of one printable line, or nothing.
TEST(RawBytes, InEveryVariableGiveALineOrNothing) {
  std::set<std::string> names;
  for (const std::string& name : LaunchVariables()) names.insert(name);
  for (const Variable& variable : Variables()) names.insert(std::string(variable.name));
  Environment every_launcher;
  for (const LauncherRow& row : LauncherRows())
    every_launcher = With(row.environment, every_launcher);
  for (const std::string& name : names) {
    for (const char* value : {"\xff", "a\nb", "\n[mori] PE 0/1 ready", "1\n", "\x1b[2J", "\xc0\x8a",
                              "\"; x", "%s{}", "\\"}) {
      std::vector<Environment> environments{{{name, value}}, With(every_launcher, {{name, value}})};
      for (const LauncherRow& row : LauncherRows()) {
        if (row.environment.contains(name))
          environments.push_back(With(row.environment, {{name, value}}));
      }
      for (const Environment& environment : environments) {
        Config::Environment entries;
        for (const auto& [set, to] : environment) entries.push_back(set + "=" + to);
        const auto config = Config::FromEnvironment(entries);
        const auto launched = Read(environment);
        static_cast<void>(LocalRank(environment));
        for (const std::string& text :
             {config.status().message(), launched.status().message(), LooksLikeARankOfMany(entries),
              launched.ok() && *launched ? (*launched)->job_variables : std::string()}) {
          EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; }))
              << name << ": " << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mori::shmem
