#include "guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "process_setup.hpp"

namespace mori::launcher {
namespace {

/// How long a dismissed guard may take to end.
constexpr std::chrono::milliseconds kEndTime{2000};

/// The life of the guard. It holds no descriptor but the pipe, and is out of reach of the terminal.
[[noreturn]] void StandGuard(Pipe& lifeline, std::span<pid_t> groups) {
  setpgid(0, 0);
  prctl(PR_SET_NAME, "mori guard");
  lifeline.write_end.Reset();  // or its own end would keep it waiting
  if (dup2(lifeline.read_end.get(), STDIN_FILENO) < 0) _exit(1);
  CloseDescriptorsFrom(STDIN_FILENO + 1);
  char none = 0;
  while (read(STDIN_FILENO, &none, 1) < 0) {
    if (errno != EINTR) _exit(1);  // it cannot know when the launcher ends
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
  if (memory == MAP_FAILED)
    return shmem::Status::FromErrno(errno, "cannot map memory for the guard");
  const std::span<pid_t> groups(static_cast<pid_t*>(memory), count);
  const pid_t process = fork();
  if (process == 0) StandGuard(lifeline, groups);
  if (process < 0) {
    const int error = errno;
    munmap(memory, groups.size_bytes());
    return shmem::Status::FromErrno(error, "cannot start the guard");
  }
  return Guard(std::move(lifeline.write_end), process, groups);
}

Guard::Guard(Guard&& other) noexcept
    : lifeline_(std::move(other.lifeline_)),
      process_(std::exchange(other.process_, 0)),
      groups_(std::exchange(other.groups_, {})) {}

Guard::~Guard() {
  if (process_ == 0) return;
  lifeline_.Reset();
  const shmem::Deadline end = shmem::Deadline::After(kEndTime);
  while (waitpid(process_, nullptr, WNOHANG) == 0 && !end.Expired()) {
    if (kill(process_, 0) != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (end.Expired()) kill(process_, SIGKILL);  // whoever reaps it then
  munmap(groups_.data(), groups_.size_bytes());
}

void Guard::Watch(std::size_t pe, pid_t group) const {
  std::atomic_ref(groups_[pe]).store(group, std::memory_order_relaxed);
}

}  // namespace mori::launcher
