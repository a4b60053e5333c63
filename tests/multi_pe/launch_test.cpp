// shmem_init() by what launchers put into the environment, in processes of their own.
#include "shmem/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <sstream>
#include <thread>

#include "base/config.hpp"
#include "base/fault_point.hpp"
#include "base/variables.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "support/forked.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::Failures;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Pe;
using testing::RunProcesses;
using ::testing::StartsWith;
using Settings = std::vector<std::pair<std::string, std::string>>;

void Set(const Settings& settings) {
  for (const auto& [name, value] : settings) ::setenv(name.c_str(), value.c_str(), 1);
}

/// As a script starts rank `rank` of two for torch. The parent of all keeps jobs of other tests
/// apart.
Settings RankOfTwo(int rank) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(::getppid())}};
}

TEST(Jobs, ThatHaveTheSameNameDoNotPairUpSilently) {
  const testing::Shared<std::atomic<int>> done(0);
  const auto await = [&](int count) {
    while (done->load(std::memory_order_acquire) < count)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  // Two jobs of two ranks. Nothing tells rank 0 of the first from rank 0 of the second, so the
  // first two that come make a world; the two that come then are refused.
  EXPECT_EQ(Failures(RunProcesses(4,
                                  [&](const Pe& pe) {
                                    const bool comes_first = pe.rank == 0 || pe.rank == 3;
                                    const int rank = pe.rank % 2;
                                    Set(RankOfTwo(rank));
                                    if (!comes_first) await(2);
                                    const int code = ShmemInit();
                                    done->fetch_add(1, std::memory_order_release);
                                    if (comes_first) {
                                      PE_CHECK_EQ(code, 0);
                                      await(4);
                                      PE_CHECK_EQ(ShmemFinalize(), 0);
                                      return;
                                    }
                                    PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kMismatch));
                                    const std::string text = ShmemLastError();
                                    for (const std::string& part :
                                         {fmt::format(
                                              "of this user is rank {} of 2 of the same job", rank),
                                          std::string("MASTER_ADDR=\"127.0.0.1\", MASTER_PORT="),
                                          std::string("give each job its own MASTER_PORT")})
                                      PE_CHECK(text.find(part) != std::string::npos);
                                  })),
            "");
}

/// Rank 0 hears of the other size when rank 1 has the id already.
TEST(Jobs, WhoseSizesDifferSaySoToRanksThatHaveTheIdAlready) {
  static std::atomic<bool>* has_id = nullptr;
  const testing::Shared<std::atomic<bool>> shared(false);
  has_id = shared.get();
  EXPECT_EQ(Failures(RunProcesses(3,
                                  [](const Pe& pe) {
                                    Set(RankOfTwo(pe.rank));
                                    Set({{"WORLD_SIZE", pe.rank == 2 ? "4" : "3"}});
                                    if (pe.rank == 1) {
                                      fault_hook = [](const char* point) {
                                        if (std::string_view(point) == "init: hello sent")
                                          has_id->store(true);
                                      };
                                    }
                                    while (pe.rank == 2 && !has_id->load())
                                      std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                    PE_CHECK_EQ(ShmemInit(),
                                                static_cast<int>(ErrorCode::kMismatch));
                                    const std::string text = ShmemLastError();
                                    PE_CHECK(text.find("rank 2 says that there are 4 ranks, rank 0 "
                                                       "says 3") != std::string::npos);
                                  })),
            "");
}

TEST(Jobs, OneAfterTheOtherMayHaveTheSameName) {
  for (int job = 0; job < 2; ++job) {
    EXPECT_EQ(Failures(RunProcesses(2,
                                    [](const Pe& pe) {
                                      Set(RankOfTwo(pe.rank));
                                      PE_CHECK_EQ(ShmemInit(), 0);
                                      PE_CHECK_EQ(ShmemFinalize(), 0);
                                    })),
              "");
  }
}

TEST(Jobs, OfAPmiLauncherAreNamedWithoutTheParentProcess) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    Set({{"PMI_RANK", std::to_string(pe.rank)},
                                         {"PMI_SIZE", "2"},
                                         {"SLURM_JOB_ID", std::to_string(::getppid())}});
                                    // Each behind a process of its own, as behind a shell.
                                    const pid_t child = ::fork();
                                    if (child == 0) {
                                      const bool ok = ShmemInit() == 0 && ShmemNPes() == 2 &&
                                                      ShmemFinalize() == 0;
                                      ::_exit(ok ? 0 : 1);
                                    }
                                    int status = 0;
                                    PE_CHECK_EQ(::waitpid(child, &status, 0), child);
                                    PE_CHECK_EQ(status, 0);
                                  },
                                  {.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "30"}}})),
            "");
}

TEST(Jobs, ALauncherThatDoesNotSayTheNodeIsNamedWhenRanksAreMissing) {
  const auto outcome = testing::RunAlone(
      [] {
        Set(RankOfTwo(1));
        PE_CHECK_EQ(ShmemInit(), static_cast<int>(ErrorCode::kTimeout));
        PE_CHECK(
            std::string(ShmemLastError()).find("does not say how many ranks are on this node") !=
            std::string::npos);
      },
      {.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "0.1"}}});
  EXPECT_TRUE(outcome.ok()) << outcome.output;
}

TEST(WorldOfOne, ThatLooksLikeARankOfManyIsWarnedOf) {
  const auto init = [] { PE_CHECK_EQ(ShmemInit(), 0); };
  const auto outcome =
      testing::RunAlone(init, {.environment = {{"X_RANK", "3"}, {"X_WORLD_SIZE", "8"}}});
  EXPECT_TRUE(outcome.ok()) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("warning: this process is PE 0 of 1"));
  EXPECT_THAT(outcome.output, HasSubstr("X_RANK=\"3\" and X_WORLD_SIZE=\"8\""));
  EXPECT_THAT(testing::RunAlone(init).output, Not(HasSubstr("warning")));
}

TEST(RawBytes, InEveryVariableGiveLinesOfTheLibraryOnly) {
  std::set<std::string> names;
  for (const std::string& name : LaunchVariables()) names.insert(name);
  for (const Variable& variable : Variables()) names.insert(std::string(variable.name));
  for (const std::string& name : names) {
    const auto outcome = testing::RunAlone([&] {
      Set(RankOfTwo(0));
      Set({{"WORLD_SIZE", "1"}, {name, "\xff\nb"}});
      if (ShmemInit() == 0) return;
      const std::string text = ShmemLastError();
      PE_CHECK(text.size() > 10);
      PE_CHECK(std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; }));
    });
    EXPECT_TRUE(outcome.ok()) << name << ": " << outcome.output;
    std::istringstream lines(outcome.output);
    for (std::string line; std::getline(lines, line);)
      EXPECT_THAT(line, StartsWith("[mori] ")) << name;
  }
}

}  // namespace
}  // namespace mori::shmem
