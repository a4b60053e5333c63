// Init, finalize and what comes between, before and after them.
#include <gtest/gtest.h>

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/forked.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Failures;
using testing::Pe;
using testing::RunProcesses;
using testing::RunThreads;

std::size_t EntriesIn(const char* folder) {
  std::size_t count = 0;
  DIR* directory = ::opendir(folder);
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}
std::size_t Descriptors() { return EntriesIn("/proc/self/fd"); }
std::size_t Threads() { return EntriesIn("/proc/self/task"); }
std::size_t Mappings() {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);)
    count += line.find("mori_shmem") != std::string::npos;
  return count;
}

TEST(Lifecycle, InitAgainAfterFinalizeMakesANewWorldOfAnotherSize) {
  const auto outcomes = RunProcesses(4, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemFinalize(), 0);
    int round = 0;
    for (const int size : {3, 2, 1}) {
      if (pe.rank >= size) return;
      const UniqueId id = pe.FreshId(++round);
      PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, size, id), 0);
      PE_CHECK_EQ(ShmemNPes(), size);
      auto* value = static_cast<int*>(ShmemMalloc(64));
      *value = pe.rank;
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemG(value, size - 1), size - 1);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    }
  });
  EXPECT_EQ(Failures(outcomes), "");
}

/// Init and finalize `rounds` times: after the first, nothing is left that was not there after any
/// other.
void CycleAndCount(const Pe& pe, int rounds) {
  std::size_t descriptors = 0, threads = 0;
  for (int round = 1; round <= rounds; ++round) {
    const UniqueId id = pe.FreshId(round);
    PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, pe.size, id), 0);
    PE_CHECK(Mappings() > 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
    PE_CHECK_EQ(Mappings(), std::size_t{0});
    if (round == 1) {
      descriptors = Descriptors();
      threads = Threads();
    }
  }
  PE_CHECK_EQ(Descriptors(), descriptors);
  PE_CHECK_EQ(Threads(), threads);
}

TEST(Lifecycle, NothingIsLeftBehindByFinalize) {
  EXPECT_EQ(Failures(RunProcesses(2, [](const Pe& pe) { CycleAndCount(pe, 20); })), "");
}

TEST(Soak, AThousandInitsOfOnePair) {
  testing::Options options;
  options.deadline = std::chrono::seconds(110);
  EXPECT_EQ(Failures(RunProcesses(
                2, [](const Pe& pe) { CycleAndCount(pe, 1000); }, options)),
            "");
}

/// Ten of forty starts each, since a test has a time limit.
class SoakStarts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Tens, SoakStarts, ::testing::Range(1, 5));

TEST_P(SoakStarts, SixtyFourPesStartedTenTimes) {
  for (int start = 0; start < 10; ++start) {
    const auto outcomes = RunProcesses(64, [](const Pe& pe) {
      pe.Init();
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    });
    ASSERT_EQ(Failures(outcomes), "") << "start " << start;
  }
}

TEST(Lifecycle, InitTwiceAlikeChangesNothing) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    pe.Init();
                                    void* block = ShmemMalloc(64);
                                    PE_CHECK_EQ(pe.TryInit(), 0);
                                    HeapStats stats{};
                                    PE_CHECK_EQ(ShmemHeapStats(&stats), 0);
                                    PE_CHECK_EQ(stats.live_blocks, std::uint64_t{1});
                                    PE_CHECK_EQ(ShmemFree(block), 0);
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Lifecycle, InitTwiceWithOtherArgumentsIsRefusedAndChangesNothing) {
  EXPECT_EQ(
      Failures(RunProcesses(
          2,
          [](const Pe& pe) {
            pe.Init();
            const int refused = static_cast<int>(ErrorCode::kAlreadyInitialized);
            PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, 3, pe.id), refused);
            PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 1 - pe.rank, 2, pe.id),
                        refused);
            UniqueId other;
            PE_CHECK_EQ(ShmemGetUniqueId(&other), 0);
            PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, 2, other), refused);
            PE_CHECK_EQ(ShmemBarrierAll(), 0);
            PE_CHECK_EQ(ShmemMyPe(), pe.rank);
            PE_CHECK_EQ(ShmemFinalize(), 0);
          })),
      "");
}

TEST(Lifecycle, EightThreadsThatInitAlikeAtOnceGetOneWorld) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    std::atomic<int> failures{0};
                                    std::vector<std::thread> threads;
                                    for (int i = 0; i < 8; ++i) {
                                      threads.emplace_back([&] {
                                        failures += pe.TryInit() != 0;
                                        failures += ShmemMyPe() != pe.rank;
                                      });
                                    }
                                    for (auto& thread : threads) thread.join();
                                    PE_CHECK_EQ(failures.load(), 0);
                                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                    PE_CHECK_EQ(ShmemFinalize(),
                                                static_cast<int>(ErrorCode::kNotInitialized));
                                  })),
            "");
}

TEST(Lifecycle, ManyThreadsAsPes) {
  EXPECT_EQ(Failures(RunThreads(32,
                                [](const Pe& pe) {
                                  pe.Init();
                                  auto* counter = static_cast<std::uint64_t*>(ShmemMalloc(8));
                                  *counter = 0;
                                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                  for (int peer = 0; peer < pe.size; ++peer)
                                    PE_CHECK_EQ(ShmemAtomicInc(counter, peer), 0);
                                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                  PE_CHECK_EQ(*counter, std::uint64_t{32});
                                  PE_CHECK_EQ(ShmemFinalize(), 0);
                                })),
            "");
}

TEST(Lifecycle, SixtyFourProcesses) {
  EXPECT_EQ(Failures(RunProcesses(64,
                                  [](const Pe& pe) {
                                    pe.Init();
                                    auto* value = static_cast<int*>(ShmemMalloc(64));
                                    *value = pe.rank;
                                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                    PE_CHECK_EQ(ShmemG(value, 63 - pe.rank), 63 - pe.rank);
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Lifecycle, TwoJobsSideBySide) {
  const auto job = [](int) {
    return Failures(RunProcesses(3, [](const Pe& pe) {
      pe.Init();
      for (int i = 0; i < 200; ++i) PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    }));
  };
  EXPECT_EQ(testing::RunForked(2, job), "");
}

TEST(Lifecycle, ExitWithoutFinalizeIsCleanAndSilent) {
  testing::Options options;
  options.environment = {{"MORI_GLOBAL_LOG_LEVEL", "WARN"}};
  const auto outcomes = RunProcesses(
      3,
      [](const Pe& pe) {
        pe.Init();
        PE_CHECK(ShmemMalloc(64) != nullptr);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      },
      options);
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.ok()) << outcome.output;
    EXPECT_EQ(outcome.output, "");
  }
}

/// One waits in finalize, the other in a barrier, and neither comes to the other.
TEST(Lifecycle, WhoGivesUpInFinalizeIsLostToWhoWaitsElsewhere) {
  testing::Options options;
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "1"}};
  const auto body = [](const Pe& pe) {
    pe.Init();
    if (pe.rank == 1) {
      PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kTimeout));
      return;
    }
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
    const std::string error = ShmemLastError();
    PE_CHECK(error.find("PE 1 ") != std::string::npos);
    PE_CHECK(error.find("not all PEs came to finalize within 1 s") != std::string::npos);
    PE_CHECK(error.find("1 of 2 ranks did not come within 1 s: rank ") != std::string::npos);
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  };
  for (const As as : {As::kProcesses, As::kThreads})
    EXPECT_EQ(Failures(testing::RunAs(as, 2, body, options)), "");
}

void SuccessfulRun(const Pe& pe) {
  pe.Init();
  PE_CHECK(ShmemMalloc(64) != nullptr);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemFinalize(), 0);
}

/// The heap mode that these tests run with.
std::string HeapModeHere() {
  const char* mode = std::getenv("MORI_SHMEM_MODE");
  return mode != nullptr ? mode : "static";
}

TEST(Lifecycle, ASuccessfulRunPrintsOneLineForTheWorld) {
  const auto outcomes = RunProcesses(2, SuccessfulRun);
  EXPECT_EQ(outcomes[0].output.substr(0, outcomes[0].output.find('\n') + 1), outcomes[0].output);
  EXPECT_TRUE(outcomes[0].output.starts_with("[mori] PE 0/2 ready: 2 PEs, host backend, " +
                                             HeapModeHere() + " heap of "))
      << outcomes[0].output;
  EXPECT_EQ(outcomes[0].output.find("uncached"), std::string::npos) << "host memory is cached";
  EXPECT_EQ(outcomes[1].output, "");
}

TEST(Lifecycle, DebugShowsWhatEachStepOfInitChose) {
  testing::Options options;
  options.environment = {{"MORI_GLOBAL_LOG_LEVEL", "DEBUG"}};
  for (const auto& outcome : RunProcesses(2, SuccessfulRun, options)) {
    std::size_t at = 0;
    const std::string heap = "init: " + HeapModeHere() + " heap: ";
    for (const char* step : {"init: MORI_GLOBAL_LOG_LEVEL=\"DEBUG\"", "init: host backend (",
                             "meets the others by TCP at ", "is connected", "has PEs 0,1",
                             "descriptors and board are shared with 2 PEs", heap.c_str(),
                             "debug: ready: host backend"}) {
      at = outcome.output.find(step, at);
      ASSERT_NE(at, std::string::npos) << step << " is not there, or too early, in\n"
                                       << outcome.output;
    }
    EXPECT_EQ(outcome.output.find("trace:"), std::string::npos) << outcome.output;
  }
}

TEST(Lifecycle, TraceShowsEachCallThatGoesOutOfLine) {
  testing::Options options;
  options.environment = {{"MORI_GLOBAL_LOG_LEVEL", "TRACE"}};
  for (const auto& outcome : RunProcesses(2, SuccessfulRun, options)) {
    for (const char* call : {"trace: shmem_malloc\n", "trace: shmem_barrier_all\n"})
      EXPECT_NE(outcome.output.find(call), std::string::npos) << call << outcome.output;
  }
}

TEST(Lifecycle, AnUnknownVariableIsWarnedOfOnceWithTheNearestName) {
  testing::Options options;
  options.environment = {{"MORI_SHMEM_HEAPSIZE", "1G"}};
  const auto outcomes = RunProcesses(
      2,
      [](Pe pe) {
        for (int round = 1; round <= 2; ++round) {
          pe.Init();
          PE_CHECK_EQ(ShmemFinalize(), 0);
          pe.id = pe.FreshId(round);
        }
      },
      options);
  EXPECT_EQ(outcomes[1].output.find("MORI_SHMEM_HEAPSIZE"), std::string::npos);
  const std::string& output = outcomes[0].output;
  const auto first = output.find("MORI_SHMEM_HEAPSIZE");
  ASSERT_NE(first, std::string::npos) << output;
  EXPECT_EQ(output.find("MORI_SHMEM_HEAPSIZE", first + 1), std::string::npos) << output;
  EXPECT_NE(output.find("MORI_SHMEM_HEAP_SIZE"), std::string::npos) << output;
}

TEST(Lifecycle, TheEnvironmentIsReadAtInitOnly) {
  EXPECT_EQ(Failures(RunProcesses(1,
                                  [](const Pe& pe) {
                                    ::setenv("MORI_NUM_QP_PER_PE", "3", 1);
                                    pe.Init();
                                    ::setenv("MORI_NUM_QP_PER_PE", "9", 1);
                                    PE_CHECK_EQ(ShmemNumQpPerPe(), 3);
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Lifecycle, InfoShowsWhatWasChosen) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    pe.Init();
                                    const std::string info = ShmemInfo();
                                    for (const char* part : {"MORI_SHMEM_HEAP_SIZE", "host",
                                                             "static", "8 MiB", "reach    PE 1"}) {
                                      PE_CHECK(info.find(part) != std::string::npos);
                                    }
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Lifecycle, APeThatIsKilledInABarrierIsNamedToTheOthers) {
  const auto outcomes = RunProcesses(4, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 2) ::kill(::getpid(), SIGKILL);
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK(std::strstr(ShmemLastError(), "PE 2 (host ") != nullptr);
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const std::size_t survivor : {0u, 1u, 3u})
    EXPECT_TRUE(outcomes[survivor].ok()) << outcomes[survivor].output;
}

TEST(Fork, AChildThatOnlyExitsDisturbsNobody) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    pe.Init();
                                    for (int i = 0; i < 6; ++i) {
                                      const pid_t child = ::fork();
                                      if (child == 0)
                                        i % 2 == 0
                                            ? ::_exit(0)
                                            : std::exit(0);  // without and with exit handlers
                                      int status = 0;
                                      PE_CHECK_EQ(::waitpid(child, &status, 0), child);
                                      PE_CHECK_EQ(status, 0);
                                      PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                    }
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Fork, CallsInAChildAreErrorsThatSayWhy) {
  EXPECT_EQ(Failures(RunProcesses(
                2,
                [](const Pe& pe) {
                  pe.Init();
                  auto* word = static_cast<std::uint64_t*>(ShmemMalloc(64));
                  const pid_t child = ::fork();
                  if (child == 0) {
                    int wrong = 0;
                    wrong += ShmemMalloc(64) != nullptr;
                    wrong += std::strstr(ShmemLastError(), "was forked from PE") == nullptr;
                    wrong += ShmemBarrierAll() != static_cast<int>(ErrorCode::kNotInitialized);
                    wrong += ShmemP(word, std::uint64_t{1}, 0) !=
                             static_cast<int>(ErrorCode::kNotInitialized);
                    wrong += pe.TryInit() != static_cast<int>(ErrorCode::kUnsupported);
                    wrong += ShmemFinalize() == 0;
                    ::_exit(wrong);
                  }
                  int status = 0;
                  PE_CHECK_EQ(::waitpid(child, &status, 0), child);
                  PE_CHECK_EQ(status, 0);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                })),
            "");
}

TEST(Fork, AParentThatDiesIsNoticedAlthoughItsChildLives) {
  testing::Options options;
  options.deadline = std::chrono::seconds(20);
  const auto body = [](const Pe& pe) {
    pe.Init();
    if (pe.rank == 1) {
      if (::fork() == 0) {
        ::alarm(40);  // outlives the deadline, then goes by itself
        ::pause();
      }
      ::kill(::getpid(), SIGKILL);
    }
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
  };
  const auto outcomes = RunProcesses(2, body, options);
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].output;
}

TEST(Launch, WithoutALauncherInitMakesAWorldOfOne) {
  const auto outcome = testing::RunAlone([] {
    PE_CHECK_EQ(ShmemInit(), 0);
    PE_CHECK_EQ(ShmemNPes(), 1);
    PE_CHECK_EQ(ShmemInit(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
    PE_CHECK_EQ(ShmemInit(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_TRUE(outcome.ok()) << outcome.output;
}

TEST(Launch, RanksOfTorchrunFindEachOtherAndDoSoAgain) {
  EXPECT_EQ(Failures(RunProcesses(3,
                                  [](const Pe& pe) {
                                    ::setenv("RANK", std::to_string(pe.rank).c_str(), 1);
                                    ::setenv("WORLD_SIZE", "3", 1);
                                    ::setenv("LOCAL_WORLD_SIZE", "3", 1);
                                    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
                                    ::setenv("MASTER_PORT", std::to_string(::getppid()).c_str(), 1);
                                    for (int round = 0; round < 2; ++round) {
                                      PE_CHECK_EQ(ShmemInit(), 0);
                                      PE_CHECK_EQ(ShmemMyPe(), pe.rank);
                                      PE_CHECK_EQ(ShmemNPes(), 3);
                                      PE_CHECK_EQ(ShmemFinalize(), 0);
                                    }
                                  })),
            "");
}

}  // namespace
}  // namespace mori::shmem
