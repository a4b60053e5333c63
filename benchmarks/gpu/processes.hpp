// PEs as processes of one program, or as its threads, that end together.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <new>
#include <thread>

#include "crew.hpp"

namespace mori::bench {

/// PE 0 is the process that called `Start()`; it outlives the others.
class Processes : public Crew {
 public:
  /// Forks: nothing may have touched CUDA. After `limit_s` seconds, or when one of them fails, all
  /// are ended with status 1.
  static Processes Start(int size, unsigned limit_s) {
    void* page =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Require(page != MAP_FAILED, "no shared memory");
    auto* shared = new (page) Shared;
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    for (int rank = 1; rank < size; ++rank) {
      const pid_t pid = ::fork();
      Require(pid >= 0, "fork");
      if (pid == 0) {
        n_children_ = 0;
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::alarm(limit_s + 2);  // PE 0 comes first, and says it
        return {rank, size, shared};
      }
      children_[n_children_] = pid;
      n_children_ = n_children_ + 1;
    }
    Handle(SIGALRM, [](int) { EndAll("BAD no end in time\n"); });
    Handle(SIGCHLD, &OnChild);
    OnChild(SIGCHLD);
    ::alarm(limit_s);
    return {0, size, shared};
  }

  /// Waits for the others, and returns the status to end with.
  int End() {
    while (rank() == 0) {
      bool all_gone = true;
      for (int i = 0; i < n_children_; ++i) all_gone = all_gone && children_[i] == 0;
      if (all_gone) break;
      ::usleep(1000);
    }
    return 0;
  }

 private:
  using Crew::Crew;

  static void EndAll(const char* why) {
    WriteError(why);
    for (int i = 0; i < n_children_; ++i) {
      if (children_[i] != 0) ::kill(children_[i], SIGKILL);
    }
    ::_exit(1);
  }
  static void OnChild(int) {
    for (int i = 0; i < n_children_; ++i) {
      int status = 0;
      if (children_[i] == 0 || ::waitpid(children_[i], &status, WNOHANG) != children_[i]) continue;
      children_[i] = 0;
      if (status != 0) EndAll("BAD a PE has failed\n");
    }
  }

  static inline volatile pid_t children_[kMostPes];
  static inline volatile int n_children_ = 0;
};

/// Runs `pe(crew)` as each PE, in a process or a thread of its own as the options say. Returns the
/// status to end with, in the processes of the other PEs too.
template <class Pe>
int RunPes(const Options& options, Pe pe) {
  if (!options.as_threads) {
    Processes processes = Processes::Start(options.pes, options.limit_s);
    pe(processes);
    return processes.End();
  }
  EndAfter(options.limit_s);
  Crew::Shared shared{};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.pes; ++rank)
    threads.emplace_back([&, rank] { pe(Crew(rank, options.pes, &shared)); });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace mori::bench
