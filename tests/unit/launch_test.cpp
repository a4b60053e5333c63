#include "shmem/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

namespace mori::shmem {
namespace {

using ::testing::HasSubstr;
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

// What each launcher puts into the environment of rank 2 of 4.
const Environment kMoriRun{{"MORI_RANK", "2"},
                           {"MORI_WORLD_SIZE", "4"},
                           {"MORI_LOCAL_RANK", "2"},
                           {"MORI_LOCAL_WORLD_SIZE", "4"},
                           {"MORI_UNIQUE_ID", "abc"}};
const Environment kTorchrun{{"RANK", "2"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "2"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"PMIX_NAMESPACE", "prterun-host-123@1"}};
const Environment kMpich{{"PMI_RANK", "2"},
                         {"PMI_SIZE", "4"},
                         {"PMI_FD", "9"},
                         {"MPI_LOCALRANKID", "2"},
                         {"MPI_LOCALNRANKS", "4"}};
const Environment kSrun{{"SLURM_PROCID", "2"},
                        {"SLURM_STEP_NUM_TASKS", "4"},
                        {"SLURM_STEP_TASKS_PER_NODE", "4"},
                        {"SLURM_JOB_ID", "77"},
                        {"SLURM_STEP_ID", "0"}};

Environment With(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}
Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(ReadLaunch, EveryLauncherIsKnown) {
  struct Row {
    const char* launcher;
    Environment environment;
  };
  for (const Row& row : {Row{"mori run", kMoriRun}, Row{"torchrun", kTorchrun},
                         Row{"Open MPI", kOpenMpi}, Row{"MPICH", kMpich}, Row{"srun", kSrun}}) {
    const auto launched = Read(row.environment);
    ASSERT_TRUE(launched.ok()) << launched.status().message();
    ASSERT_TRUE(launched->has_value()) << row.launcher;
    EXPECT_EQ((*launched)->launcher, row.launcher);
    EXPECT_EQ((*launched)->rank, 2) << row.launcher;
    EXPECT_EQ((*launched)->size, 4) << row.launcher;
    EXPECT_TRUE((*launched)->one_node) << row.launcher;
    EXPECT_THAT((*launched)->job, StartsWith(row.launcher));
  }
}

TEST(ReadLocalRank, EveryLauncherSaysIt) {
  const std::pair<Environment, const char*> kRows[] = {{kMoriRun, "MORI_LOCAL_RANK"},
                                                       {kTorchrun, "LOCAL_RANK"},
                                                       {kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK"},
                                                       {kMpich, "MPI_LOCALRANKID"},
                                                       {kSrun, "SLURM_LOCALID"}};
  for (const auto& [environment, name] : kRows) {
    EXPECT_EQ(LocalRank(With(environment, {{name, "1"}})), 1) << name;
    EXPECT_EQ(LocalRank(Without(environment, name)), std::nullopt) << name;
    EXPECT_EQ(LocalRank(With(environment, {{name, "one"}})), std::nullopt) << name;
  }
}
TEST(ReadLocalRank, TheInnermostLauncherThatSaysItCounts) {
  EXPECT_EQ(LocalRank(With(With(kSrun, kOpenMpi), {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}})), 1);
  EXPECT_EQ(LocalRank(With(kSrun, {{"SLURM_LOCALID", "3"}, {"MORI_RANK", "0"}})), 3);
  EXPECT_EQ(LocalRank({{"LOCAL_RANK", "1"}}), std::nullopt);  // not by torchrun
}

TEST(ReadLaunch, WithoutALauncherThereIsNothing) {
  for (const Environment& environment :
       {Environment{}, Environment{{"HOME", "/"}},
        Environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}},                // not by torchrun
        Environment{{"MASTER_PORT", "29500"}},                          // a leftover
        Environment{{"MORI_WORLD_SIZE", "2"}},                          //
        Environment{{"MORI_RANK", ""}, {"MORI_WORLD_SIZE", ""}},        // empty is not set
        Environment{{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}}}) {  // in salloc's shell
    const auto launched = Read(environment);
    ASSERT_TRUE(launched.ok()) << launched.status().message();
    EXPECT_FALSE(launched->has_value()) << (*launched)->launcher;
  }
}

TEST(ReadLaunch, TheInnermostLauncherCounts) {
  Environment all;
  const std::pair<const char*, Environment> kOutermostFirst[] = {{"srun", kSrun},
                                                                 {"MPICH", kMpich},
                                                                 {"Open MPI", kOpenMpi},
                                                                 {"torchrun", kTorchrun},
                                                                 {"mori run", kMoriRun}};
  for (const auto& [launcher, environment] : kOutermostFirst) {
    all = With(all, environment);
    const auto launched = Read(all);
    ASSERT_TRUE(launched.ok() && launched->has_value());
    EXPECT_EQ((*launched)->launcher, launcher);
  }
}

TEST(ReadLaunch, TheUniqueIdIsTakenAlong) {
  EXPECT_EQ((*Read(kMoriRun))->unique_id, "abc");
  EXPECT_EQ((*Read(kTorchrun))->unique_id, "");
  EXPECT_EQ((*Read(With(kTorchrun, {{"MORI_UNIQUE_ID", "def"}})))->unique_id, "def");
}

TEST(ReadLaunch, SeveralNodesAreTold) {
  struct Row {
    Environment environment;
    bool one_node;
  };
  for (const Row& row : {Row{With(kMoriRun, {{"MORI_LOCAL_WORLD_SIZE", "2"}}), false},
                         Row{With(kTorchrun, {{"LOCAL_WORLD_SIZE", "1"}}), false},
                         Row{With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), false},
                         Row{With(kMpich, {{"MPI_LOCALNRANKS", "2"}}), false},
                         Row{With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}), false},
                         Row{With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "3,1"}}), false},
                         Row{With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "4(x1)"}}), true},
                         Row{Without(kTorchrun, "LOCAL_WORLD_SIZE"), true}}) {
    const auto launched = Read(row.environment);
    ASSERT_TRUE(launched.ok()) << launched.status().message();
    EXPECT_EQ((*launched)->one_node, row.one_node) << (*launched)->job;
  }
}

TEST(ReadLaunch, TheJobIsTheSameForItsRanksAndNoOther) {
  struct Row {
    Environment environment;
    const char* rank;
    Environment another_job;
  };
  for (const Row& row :
       {Row{kMoriRun, "MORI_RANK", {{"MORI_UNIQUE_ID", "xyz"}}},
        Row{kTorchrun, "RANK", {{"MASTER_PORT", "29501"}}},
        Row{kTorchrun, "RANK", {{"MASTER_ADDR", "other"}}},
        Row{kTorchrun, "RANK", {{"TORCHELASTIC_RUN_ID", "second"}}},
        Row{kTorchrun, "RANK", {{"TORCHELASTIC_RESTART_COUNT", "1"}}},
        Row{kOpenMpi, "OMPI_COMM_WORLD_RANK", {{"PMIX_NAMESPACE", "prterun-host-124@1"}}},
        Row{kOpenMpi, "OMPI_COMM_WORLD_RANK", {{"OMPI_MCA_ess_base_jobid", "1"}}},
        Row{kSrun, "SLURM_PROCID", {{"SLURM_STEP_ID", "1"}}},
        Row{kSrun, "SLURM_PROCID", {{"SLURM_JOB_ID", "78"}}}}) {
    const std::string job = (*Read(row.environment))->job;
    EXPECT_EQ((*Read(With(row.environment, {{row.rank, "3"}})))->job, job);
    EXPECT_NE((*Read(With(row.environment, row.another_job)))->job, job);
  }
}

TEST(ReadLaunch, AnMpichJobIsToldByTheProcessThatStartedIt) {
  // No hydra proxy among our ancestors: the parent stands for it.
  EXPECT_EQ((*Read(kMpich))->job, fmt::format("MPICH\n{}", ::getppid()));
}

TEST(ReadLaunch, MalformedValuesAreNamed) {
  struct Row {
    Environment environment;
    const char* message;
  };
  for (const Row& row : {
           Row{With(kMoriRun, {{"MORI_RANK", "two"}}),
               "MORI_RANK=two is no number, as mori run would set it"},
           Row{With(kMoriRun, {{"MORI_RANK", "-1"}}),
               "MORI_RANK=-1 is no number, as mori run would set it"},
           Row{With(kMoriRun, {{"MORI_RANK", "2 "}}),
               "MORI_RANK=2  is no number, as mori run would set it"},
           Row{With(kMoriRun, {{"MORI_RANK", "2(x2)"}}),
               "MORI_RANK=2(x2) is no number, as mori run would set it"},
           Row{With(kTorchrun, {{"RANK", "1,2"}}),
               "RANK=1,2 is no number, as torchrun would set it"},
           Row{With(kTorchrun, {{"RANK", "99999999999"}}),
               "RANK=99999999999 is no number, as torchrun would set it"},
           Row{With(kTorchrun, {{"WORLD_SIZE", "4.0"}}),
               "WORLD_SIZE=4.0 is no number, as torchrun would set it"},
           Row{Without(kTorchrun, "WORLD_SIZE"),
               "WORLD_SIZE=(not set) is no number, as torchrun would set it"},
           Row{With(kTorchrun, {{"WORLD_SIZE", ""}}),
               "WORLD_SIZE= is no number, as torchrun would set it"},
           Row{With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "all"}}),
               "OMPI_COMM_WORLD_LOCAL_SIZE=all is no number, as Open MPI would set it"},
           Row{With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "(x2)"}}),
               "SLURM_STEP_TASKS_PER_NODE=(x2) is no number, as srun would set it"},
           Row{With(kMpich, {{"PMI_SIZE", "0"}, {"PMI_RANK", "0"}}),
               "PMI_RANK=0 and PMI_SIZE=0 are no rank and size, as MPICH would set them"},
           Row{With(kMpich, {{"PMI_RANK", "4"}}),
               "PMI_RANK=4 and PMI_SIZE=4 are no rank and size, as MPICH would set them"},
       }) {
    const auto launched = Read(row.environment);
    ASSERT_FALSE(launched.ok()) << row.message;
    EXPECT_EQ(launched.status().code(), ErrorCode::kInvalidConfig);
    EXPECT_EQ(launched.status().message(), row.message);
  }
}

}  // namespace
}  // namespace mori::shmem
