// Signals of the launcher as events, and what its children need to undo.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>
#include <string>

#include "base/status.hpp"
#include "base/unique_fd.hpp"

namespace mori::launcher {

/// "SIGINT" for 2; "signal 34" where there is no name.
std::string SignalName(int signal);

/// Blocks the signals that the launcher acts on and hands them out as events. Those that ask it to
/// end are SIGINT, SIGTERM, SIGHUP, SIGQUIT, and SIGALRM and SIGXCPU of limits that it was started
/// with. Output that cannot be written is an error of write(). A stop signal that was ignored at
/// start (`nohup`, a shell's background job) stays ignored. Made once, by the main thread, before
/// any other thread starts, so that all threads inherit the mask.
class SignalSource {
 public:
  static shmem::Result<SignalSource> Create();

  /// Readable while an event is pending.
  int fd() const { return fd_.get(); }
  /// The next pending event. Does not block.
  std::optional<signalfd_siginfo> Next();

  /// Gives the calling process the mask and dispositions that the launcher was started with.
  /// Async-signal-safe: called between fork and exec. @return whether it could.
  bool RestoreForChild() const;

 private:
  SignalSource() = default;

  shmem::UniqueFd fd_;
  sigset_t original_mask_{};
  struct sigaction original_sigpipe_ {};
  struct sigaction original_sigxfsz_ {};
  struct sigaction original_sigchld_ {};
};

}  // namespace mori::launcher
