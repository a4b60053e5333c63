// PEs as processes of one program, that end together: options, start, a meeting place, and failure.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace mori::bench {

/// Ends the process with status 1 and `what` unless `holds`; PE 0 then ends the others.
inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "BAD %s\n", what.c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

struct Options {
  int pes = 2;
  unsigned limit_s = 60;
  std::string json;
  std::string only;  ///< groups of figures, separated by commas; all if empty

  static Options Parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      Require(i + 1 < argc, "--pes N --json FILE --only GROUP,GROUP --limit SECONDS");
      if (name == "--pes") {
        options.pes = std::atoi(argv[i + 1]);
      } else if (name == "--json") {
        options.json = argv[i + 1];
      } else if (name == "--only") {
        options.only = argv[i + 1];
      } else if (name == "--limit") {
        options.limit_s = static_cast<unsigned>(std::atoi(argv[i + 1]));
      } else {
        Require(false, "unknown option " + name);
      }
    }
    Require(options.pes >= 2 && options.pes <= 64, "--pes: 2 to 64");
    return options;
  }
  bool Wants(const std::string& group) const {
    return only.empty() || ("," + only + ",").find("," + group + ",") != std::string::npos;
  }
};

/// PE 0 is the process that called `Start()`; it outlives the others.
class Processes {
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
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = &OnAlarm;
    ::sigaction(SIGALRM, &action, nullptr);
    action.sa_handler = &OnChild;
    ::sigaction(SIGCHLD, &action, nullptr);
    OnChild(SIGCHLD);
    ::alarm(limit_s);
    return {0, size, shared};
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Returns once all have called it. Sleeps meanwhile: the GPU and the CPUs are for who measures.
  void Meet() {
    const unsigned mine = shared_->arrived.fetch_add(1) + 1;
    const unsigned size = static_cast<unsigned>(size_);
    const unsigned all = (mine + size - 1) / size * size;
    while (shared_->arrived.load() < all) ::usleep(20);
  }
  /// What PE 0 passes, to all.
  template <typename T>
  void FromFirst(T* value) {
    static_assert(sizeof(T) <= sizeof(Shared::message));
    if (rank_ == 0) std::memcpy(shared_->message, value, sizeof(T));
    Meet();
    std::memcpy(value, shared_->message, sizeof(T));
    Meet();
  }

  /// Waits for the others, and returns the status to end with.
  int End() {
    while (rank_ == 0) {
      bool all_gone = true;
      for (int i = 0; i < n_children_; ++i) all_gone = all_gone && children_[i] == 0;
      if (all_gone) break;
      ::usleep(1000);
    }
    return 0;
  }

 private:
  struct Shared {
    std::atomic<unsigned> arrived{0};
    unsigned char message[4000];
  };
  Processes(int rank, int size, Shared* shared) : rank_(rank), size_(size), shared_(shared) {}

  static void EndAll(const char* why) {
    const ssize_t written = ::write(STDERR_FILENO, why, std::strlen(why));
    static_cast<void>(written);
    for (int i = 0; i < n_children_; ++i) {
      if (children_[i] != 0) ::kill(children_[i], SIGKILL);
    }
    ::_exit(1);
  }
  static void OnAlarm(int) { EndAll("BAD no end in time\n"); }
  static void OnChild(int) {
    for (int i = 0; i < n_children_; ++i) {
      int status = 0;
      if (children_[i] == 0 || ::waitpid(children_[i], &status, WNOHANG) != children_[i]) continue;
      children_[i] = 0;
      if (status != 0) EndAll("BAD a PE has failed\n");
    }
  }

  static inline volatile pid_t children_[64];
  static inline volatile int n_children_ = 0;

  int rank_;
  int size_;
  Shared* shared_;
};

}  // namespace mori::bench
