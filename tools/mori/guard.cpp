#include "guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "process_setup.hpp"

namespace mori::launcher {
namespace {

/// The life of the guard. It holds no descriptor but the pipe, and is out of reach of the terminal.
[[noreturn]] void StandGuard(const Pipe& lifeline, std::span<pid_t> groups) {
  setpgid(0, 0);
  prctl(PR_SET_NAME, "mori guard");
  dup2(lifeline.read_end.get(), STDIN_FILENO);
  close_range(STDIN_FILENO + 1, ~0U, 0);
  char none = 0;
  while (read(STDIN_FILENO, &none, 1) < 0 && errno == EINTR) {
  }
  for (pid_t& group : groups) {
    const pid_t watched = std::atomic_ref(group).load(std::memory_order_relaxed);
    if (watched != 0) kill(-watched, SIGKILL);
  }
  _exit(0);
}

}  // namespace

shmem::Result<Guard> Guard::Create(int n_pes) {
  MORI_ASSIGN_OR_RETURN(Pipe lifeline, MakePipe());
  const auto count = static_cast<std::size_t>(n_pes);
  void* memory = mmap(nullptr, count * sizeof(pid_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return shmem::Status::FromErrno(errno, "map memory for the guard");
  const std::span<pid_t> groups(static_cast<pid_t*>(memory), count);
  const pid_t process = fork();
  if (process == 0) StandGuard(lifeline, groups);
  if (process < 0) return shmem::Status::FromErrno(errno, "start the guard");
  return Guard(std::move(lifeline.write_end), process, groups);
}

Guard::Guard(Guard&& other) noexcept
    : lifeline_(std::move(other.lifeline_)),
      process_(std::exchange(other.process_, 0)),
      groups_(std::exchange(other.groups_, {})) {}

Guard::~Guard() {
  if (process_ == 0) return;
  lifeline_.Reset();
  waitpid(process_, nullptr, 0);
  munmap(groups_.data(), groups_.size_bytes());
}

void Guard::Watch(std::size_t pe, pid_t group) const {
  std::atomic_ref(groups_[pe]).store(group, std::memory_order_relaxed);
}

}  // namespace mori::launcher
