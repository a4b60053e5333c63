#include "signals.hpp"

#include <string.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

namespace mori::launcher {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGXCPU};
constexpr std::array kOtherSignals = {SIGCHLD, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2};

bool Ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t WatchedSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : kOtherSignals) sigaddset(&watched, signal);
  for (const int signal : kStopSignals) {
    if (!Ignored(signal)) sigaddset(&watched, signal);
  }
  return watched;
}

}  // namespace

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

shmem::Result<SignalSource> SignalSource::Create() {
  SignalSource source;
  const sigset_t watched = WatchedSignals();
  const int error = pthread_sigmask(SIG_BLOCK, &watched, &source.original_mask_);
  if (error != 0) return shmem::Status::FromErrno(error, "cannot block signals");

  // Closed outputs, and files beyond their limit, are errors of write(), and only ends of children
  // are events: a stopped child must not take the place of one that ended.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  bool done = sigaction(SIGPIPE, &ignore, &source.original_sigpipe_) == 0 &&
              sigaction(SIGXFSZ, &ignore, &source.original_sigxfsz_) == 0;
  struct sigaction ends_only {};
  ends_only.sa_handler = SIG_DFL;
  ends_only.sa_flags = SA_NOCLDSTOP;
  done = done && sigaction(SIGCHLD, &ends_only, &source.original_sigchld_) == 0;
  if (!done) return shmem::Status::FromErrno(errno, "cannot set how signals are handled");

  source.fd_.Reset(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!source.fd_.valid()) return shmem::Status::FromErrno(errno, "cannot watch signals");
  return source;
}

std::optional<signalfd_siginfo> SignalSource::Next() {
  signalfd_siginfo event;
  for (;;) {
    const ssize_t got = read(fd_.get(), &event, sizeof(event));
    if (got == sizeof(event)) return event;
    if (got >= 0 || errno != EINTR) return std::nullopt;
  }
}

bool SignalSource::RestoreForChild() const {
  return sigaction(SIGPIPE, &original_sigpipe_, nullptr) == 0 &&
         sigaction(SIGXFSZ, &original_sigxfsz_, nullptr) == 0 &&
         sigaction(SIGCHLD, &original_sigchld_, nullptr) == 0 &&
         pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr) == 0;
}

}  // namespace mori::launcher
