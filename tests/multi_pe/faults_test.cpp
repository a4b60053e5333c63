// PEs that die, stop, stumble or never come: the others get an error that names them, in bounded
// time; nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_point.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/unique_id.hpp"
#include "support/forked.hpp"
#include "support/limit.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::AwaitCount;
using testing::Counter;
using testing::Failures;
using testing::Limit;
using testing::Outcome;
using testing::Pe;
using testing::RunProcesses;

// ---- stumbling at a chosen point

const char* stumble_point = nullptr;
void (*stumble)() = nullptr;

void StumbleHook(const char* point) {
  if (std::strcmp(point, stumble_point) == 0) stumble();
}
void StumbleAt(const char* point, void (*how)()) {
  stumble_point = point;
  stumble = how;
  fault_hook = StumbleHook;
}

void DieByKill() { ::kill(::getpid(), SIGKILL); }
void Exit() { std::exit(0); }

constexpr const char* kInitPoints[] = {"init: before the rendezvous",
                                       "init: hello sent",
                                       "init: welcomed",
                                       "init: parent joined",
                                       "init: tree started",
                                       "init: connected",
                                       "init: information exchanged",
                                       "init: descriptors connected",
                                       "init: board shared",
                                       "init: memory shared"};

std::string NameOf(const char* point) {
  std::string name;
  for (const char* c = point; *c != '\0'; ++c) {
    if (std::isalnum(static_cast<unsigned char>(*c)) != 0) name += *c;
  }
  return name;
}

class InitStep : public ::testing::TestWithParam<const char*> {
 protected:
  /// `victim` of `size` stumbles; all others must get an error that names it, or the process that
  /// made the id.
  static void Check(int size, int victim, void (*how)()) {
    testing::Options options;
    // Only a rank that never says hello is waited for this long.
    options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", GetParam() == kInitPoints[0] ? "2" : "20"}};
    const auto body = [&](const Pe& pe) {
      if (pe.rank == victim) StumbleAt(GetParam(), how);
      const int code = pe.TryInit();
      PE_CHECK(code != 0);
      const std::string error = ShmemLastError();
      const bool named = error.find(fmt::format("rank {}", victim)) != std::string::npos ||
                         error.find(fmt::format("PE {}", victim)) != std::string::npos;
      const bool maker = victim == 0 && error.find("process that made") != std::string::npos;
      // Who stumbles before saying hello is a rank that has not come.
      const bool missing = error.find("missing rank") != std::string::npos &&
                           error.find(std::to_string(victim)) != std::string::npos;
      if (!named && !maker && !missing) throw testing::PeFailure("not named: " + error);
      PE_CHECK(!ShmemInitialized());
    };
    auto outcomes = RunProcesses(size, body, options);
    const Outcome fallen = outcomes[static_cast<std::size_t>(victim)];
    EXPECT_EQ(fallen.signal, how == DieByKill ? SIGKILL : 0);
    EXPECT_EQ(fallen.exit_code, 0) << fallen.output;
    EXPECT_FALSE(fallen.timed_out);
    outcomes[static_cast<std::size_t>(victim)] = {};
    EXPECT_EQ(Failures(outcomes), "");
  }
};
INSTANTIATE_TEST_SUITE_P(Points, InitStep, ::testing::ValuesIn(kInitPoints),
                         [](const auto& parameter) { return NameOf(parameter.param); });

TEST_P(InitStep, KillOfALeafIsToldToAll) { Check(3, 2, DieByKill); }
TEST_P(InitStep, KillOfTheFirstIsToldToAll) { Check(3, 0, DieByKill); }
TEST_P(InitStep, KillOfAnInnerRankIsToldToAll) { Check(12, 1, DieByKill); }
TEST_P(InitStep, ExitIsToldToAll) { Check(2, 1, Exit); }

/// The descriptors that this process has, of any kind.
int Descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}
int DescriptorsOfAChild() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(Descriptors());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}
int descriptors_before_init = 0;

/// Forks, and ends if the child has a descriptor of the library: a connection hides the death of
/// this process, and the file of a heap keeps its memory.
void ForkAndCount() {
  const int now = DescriptorsOfAChild();
  if (now != descriptors_before_init)
    throw testing::PeFailure(fmt::format("a forked child has {} descriptors of the library",
                                         now - descriptors_before_init));
}

void ExpectChildrenHaveNothing(const char* point) {
  const auto outcomes = RunProcesses(10, [&](const Pe& pe) {
    descriptors_before_init = DescriptorsOfAChild();
    if (pe.rank <= 1) StumbleAt(point, ForkAndCount);
    pe.Init();
    PE_CHECK(ShmemMalloc(1 << 20) != nullptr);
    ForkAndCount();
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST_P(InitStep, AForkLeavesNoDescriptorToTheChild) { ExpectChildrenHaveNothing(GetParam()); }

class ExchangeStep : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Points, ExchangeStep,
                         ::testing::Values("heap: memory made", "heap: memory mapped"),
                         [](const auto& parameter) { return NameOf(parameter.param); });
TEST_P(ExchangeStep, AForkLeavesNoDescriptorToTheChild) { ExpectChildrenHaveNothing(GetParam()); }

/// Breaks this PE's connections for descriptors, as no lost PE does.
void BreakDescriptorExchange() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_un name{};
    socklen_t length = sizeof name;
    const bool found = ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
                       name.sun_family == AF_UNIX;
    if (found) ::shutdown(fd, SHUT_RDWR);
  }
}

TEST(InitFailure, WhoNoticesItFirstTellsItWhateverItsKind) {
  const auto outcomes = RunProcesses(4, [](const Pe& pe) {
    if (pe.rank == 1) StumbleAt("init: descriptors connected", BreakDescriptorExchange);
    PE_CHECK(pe.TryInit() != 0);
    const std::string error = ShmemLastError();
    // Ranks 0 and 1 see it themselves; the others are to hear what those saw.
    if (pe.rank >= 2 && error.find("it gave up: ") == std::string::npos)
      throw testing::PeFailure("the cause is not told: " + error);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

// ---- after init

/// All but `victim` run `call`, which must end with kPeerLost and name the victim.
void ExpectVictimNamed(int size, int victim, const std::function<int(const Pe&)>& call,
                       const std::function<void()>& death) {
  const Counter out(
      0);  // of the barrier: over a network a loss can be heard of before its last word
  const auto body = [&](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    ++*out;
    if (pe.rank == victim) {
      AwaitCount(out, size);
      ::usleep(20'000);  // the others are in the call, some asleep
      death();
      return;
    }
    PE_CHECK_EQ(call(pe), static_cast<int>(ErrorCode::kPeerLost));
    if (std::string(ShmemLastError()).find(fmt::format("PE {} (host ", victim)) ==
        std::string::npos) {
      throw testing::PeFailure(fmt::format("not named: {}", ShmemLastError()));
    }
  };
  auto outcomes = RunProcesses(size, body);
  outcomes[static_cast<std::size_t>(victim)] = {};
  EXPECT_EQ(Failures(outcomes), "");
}

struct Phase {
  const char* name;
  int (*call)(const Pe&);
};
void PrintTo(const Phase& phase, std::ostream* out) { *out << phase.name; }

class LostIn : public ::testing::TestWithParam<Phase> {};
INSTANTIATE_TEST_SUITE_P(
    Phases, LostIn,
    ::testing::Values(Phase{"Barrier", [](const Pe&) { return ShmemBarrierAll(); }},
                      Phase{"Malloc",
                            [](const Pe&) {
                              return ShmemMalloc(64) == nullptr ? ShmemLastErrorCode() : 0;
                            }},
                      Phase{"Free", [](const Pe&) { return ShmemFree(nullptr); }},
                      Phase{"Wait",
                            [](const Pe&) {
                              static std::uint64_t never = 0;
                              return ShmemWaitUntil(&never, Cmp::kEq, std::uint64_t{1});
                            }},
                      Phase{"Finalize", [](const Pe&) { return ShmemFinalize(); }}),
    [](const auto& parameter) { return parameter.param.name; });

TEST_P(LostIn, AKilledPeIsNamed) {
  for (const auto& [size, victim] : {std::pair{2, 0}, {2, 1}, {4, 2}, {16, 1}}) {
    ExpectVictimNamed(size, victim, GetParam().call, DieByKill);
  }
}

TEST_P(LostIn, APeThatExitsWithoutFinalizeIsNamed) {
  ExpectVictimNamed(3, 1, GetParam().call, Exit);
}

TEST(Lost, KilledInFinalizeIsNamedToTheOthers) {
  auto outcomes = RunProcesses(3, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);  // nobody is in init any more
    if (pe.rank == 1) StumbleAt("finalize: before all came", DieByKill);
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK(std::strstr(ShmemLastError(), "PE 1 (host ") != nullptr);
    PE_CHECK(!ShmemInitialized());
  });
  outcomes[1] = {};
  EXPECT_EQ(Failures(outcomes), "");
}

std::vector<int> LatePes() {
  int pes[16];
  const int count = ShmemLatePes(pes, 16);
  return {pes, pes + std::max(count, 0)};
}

/// PE 0 has looked at the word, which does not hold, when PE 1 writes it and dies.
TEST(Lost, ASignalThatTheLostPeSentBeforeStillCounts) {
  static const Counter waiting(0);
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    auto* signal = static_cast<std::uint64_t*>(ShmemMalloc(8));
    *signal = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 1) {
      AwaitCount(waiting, 1);
      PE_CHECK_EQ(ShmemAtomicSet(signal, std::uint64_t{7}, 0), 0);
      PE_CHECK_EQ(ShmemQuiet(), 0);
      return;  // exits without finalize
    }
    StumbleAt("wait: before the look for a loss", [] {
      fault_hook = nullptr;
      ++*waiting;
      while (LatePes().empty()) ::usleep(100);
    });
    PE_CHECK_EQ(ShmemWaitUntil(signal, Cmp::kEq, std::uint64_t{7}), 0);
    PE_CHECK_EQ(ShmemWaitUntil(signal, Cmp::kEq, std::uint64_t{8}),
                static_cast<int>(ErrorCode::kPeerLost));
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(Lost, TheMessageSaysWhatWasWaitedFor) {
  static const Counter asleep(0);
  const auto outcomes = RunProcesses(3, [](const Pe& pe) {
    pe.Init();
    auto* word = static_cast<std::int32_t*>(ShmemMalloc(64));
    *word = -3;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 2) {
      AwaitCount(asleep, 2);
      DieByKill();
    }
    StumbleAt("board: asleep", [] {
      fault_hook = nullptr;
      ++*asleep;
    });
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
    const std::string barrier = ShmemLastError();
    PE_CHECK(barrier.find("PE 2 (host ") != std::string::npos);
    PE_CHECK(barrier.find(", while this PE waited for PE 2") != std::string::npos);
    PE_CHECK_EQ(ShmemWaitUntil(word, Cmp::kGe, 4), static_cast<int>(ErrorCode::kPeerLost));
    const std::string wait = ShmemLastError();
    PE_CHECK(wait.find("PE 2 (host ") != std::string::npos);
    PE_CHECK(wait.find(", while the word at 0x") != std::string::npos);
    PE_CHECK(wait.find("(heap offset 0x") != std::string::npos);
    PE_CHECK(wait.find(" is -3, not >= 4") != std::string::npos);
  });
  const std::vector<Outcome> survivors(outcomes.begin(), outcomes.begin() + 2);
  EXPECT_EQ(Failures(survivors), "");
}

// ---- late PEs

const Counter& Waited() {
  static const Counter waited(0);
  return waited;
}

TEST_P(InitStep, APeThatHangsIsNamedAndWaitedForWithinOneBudget) {
  *Waited() = 0;
  testing::Options options;
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "2"}};
  const auto body = [](const Pe& pe) {
    if (pe.rank == 1) StumbleAt(GetParam(), [] { AwaitCount(Waited(), 2); });
    const int code = pe.TryInit();
    ++*Waited();
    if (pe.rank == 1) return;
    PE_CHECK(code == static_cast<int>(ErrorCode::kTimeout) ||
             code == static_cast<int>(ErrorCode::kPeerLost));
  };
  const auto outcomes = RunProcesses(3, body, options);
  EXPECT_EQ(Failures(outcomes), "");
  EXPECT_THAT(outcomes[0].output,
              ::testing::ContainsRegex("warning: still waiting for [^\n]*(rank|ranks|PE) 1[^0-9]"));
}

TEST(Late, WhoIsWaitedForIsKnownToOtherThreads) {
  static const Counter known(0);
  const auto outcomes = RunProcesses(4, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank >= 2) {
      AwaitCount(known, 2);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    } else {
      std::thread other([] {
        while (LatePes() != std::vector<int>{2, 3}) ::usleep(100);
        ++*known;
      });
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      other.join();
    }
    PE_CHECK_EQ(ShmemLatePes(nullptr, 0), 0);
    PE_CHECK_EQ(ShmemLatePes(nullptr, 1), -1);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(Late, WhoDoesNotComeIsNamedInALineAndThenInAnError) {
  static const Counter done(0);
  testing::Options options;
  options.environment = {{"MORI_SHMEM_TIMEOUT", "4"}};
  const auto body = [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 2) AwaitCount(done, 2);
    const int code = ShmemBarrierAll();
    const std::string error = ShmemLastError();
    ++*done;
    // Who gives up first is lost to the others, with its reason.
    PE_CHECK(code == static_cast<int>(ErrorCode::kPeerLost) ||
             (code == static_cast<int>(ErrorCode::kTimeout) && pe.rank != 2));
    PE_CHECK(error.find("PE 2 (host ") != std::string::npos);
    PE_CHECK(error.find("did not come within 4 s (MORI_SHMEM_TIMEOUT)") != std::string::npos);
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  };
  const auto outcomes = RunProcesses(3, body, options);
  EXPECT_EQ(Failures(outcomes), "");
  for (const std::size_t waiting : {0u, 1u}) {
    const std::string& output = outcomes[waiting].output;
    EXPECT_NE(output.find("warning: still waiting for PE 2 (host "), std::string::npos) << output;
    EXPECT_NE(output.find(" in shmem_barrier_all, "), std::string::npos) << output;
  }
}

TEST(Late, AWaitForAWordEndsWithWhatItIs) {
  testing::Options options;
  options.environment = {{"MORI_SHMEM_TIMEOUT", "0.2"}};
  const auto body = [](const Pe& pe) {
    pe.Init();
    auto* word = static_cast<std::uint64_t*>(ShmemMalloc(8));
    *word = 3;
    PE_CHECK_EQ(ShmemWaitUntil(word, Cmp::kEq, std::uint64_t{4}),
                static_cast<int>(ErrorCode::kTimeout));
    const std::string error = ShmemLastError();
    PE_CHECK(error.find("wait_until: the word at 0x") != std::string::npos);
    PE_CHECK(error.find(" is 3, not == 4 after 0.2 s (MORI_SHMEM_TIMEOUT)") != std::string::npos);
    PE_CHECK_EQ(ShmemFinalize(), 0);  // nobody else is concerned
  };
  EXPECT_EQ(Failures({testing::RunProcesses(1, body, options)}), "");
}

// ---- PEs that share a CPU

/// A CPU that this process may run on, the `number`-th of them; -1 if it has fewer.
int UsableCpu(int number) {
  cpu_set_t set;
  PE_CHECK_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set) && number-- == 0) return cpu;
  }
  return -1;
}
void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  PE_CHECK_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

TEST(Pinned, PesSpinWhereEachHasACpuOfItsOwn) {
  for (const bool apart : {false, true}) {
    if (apart && UsableCpu(1) < 0) GTEST_SKIP() << "this process may run on one CPU only";
    const auto outcomes = RunProcesses(2, [&](const Pe& pe) {
      PinTo(UsableCpu(apart ? pe.rank : 0));
      pe.Init();
      const std::string info = ShmemInfo();
      PE_CHECK_EQ(info.find("waiting  spins first") != std::string::npos, apart);
      PE_CHECK_EQ(info.find("waiting  sleeps early") != std::string::npos, !apart);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    });
    EXPECT_EQ(Failures(outcomes), "");
  }
}

TEST(Stopped, APeThatPausesIsNoLoss) {
  std::atomic<bool> done{false};
  const auto outcomes = RunProcesses(2, [&](const Pe& pe) {
    pe.Init();
    if (pe.rank == 1) {
      const pid_t self = ::getpid();
      if (::fork() == 0) {  // wakes us up again
        ::usleep(800'000);
        ::kill(self, SIGCONT);
        ::_exit(0);
      }
      ::raise(SIGSTOP);
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

// ---- strangers

void Strangers(const UniqueId& id) {
  const auto rendezvous = DecodeUniqueId(id);
  PE_CHECK(rendezvous.ok());
  const auto connect = [&] {
    return ConnectTo(rendezvous->addresses[0], rendezvous->port,
                     Deadline::After(std::chrono::seconds(5)));
  };
  std::vector<UniqueFd> kept;
  for (int i = 0; i < 1000; ++i) {
    auto fd = connect();
    PE_CHECK(fd.ok());
    const Bytes garbage(static_cast<std::size_t>(1 + i % 200), static_cast<std::uint8_t>(i));
    if (i % 3 != 0)
      static_cast<void>(SendAll(fd->get(), garbage, Deadline::After(std::chrono::seconds(5))));
    if (i % 2 == 0) kept.push_back(std::move(*fd));  // says nothing more, and stays
  }
  for (auto& fd : kept) static_cast<void>(fd.Release());  // open until this process ends
}

TEST(Strangers, AThousandOfThemDoNotDisturbAnInit) {
  const auto outcomes = RunProcesses(3, [](const Pe& pe) {
    if (pe.rank == 1) Strangers(pe.id);
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

// ---- the process's surroundings

TEST(Surroundings, SignalsInterruptEverySystemCall) {
  const auto outcomes = RunProcesses(4, [](const Pe& pe) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, nullptr);  // without SA_RESTART
    const itimerval every{{0, 300}, {0, 300}};
    ::setitimer(ITIMER_REAL, &every, nullptr);
    pe.Init();
    for (int i = 0; i < 300; ++i) {
      void* block = ShmemMalloc(64);
      PE_CHECK(block != nullptr);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemFree(block), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(Surroundings, ClosedStandardStreams) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    for (const int descriptor : {0, 1, 2}) ::close(descriptor);
    pe.Init();
    ShmemMalloc(0);  // an error, which is logged to nowhere
    std::fprintf(stderr, "and the program prints too\n");
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

/// How many descriptors a program has that this process executes.
int DescriptorsOfAnExecutedProgram() {
  FILE* listing = ::popen("exec ls /proc/self/fd", "r");
  int lines = 0;
  for (int c; (c = std::fgetc(listing)) != EOF;) lines += c == '\n';
  ::pclose(listing);
  return lines;
}

TEST(Surroundings, AnExecutedProgramInheritsNoDescriptor) {
  const auto outcomes = RunProcesses(2, [](const Pe& pe) {
    const int before = DescriptorsOfAnExecutedProgram();
    pe.Init();
    PE_CHECK_EQ(DescriptorsOfAnExecutedProgram(), before);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

bool EnterNetworkOfItsOwn() {
  return ::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
}
/// Whether a process that this one forks may do it.
bool IsAllowed(bool (*what)()) {
  return testing::RunForked(1, [&](int) { return what() ? "" : "no"; }).empty();
}

TEST(Surroundings, OnePeNeedsNoNetwork) {
  if (!IsAllowed(EnterNetworkOfItsOwn))
    GTEST_SKIP() << "this process may not make a network namespace";
  testing::Options options;
  options.environment = {{"MORI_SOCKET_IFNAME", ""}};
  const auto outcomes = RunProcesses(
      1,
      [](const Pe& pe) {
        PE_CHECK(EnterNetworkOfItsOwn());
        pe.Init();
        PE_CHECK(ShmemMalloc(64) != nullptr);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemFinalize(), 0);
      },
      options);
  EXPECT_EQ(Failures(outcomes), "");
}

/// Whether an error says that it comes from PE 1, of one step of init or the other.
bool NamesOne(const std::string& error) {
  return error.find("rank 1") != std::string::npos || error.find("PE 1 (") != std::string::npos;
}

/// A limit on PE 1 alone: it gets an error with `part`, PE 0 an error that names rank 1 or what it
/// said.
void ExpectLimitExplained(__rlimit_resource resource, rlim_t value, const std::string& part) {
  testing::Options options;
  // Static: the other modes make no memory at init.
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "2"}, {"MORI_SHMEM_MODE", "static"}};
  const auto body = [&](const Pe& pe) {
    std::optional<Limit> limit;
    if (pe.rank == 1) limit.emplace(resource, value);
    PE_CHECK(pe.TryInit() != 0);
    const std::string error = ShmemLastError();
    if (pe.rank == 1 && error.find(part) == std::string::npos)
      throw testing::PeFailure("unexplained: " + error);
    if (pe.rank == 0 && !NamesOne(error)) throw testing::PeFailure("not named: " + error);
  };
  EXPECT_EQ(Failures(RunProcesses(2, body, options)), "");
}

TEST(Surroundings, AFileSizeLimitIsExplained) {
  ExpectLimitExplained(RLIMIT_FSIZE, 1 << 20, "ulimit -f");
}

/// Takes a capability away from the calling process: limits bind root then, too.
void DropCapability(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  PE_CHECK_EQ(::syscall(SYS_capget, &header, data), 0);
  data[CAP_TO_INDEX(capability)].effective &= ~CAP_TO_MASK(capability);
  data[CAP_TO_INDEX(capability)].permitted &= ~CAP_TO_MASK(capability);
  PE_CHECK_EQ(::syscall(SYS_capset, &header, data), 0);
}

TEST(Surroundings, NoMemoryIsLocked) {
  const auto body = [](const Pe& pe) {
    DropCapability(CAP_IPC_LOCK);
    const Limit limit(RLIMIT_MEMLOCK, 0);
    // By number: sanitizers make the function do nothing.
    alignas(4096) static char page[4096];
    PE_CHECK(::syscall(SYS_mlock, page, sizeof page) != 0);
    pe.Init();
    PE_CHECK(ShmemMalloc(1 << 20) != nullptr);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(RunProcesses(2, body)), "");
}

TEST(Surroundings, ADescriptorLimitIsExplained) {
  for (rlim_t limit = 4; limit <= 10; ++limit)
    ExpectLimitExplained(RLIMIT_NOFILE, limit, "open files");
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // these reserve terabytes of addresses, and need processes, for
                                   // themselves
/// The limit of processes does not bind root.
bool BecomeAUser() { return ::getuid() != 0 || ::setuid(65534) == 0; }

/// Without a process or thread more for the user of PE 1: it says so, and PE 0 learns of it.
TEST(Surroundings, AProcessLimitIsExplained) {
  if (!IsAllowed(BecomeAUser)) GTEST_SKIP() << "needs the right to become another user";
  testing::Options options;
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "2"}};
  const auto body = [](const Pe& pe) {
    if (pe.rank == 1) {
      PE_CHECK(BecomeAUser());
      const rlimit limit{1, 1};
      PE_CHECK_EQ(::setrlimit(RLIMIT_NPROC, &limit), 0);
    }
    PE_CHECK(pe.TryInit() != 0);
    const std::string error = ShmemLastError();
    PE_CHECK(pe.rank == 1 ? error.find("thread") != std::string::npos : NamesOne(error));
  };
  EXPECT_EQ(Failures(RunProcesses(2, body, options)), "");
}

TEST(Surroundings, AnAddressSpaceLimitOnOnePeIsToldToAll) {
  testing::Options options;
  options.environment = {{"MORI_SHMEM_HEAP_SIZE", "512M"}};
  const auto body = [&](const Pe& pe) {
    std::optional<Limit> limit;
    if (pe.rank == 1) limit.emplace(RLIMIT_AS, rlim_t{600} << 20);
    PE_CHECK(pe.TryInit() != 0);
    const std::string error = ShmemLastError();
    PE_CHECK(pe.rank == 1 ? error.find("Cannot allocate memory") != std::string::npos
                          : NamesOne(error));
  };
  EXPECT_EQ(Failures(RunProcesses(2, body, options)), "");
}
#endif

}  // namespace
}  // namespace mori::shmem
