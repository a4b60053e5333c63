// Two PEs as processes of one program, and the verdicts of its cases.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "mori/shmem/shmem.hpp"

namespace mori::shmem::testing {

class TwoPes {
 public:
  /// Forks: nothing may have touched CUDA. Both processes go on from here, for two minutes at most.
  TwoPes() {
    void* page =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) std::abort();
    shared_ = new (page) Shared;
    std::fflush(nullptr);
    other_ = ::fork();
    if (other_ < 0) std::abort();
    rank_ = other_ == 0 ? 1 : 0;
    ::alarm(120);
    ::setenv("MORI_SHMEM_BACKEND", "cuda", 1);
    ::setenv("MORI_SHMEM_MODE", "static", 1);
    ::setenv("MORI_SHMEM_HEAP_SIZE", "16M", 1);
    ::setenv("MORI_SOCKET_IFNAME", "lo", 1);
    ::setenv("MORI_BOOTSTRAP_TIMEOUT", "60", 1);
    ::setenv("MORI_LOCAL_RANK", rank_ == 0 ? "0" : "1", 1);
  }

  int rank() const { return rank_; }

  /// A new world each time.
  void Init() {
    ++round_;
    UniqueId* id = shared_->ids + round_ % 2;
    if (rank_ == 0) {
      Report("unique id", ShmemGetUniqueId(id) == 0);
      shared_->rounds.store(round_);
    }
    while (shared_->rounds.load() < round_) ::usleep(100);
    Report("init", ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, rank_, 2, *id) == 0);
  }

  /// Prints the verdict of a case.
  void Report(const std::string& name, bool is_right) {
    if (!is_right) ++failures_;
    std::printf("%-6s PE %d: %s%s%s\n", is_right ? "OK" : "FAILED", rank_, name.c_str(),
                is_right ? "" : "; last error: ", is_right ? "" : ShmemLastError());
    std::fflush(stdout);
  }

  /// The status to end with: how many cases have failed, on both PEs where this is PE 0.
  int End() {
    if (rank_ == 0) {
      int status = 0;
      ::waitpid(other_, &status, 0);
      failures_ += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return failures_ < 100 ? failures_ : 100;
  }

 private:
  struct Shared {
    std::atomic<int> rounds{0};
    UniqueId ids[2];
  };

  Shared* shared_;
  pid_t other_ = 0;
  int rank_ = 0;
  int round_ = 0;
  int failures_ = 0;
};

}  // namespace mori::shmem::testing
