#include "signals.hpp"

#include <string.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

namespace mori::launcher {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
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

bool IsStopSignal(int signal) {
  for (const int stop : kStopSignals) {
    if (signal == stop) return true;
  }
  return false;
}

shmem::Result<SignalSource> SignalSource::Create() {
  SignalSource source;
  const sigset_t watched = WatchedSignals();
  pthread_sigmask(SIG_BLOCK, &watched, &source.original_mask_);

  // Closed outputs are errors of write(), and only ends of children are events: a stopped child
  // must not take the place of one that ended.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &source.original_sigpipe_);
  struct sigaction ends_only {};
  ends_only.sa_handler = SIG_DFL;
  ends_only.sa_flags = SA_NOCLDSTOP;
  sigaction(SIGCHLD, &ends_only, &source.original_sigchld_);

  source.fd_.Reset(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!source.fd_.valid()) return shmem::Status::FromErrno(errno, "watch signals");
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

void SignalSource::RestoreForChild() const {
  sigaction(SIGPIPE, &original_sigpipe_, nullptr);
  sigaction(SIGCHLD, &original_sigchld_, nullptr);
  pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
}

}  // namespace mori::launcher
