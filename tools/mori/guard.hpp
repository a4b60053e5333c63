// What is left of a run whose launcher was killed, is ended all the same.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "base/status.hpp"
#include "base/unique_fd.hpp"

namespace mori::launcher {

/// A process that waits for the launcher's end and then kills the process groups it was told to
/// watch. The kernel ends the PEs themselves with the launcher; the guard ends what they started.
class Guard {
 public:
  /// To be called while this process has no other thread.
  static shmem::Result<Guard> Create(int n_pes);
  Guard(Guard&& other) noexcept;
  Guard& operator=(Guard&&) = delete;
  /// Dismisses the guard and waits for its end.
  ~Guard();

  void Watch(std::size_t pe, pid_t group) const;
  void Forget(std::size_t pe) const { Watch(pe, 0); }

 private:
  Guard(shmem::UniqueFd lifeline, pid_t process, std::span<pid_t> groups)
      : lifeline_(std::move(lifeline)), process_(process), groups_(groups) {}

  shmem::UniqueFd lifeline_;  // write end of a pipe: closed with the launcher, however it ends
  pid_t process_;
  std::span<pid_t> groups_;  // by PE, 0 for none; shared with the guard
};

}  // namespace mori::launcher
