#include "support/run_pes.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace mori::shmem::testing {

/// In anonymous shared memory: how rank 0 hands ids to its siblings.
struct Blackboard {
  std::atomic<int> rounds{-1};
  UniqueId ids[2];
};

UniqueId Pe::FreshId(int round) const {
  UniqueId* slot = &blackboard->ids[round % 2];
  if (rank == 0) {
    PE_CHECK_EQ(ShmemGetUniqueId(slot), 0);
    blackboard->rounds.store(round, std::memory_order_release);
  }
  while (blackboard->rounds.load(std::memory_order_acquire) < round) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return *slot;
}

void EnterNetworkOf(const std::string& node) {
  const char* networks = std::getenv("MORI_TEST_NETWORKS");
  if (networks == nullptr) return;
  const std::string all = fmt::format(",{},", networks);
  const std::string name = fmt::format(",{}=", node);
  const auto found = all.find(name);
  if (found == std::string::npos) return;
  const auto begin = found + name.size();
  const std::string path = all.substr(begin, all.find(',', begin) - begin);
  const int network = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (network < 0 || ::setns(network, CLONE_NEWNET) != 0) {
    throw PeFailure(fmt::format("cannot enter {}: {}", path, std::strerror(errno)));
  }
  ::close(network);
}

namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid;
  int output_fd;
};

Blackboard* NewBlackboard() {
  void* memory = ::mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Blackboard{};
}

void SetEnvironment(const Options& options) {
  ::setenv("MORI_SOCKET_IFNAME", std::getenv("MORI_TEST_NETWORKS") ? "eth0" : "lo", 1);
  ::setenv("MORI_SHMEM_HEAP_SIZE", "8M", 1);
  ::setenv("MORI_SHMEM_BACKEND", "host", 1);
  ::setenv("MORI_BOOTSTRAP_TIMEOUT", "30", 1);
  for (const auto& [name, value] : options.environment) {
    value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
}

/// MORI_TEST_NODES spreads the processes of a test over nodes of their own: "each" gives every PE
/// one, "two" has two and deals the PEs out in turn.
void SetNode(int rank) {
  const char* spread = std::getenv("MORI_TEST_NODES");
  if (spread == nullptr || std::getenv("MORI_NODE_ID") != nullptr) return;
  const int node = std::string_view(spread) == "two" ? rank % 2 : rank;
  const std::string name = fmt::format("node{}", node);
  ::setenv("MORI_NODE_ID", name.c_str(), 1);
  EnterNetworkOf(name);
}

/// What a background job or nohup ignores, and so its children too, a PE does not.
void SetDefaultSignals() {
  for (const int number : {SIGINT, SIGHUP, SIGQUIT, SIGTERM, SIGPIPE}) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Exits as a program would: exit handlers run.
[[noreturn]] void ExitWith(const std::function<void()>& body) {
  int code = 0;
  try {
    body();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    code = 1;
  }
  std::fflush(nullptr);
  std::exit(code);
}

Child Start(const Options& options, const std::function<void()>& body) {
  const int output = ::memfd_create("pe output", MFD_CLOEXEC);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(output, STDERR_FILENO);
    ::dup2(output, STDOUT_FILENO);
    SetDefaultSignals();
    SetEnvironment(options);
    ExitWith(body);
  }
  return {pid, output};
}

std::string ReadAll(int fd) {
  std::string text;
  ::lseek(fd, 0, SEEK_SET);
  char buffer[4096];
  for (ssize_t got; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(fd);
  return text;
}

std::vector<Outcome> Await(const std::vector<Child>& children, std::chrono::seconds limit) {
  const auto end = Clock::now() + limit;
  std::vector<Outcome> outcomes;
  for (const Child& child : children) {
    Outcome outcome;
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(child.pid, &status, WNOHANG)) == 0 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (ended == 0) {
      outcome.timed_out = true;
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, &status, 0);
    }
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    outcome.output = ReadAll(child.output_fd);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace

std::vector<Outcome> RunProcesses(int size, const Body& body, const Options& options) {
  Blackboard* blackboard = NewBlackboard();
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(Start(options, [&] {
      SetNode(rank);
      Pe pe{rank, size, {}, blackboard};
      pe.id = pe.FreshId(0);
      body(pe);
    }));
  }
  auto outcomes = Await(children, options.deadline);
  ::munmap(blackboard, sizeof *blackboard);
  return outcomes;
}

std::vector<Outcome> RunThreads(int size, const Body& body, const Options& options) {
  const Child child = Start(options, [&] {
    Blackboard blackboard;
    const UniqueId id = Pe{0, size, {}, &blackboard}.FreshId(0);
    std::mutex mutex;
    std::string failures;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(Pe{rank, size, id, &blackboard});
        } catch (const std::exception& failure) {
          const std::lock_guard lock(mutex);
          failures += fmt::format("PE {}: {}\n", rank, failure.what());
        }
      });
    }
    for (auto& thread : threads) thread.join();
    if (!failures.empty()) throw PeFailure(failures);
  });
  return Await({child}, options.deadline);
}

std::vector<Outcome> RunAs(As as, int size, const Body& body, const Options& options) {
  return as == As::kProcesses ? RunProcesses(size, body, options) : RunThreads(size, body, options);
}

Outcome RunAlone(const std::function<void()>& body, const Options& options) {
  return Await({Start(options, body)}, options.deadline)[0];
}

std::string Failures(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (outcome.ok()) continue;
    text +=
        fmt::format("process {}: exit code {}, signal {}{}: {}\n", i, outcome.exit_code,
                    outcome.signal, outcome.timed_out ? ", deadline reached" : "", outcome.output);
  }
  return text;
}

}  // namespace mori::shmem::testing
