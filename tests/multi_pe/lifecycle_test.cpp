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
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_point.hpp"
#include "base/machine.hpp"
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

TEST(Lifecycle, FinalizeAgainstABarrierIsToldToBothAtOnce) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    const int code = pe.rank == 1 ? ShmemFinalize() : ShmemBarrierAll();
    PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kMismatch));
    const std::string error = ShmemLastError();
    PE_CHECK(error.find("PE 0 made barrier_all(), PE 1 made finalize()") != std::string::npos);
    PE_CHECK_EQ(ShmemInitialized(), pe.rank == 0);
    if (pe.rank == 0) PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  };
  for (const As as : {As::kProcesses, As::kThreads})
    EXPECT_EQ(Failures(testing::RunAs(as, 2, body)), "");
}

/// Two wait in finalize for one that does something else, and is told that they have given up.
TEST(Lifecycle, WhoDoesNotComeToFinalizeIsNamed) {
  testing::Options options;
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "3"}};  // init has no more, either
  const auto body = [](const Pe& pe) {
    pe.Init();
    auto* never = static_cast<std::uint64_t*>(ShmemMalloc(8));
    *never = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    const int code =
        pe.rank == 1 ? ShmemWaitUntil(never, Cmp::kEq, std::uint64_t{1}) : ShmemFinalize();
    const std::string error = ShmemLastError();
    PE_CHECK(error.find("PE 1 (host ") != std::string::npos);
    PE_CHECK(error.find("did not come within 3 s (MORI_BOOTSTRAP_TIMEOUT)") != std::string::npos);
    // The one that gives up first is lost to the other.
    PE_CHECK(code == static_cast<int>(ErrorCode::kPeerLost) ||
             (code == static_cast<int>(ErrorCode::kTimeout) && pe.rank != 1));
    if (pe.rank == 1) PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  };
  for (const As as : {As::kProcesses, As::kThreads})
    EXPECT_EQ(Failures(testing::RunAs(as, 3, body, options)), "");
}

TEST(Lifecycle, TooLittleMemoryForAllHeapsIsSaidOnce) {
  testing::Options options;
  options.environment = {{"MORI_GLOBAL_LOG_LEVEL", "WARN"},
                         {"MORI_SHMEM_MODE", "static"},
                         {"MORI_SHMEM_HEAP_SIZE", std::to_string(MemoryBytes() / 4 * 3)}};
  const auto outcomes = RunProcesses(
      2,
      [](const Pe& pe) {
        pe.Init();
        PE_CHECK_EQ(ShmemFinalize(), 0);
      },
      options);
  EXPECT_EQ(Failures(outcomes), "");
  const std::string& text = outcomes[0].output;
  EXPECT_NE(text.find("the heaps of the 2 PEs of this node"), std::string::npos) << text;
  EXPECT_NE(text.find("each fits"), std::string::npos) << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  EXPECT_EQ(outcomes[1].output, "");
}

// ---- calls of one thread while another finalizes, or forks

/// Calls `condition` until it holds.
template <typename Condition>
void Await(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

thread_local bool is_caller = false;
std::atomic<bool> caller_is_inside{false}, finalize_waits{false}, finalized{false};

/// Keeps the caller inside of its call until finalize waits for it, or is done.
void KeepCallerInside(const char* point) {
  if (std::strcmp(point, "finalize: a call is in flight") == 0) finalize_waits = true;
  if (!is_caller || std::strcmp(point, "in a call") != 0) return;
  is_caller = false;
  caller_is_inside = true;
  Await([] { return finalize_waits || finalized; });
}

TEST(Lifecycle, FinalizeWaitsForTheCallsOfOtherThreads) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    fault_hook = KeepCallerInside;
    int code = -1;
    HeapStats stats{};
    std::thread caller([&] {
      is_caller = true;
      code = ShmemHeapStats(&stats);
    });
    Await([] { return caller_is_inside.load(); });
    const int left = ShmemFinalize();
    finalized = true;
    caller.join();
    PE_CHECK_EQ(left, 0);
    PE_CHECK(finalize_waits);
    PE_CHECK_EQ(code, 0);
    PE_CHECK_EQ(stats.total_bytes, std::uint64_t{8} << 20);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

std::atomic<std::uint64_t*> awaited{nullptr};

TEST(Lifecycle, AWordThatIsThereWhenAnotherThreadFinalizesEndsItsWaitWell) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    auto* word = static_cast<std::uint64_t*>(ShmemMalloc(8));
    *word = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    awaited = word;
    fault_hook = [](const char* point) {
      if (std::strcmp(point, "finalize: a call is in flight") == 0) finalize_waits = true;
      if (!is_caller || std::strcmp(point, "wait: before the look for an end") != 0) return;
      caller_is_inside = true;
      Await([] { return finalize_waits.load(); });
      __atomic_store_n(awaited.load(), 1, __ATOMIC_RELEASE);
    };
    int code = -1;
    std::thread caller([&] {
      is_caller = true;
      code = ShmemWaitUntil(word, Cmp::kEq, std::uint64_t{1});
    });
    Await([] { return caller_is_inside.load(); });
    PE_CHECK_EQ(ShmemFinalize(), 0);
    caller.join();
    PE_CHECK_EQ(code, 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

std::atomic<bool> memory_is_short{false};

TEST(Lifecycle, AnInitThatRunsOutOfMemoryLeavesRoomForTheNext) {
  const auto outcome = testing::RunAlone([] {
    fault_hook = [](const char* point) {
      if (std::strcmp(point, "init: before the rendezvous") == 0 && memory_is_short)
        throw std::bad_alloc();
    };
    memory_is_short = true;
    PE_CHECK_EQ(ShmemInit(), static_cast<int>(ErrorCode::kOutOfMemory));
    memory_is_short = false;
    UniqueId id{};
    PE_CHECK_EQ(ShmemGetUniqueId(&id), 0);
    PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, id), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_TRUE(outcome.ok()) << outcome.output;
}

TEST(Lifecycle, AWaitOfAnotherThreadEndsWhenItsPeFinalizes) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    auto* never = static_cast<std::uint64_t*>(ShmemMalloc(8));
    *never = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    fault_hook = [](const char* point) {
      if (is_caller && std::strcmp(point, "in a call") == 0) caller_is_inside = true;
    };
    int code = 0;
    std::string error;
    std::thread caller([&] {
      is_caller = true;
      code = ShmemWaitUntil(never, Cmp::kEq, std::uint64_t{1});
      error = ShmemLastError();
    });
    Await([] { return caller_is_inside.load(); });
    PE_CHECK_EQ(ShmemFinalize(), 0);
    caller.join();
    PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kNotInitialized));
    PE_CHECK_EQ(error, "shmem_wait_until: another thread has finalized this PE");
  });
  EXPECT_EQ(Failures(outcomes), "");
}

/// Threads that call while the world goes and another one comes, again and again.
TEST(Lifecycle, CallsOfOtherThreadsMeetWorldsThatComeAndGo) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    ::setenv("MORI_GLOBAL_LOG_LEVEL", "ERROR", 1);
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&] {
        while (!stop) {
          HeapStats stats{};
          const int code = ShmemHeapStats(&stats);
          if (code == 0) wrong += stats.total_bytes != std::uint64_t{8} << 20;
          if (code != 0) wrong += code != static_cast<int>(ErrorCode::kNotInitialized);
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      });
    }
    for (int round = 1; round <= 20; ++round) {
      const UniqueId id = pe.FreshId(round);
      PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, pe.size, id), 0);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    }
    stop = true;
    for (auto& caller : callers) caller.join();
    PE_CHECK_EQ(wrong.load(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(Lifecycle, AFailedInitOfAnotherRankLeavesHelperThreadsTheirPe) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    const auto pe_of_a_helper = [] {
      int found = -1;
      std::thread([&] { found = ShmemMyPe(); }).join();
      return found;
    };
    PE_CHECK_EQ(pe_of_a_helper(), pe.rank);
    int code = 0;
    std::thread([&] {
      code = ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 1 - pe.rank, 2, pe.id);
    }).join();
    PE_CHECK(code != 0);
    PE_CHECK_EQ(pe_of_a_helper(), pe.rank);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
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
  // Over a network a loss may be heard of before the last word of a barrier that is over.
  static const testing::Counter out(0);
  const auto outcomes = RunProcesses(4, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    ++*out;
    if (pe.rank == 2) {
      testing::AwaitCount(out, pe.size);
      ::kill(::getpid(), SIGKILL);
    }
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
  static const testing::Counter out(0);
  const auto body = [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);  // nobody is in init any more
    ++*out;
    if (pe.rank == 1) {
      if (::fork() == 0) {
        ::alarm(40);  // outlives the deadline, then goes by itself
        ::pause();
      }
      testing::AwaitCount(out, pe.size);
      ::kill(::getpid(), SIGKILL);
    }
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
  };
  const auto outcomes = RunProcesses(2, body, options);
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].output;
}

/// Forks a child that runs `body`, which returns how much was wrong. @return what the child
/// returned; -1 if it had to be ended
template <typename ChildBody>
int WrongInChild(ChildBody body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int Sockets() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) {
    char target[64] = "";
    if (::readlinkat(::dirfd(directory), entry->d_name, target, sizeof target - 1) > 0)
      count += std::strncmp(target, "socket:", 7) == 0;
  }
  ::closedir(directory);
  return count;
}

/// The thread that forks was bound to a world that another thread has ended since.
TEST(Fork, AChildOfAThreadWhosePeIsGoneHasNone) {
  const auto outcome = testing::RunAlone([] {
    PE_CHECK_EQ(ShmemInit(), 0);
    std::atomic<bool> is_bound{false}, is_gone{false};
    int wrong = -1;
    std::thread forker([&] {
      is_bound = ShmemMyPe() == 0;
      Await([&] { return is_gone.load(); });
      wrong = WrongInChild([] {
        return ShmemBarrierAll() == static_cast<int>(ErrorCode::kNotInitialized) &&
                       !ShmemInitialized()
                   ? 0
                   : 1;
      });
    });
    Await([&] { return is_bound.load(); });
    const int left = ShmemFinalize();
    is_gone = true;
    forker.join();
    PE_CHECK_EQ(left, 0);
    PE_CHECK_EQ(wrong, 0);
  });
  EXPECT_TRUE(outcome.ok()) << outcome.output;
}

TEST(Fork, AChildHasNoSocketOfItsParents) {
  const auto outcomes = RunProcesses(3, [](const Pe& pe) {
    const int before = WrongInChild(Sockets);
    pe.Init();
    PE_CHECK(Sockets() > before);
    PE_CHECK_EQ(WrongInChild(Sockets), before);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

std::atomic<bool> logger_is_inside{false}, forking{false};

TEST(Fork, AChildIsFreeOfALineThatAnotherThreadWasLogging) {
  const auto outcome = testing::RunAlone([] {
    UniqueId id{};
    PE_CHECK_EQ(ShmemGetUniqueId(&id), 0);
    PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, id), 0);
    fault_hook = [](const char* point) {
      if (!is_caller || std::strcmp(point, "logging") != 0) return;
      logger_is_inside = true;
      Await([] { return forking.load(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the fork is under way
    };
    std::thread logger([] {
      is_caller = true;
      ShmemMalloc(0);  // an error, which is logged
    });
    Await([] { return logger_is_inside.load(); });
    forking = true;
    const int wrong = WrongInChild([] { return ShmemMyPe() == -1 ? 0 : 1; });
    logger.join();
    PE_CHECK_EQ(wrong, 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_TRUE(outcome.ok()) << outcome.output;
}

/// A thread is in an init and holds what locks an init holds.
TEST(Fork, AChildOfAnInitThatIsUnderWayGetsErrorsThatSaySo) {
  const auto outcome = testing::RunAlone([] {
    fault_hook = [](const char* point) {
      if (std::strcmp(point, "init: before the rendezvous") != 0) return;
      caller_is_inside = true;
      Await([] { return finalized.load(); });
    };
    int code = -1;
    std::thread initializer([&] { code = ShmemInit(); });
    Await([] { return caller_is_inside.load(); });
    const int wrong = WrongInChild([] {
      int count = 0;
      count += ShmemBarrierAll() != static_cast<int>(ErrorCode::kNotInitialized);
      count += std::strstr(ShmemLastError(), "while its parent was in init") == nullptr;
      count += ShmemInit() != static_cast<int>(ErrorCode::kUnsupported);
      count += ShmemInitialized();
      count += ShmemInfo().find("not initialized") == std::string::npos;
      return count;
    });
    finalized = true;
    initializer.join();
    PE_CHECK_EQ(wrong, 0);
    PE_CHECK_EQ(code, 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_TRUE(outcome.ok()) << outcome.output;
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
