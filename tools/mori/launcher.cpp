#include "launcher.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/config.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "bootstrap/address.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/unique_id.hpp"
#include "guard.hpp"
#include "input_pump.hpp"
#include "output.hpp"
#include "output_hub.hpp"
#include "pe_processes.hpp"
#include "process_setup.hpp"
#include "signals.hpp"

namespace mori::launcher {
namespace {

using shmem::Deadline;
using shmem::Result;
using shmem::Status;
using shmem::UniqueFd;

/// After a failure, the time in which the other PEs may notice by themselves and say so.
constexpr std::chrono::milliseconds kNoticeTime{1000};
/// The time that the system may take to end a killed process.
constexpr std::chrono::milliseconds kKillTime{5000};

constexpr int kExitError = 1;
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;
constexpr int kExitPipeClosed = 128 + SIGPIPE;

std::string CannotRunText(const std::string& program, int error_number) {
  const bool has_path = program.find('/') != std::string::npos;
  const std::string quoted = shmem::Quote(program, PATH_MAX);
  if (error_number == ENOENT && has_path && access(program.c_str(), F_OK) == 0) {
    return fmt::format("cannot run {}: the interpreter that it names does not exist", quoted);
  }
  if (error_number == ENOENT && !has_path) {
    return fmt::format("cannot run {}: no such program in PATH", quoted);
  }
  return fmt::format("cannot run {}: {}", quoted, std::strerror(error_number));
}

/// The id by which PEs find each other, served by this process. @return kInvalidConfig, or kSystem
/// where no other process can call it.
Result<shmem::UniqueId> OpenMeeting(const shmem::Config& config) {
  MORI_RETURN_IF_ERROR(shmem::SelectOwnAddresses(config.socket_ifname).status());
  MORI_ASSIGN_OR_RETURN(const shmem::UniqueId id,
                        shmem::RendezvousService::Instance().Open(config));
  MORI_ASSIGN_OR_RETURN(const shmem::Rendezvous rendezvous, shmem::DecodeUniqueId(id));
  if (rendezvous.addresses.empty()) {
    return shmem::Error(shmem::ErrorCode::kSystem, "no address of this machine can be listened on");
  }
  return id;
}

class Launcher {
 public:
  Launcher(const RunOptions& options, SignalSource& signals, const Guard& guard,
           const rlimit& open_files)
      : options_(options),
        signals_(signals),
        pes_(signals, guard, open_files),
        output_(options.n_pes, options.with_prefix) {}

  int Run();

 private:
  /// How far the end of the run has come. Every phase but the first and the last has a deadline, at
  /// which the next one begins.
  enum class Phase { kRunning, kNoticing, kAskedToEnd, kKilled, kGivenUp };

  // Places in polls_.
  static constexpr std::size_t kSignalPoll = 0;
  static constexpr std::size_t kInputPoll = 1;
  static constexpr std::size_t kHubPolls = 2;

  bool StartAll();
  bool StartOne(int pe, const std::optional<shmem::UniqueId>& id, const StringArray& arguments);
  Result<UniqueFd> InputFor(int pe);
  bool CannotStart(std::string_view text, int exit_status);

  void WaitForEvents();
  void HandleEvents();
  void OnSignal(const signalfd_siginfo& event);
  void OnStopSignal(int signal);

  void AdvanceEnding();
  void NoticeFailure();
  void Ask(int signal);
  void Kill();
  void Enter(Phase phase, std::chrono::milliseconds limit);
  /// All processes have ended, or are given up: what remains is to write what the pipes hold.
  bool Over() const { return phase_ == Phase::kGivenUp || (pes_.AllEnded() && pes_.GroupsGone()); }
  void Finish();
  std::string Summary() const;
  /// As in `mori run … | head -1`: the PEs end as they would without a launcher, silently.
  bool ReaderLeft() const {
    return output_.error() == EPIPE && first_failure_->ExitStatus() == kExitPipeClosed;
  }

  const RunOptions& options_;
  SignalSource& signals_;
  PeProcesses pes_;
  OutputHub output_;
  InputPump input_;
  std::vector<pollfd> polls_;

  Phase phase_ = Phase::kRunning;
  Deadline deadline_ = Deadline::Never();
  bool interrupted_ = false;        // SIGINT has come
  bool finished_ = false;           // the last message is given to the output
  std::optional<int> exit_status_;  // these three are set by the first thing that goes wrong
  std::optional<PeEnd> first_failure_;
  std::optional<int> stop_signal_;
};

int Launcher::Run() {
  if (!StartAll()) Ask(SIGTERM);
  AdvanceEnding();
  while (!finished_ || !output_.Done()) {
    WaitForEvents();
    HandleEvents();
    AdvanceEnding();
  }
  return exit_status_.value_or(0);
}

// ---- start

bool Launcher::StartAll() {
  // A wrong variable would end each PE: here it is said once, and by whom it is read.
  const Result<shmem::Config> config = shmem::Config::FromEnvironment();
  if (!config.ok()) return CannotStart(config.status().message(), kExitError);
  const Result<shmem::UniqueId> made = OpenMeeting(*config);
  const bool is_wrong_setting = made.status().code() == shmem::ErrorCode::kInvalidConfig;
  if (is_wrong_setting) return CannotStart(made.status().message(), kExitError);
  if (!made.ok() && options_.n_pes > 1) {
    return CannotStart(
        fmt::format("cannot open a port at which the PEs meet: {}", made.status().message()),
        kExitError);
  }
  const auto id = made.ok() ? std::optional(*made) : std::nullopt;  // one PE meets nobody
  const StringArray arguments(options_.command);
  for (int pe = 0; pe < options_.n_pes; ++pe) {
    if (!StartOne(pe, id, arguments)) return false;
  }
  return true;
}

bool Launcher::StartOne(int pe, const std::optional<shmem::UniqueId>& id,
                        const StringArray& arguments) {
  const auto fail = [&](std::string_view why) {
    return CannotStart(fmt::format("cannot start PE {}: {}", pe, why), kExitError);
  };
  Result<UniqueFd> input = InputFor(pe);
  if (!input.ok()) return fail(input.status().message());
  Result<Pipe> out = MakePipe();
  if (!out.ok()) return fail(out.status().message());
  Result<Pipe> err = MakePipe();
  if (!err.ok()) return fail(err.status().message());

  const StringArray environment(PeEnvironment(pe, options_.n_pes, id));
  const StartError error = pes_.Start({.arguments = arguments.data(),
                                       .environment = environment.data(),
                                       .input_fd = input->get(),
                                       .output_fd = out->write_end.get(),
                                       .error_fd = err->write_end.get()});
  if (error.in_program) {
    return CannotStart(CannotRunText(options_.command.front(), error.number),
                       error.number == ENOENT ? kExitNotFound : kExitCannotRun);
  }
  if (error.number != 0)
    return fail(fmt::format("cannot {}: {}", error.what, std::strerror(error.number)));

  for (const UniqueFd* read_end : {&out->read_end, &err->read_end}) {
    const Status status = MakeNonBlocking(*read_end);
    if (!status.ok()) return fail(status.message());
  }
  output_.Add(pe, std::move(out->read_end), std::move(err->read_end));
  return true;
}

Result<UniqueFd> Launcher::InputFor(int pe) {
  if (pe == 0 && options_.with_input) {
    MORI_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    MORI_RETURN_IF_ERROR(MakeNonBlocking(pipe.write_end));
    input_ = InputPump(std::move(pipe.write_end));
    return std::move(pipe.read_end);
  }
  UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return Status::FromErrno(errno, "cannot open /dev/null");
  return null;
}

bool Launcher::CannotStart(std::string_view text, int exit_status) {
  output_.Message(text);
  exit_status_ = exit_status;
  return false;
}

// ---- events

void Launcher::WaitForEvents() {
  polls_.resize(kHubPolls + output_.PollCount());
  polls_[kSignalPoll] = {signals_.fd(), POLLIN, 0};
  polls_[kInputPoll] = input_.Poll();
  output_.FillPolls(std::span(polls_).subspan(kHubPolls));
  if (poll(polls_.data(), polls_.size(), deadline_.PollTimeoutMs()) > 0) return;
  for (pollfd& none : polls_) none.revents = 0;
}

void Launcher::HandleEvents() {
  while (const std::optional<signalfd_siginfo> event = signals_.Next()) OnSignal(*event);
  input_.Transfer(polls_[kInputPoll]);
  output_.Transfer(std::span(polls_).subspan(kHubPolls));
}

void Launcher::OnSignal(const signalfd_siginfo& event) {
  const int signal = static_cast<int>(event.ssi_signo);
  switch (signal) {
    // While SIGCHLD is pending more of them are merged into it: what it names ended first.
    case SIGCHLD: return pes_.Reap(static_cast<pid_t>(event.ssi_pid));
    case SIGCONT: return pes_.SignalGroups(signal);
    case SIGUSR1:
    case SIGUSR2: return pes_.SignalPes(signal);
    case SIGTSTP:
      pes_.SignalGroups(signal);
      raise(SIGSTOP);
      return;
    default: return OnStopSignal(signal);
  }
}

void Launcher::OnStopSignal(int signal) {
  const bool second_interrupt = interrupted_ && signal == SIGINT;
  interrupted_ = interrupted_ || signal == SIGINT;
  if (!exit_status_) {
    exit_status_ = 128 + signal;
    stop_signal_ = signal;
  }
  if (Over()) return output_.Abandon();  // nothing but unread output keeps the launcher
  if (second_interrupt) return Kill();
  Ask(signal);
}

// ---- the end

void Launcher::AdvanceEnding() {
  NoticeFailure();
  if (Over()) return Finish();
  if (pes_.AllEnded() && phase_ < Phase::kAskedToEnd) Ask(SIGTERM);  // to what they left behind
  if (!deadline_.Expired()) return;
  switch (phase_) {
    case Phase::kNoticing: return Ask(SIGTERM);
    case Phase::kAskedToEnd: return Kill();
    case Phase::kKilled: phase_ = Phase::kGivenUp; return Finish();
    case Phase::kRunning:
    case Phase::kGivenUp: return;
  }
}

void Launcher::NoticeFailure() {
  if (exit_status_) return;
  for (const PeEnd& end : pes_.ends()) {
    if (!end.Failed()) continue;
    first_failure_ = end;
    exit_status_ = end.ExitStatus();
    return Enter(Phase::kNoticing, kNoticeTime);
  }
}

void Launcher::Ask(int signal) {
  pes_.EndOrphansBy(signal);
  pes_.SignalGroups(signal);
  pes_.SignalGroups(SIGCONT);  // a stopped process can act on it
  if (phase_ < Phase::kAskedToEnd) Enter(Phase::kAskedToEnd, options_.grace);
}

void Launcher::Kill() {
  pes_.EndOrphansBy(SIGKILL);
  pes_.SignalGroups(SIGKILL);
  Enter(Phase::kKilled, kKillTime);
}

void Launcher::Enter(Phase phase, std::chrono::milliseconds limit) {
  phase_ = phase;
  deadline_ = Deadline::After(limit);
}

void Launcher::Finish() {
  deadline_ = Deadline::Never();
  output_.Drain();
  if (finished_ || !output_.StreamsClosed()) return;
  finished_ = true;
  const int error = output_.error();
  if (error != 0 && error != EPIPE && error != ECANCELED) {
    output_.Message(fmt::format("cannot write the output of PEs: {}", std::strerror(error)));
  }
  if (const std::string summary = Summary(); !summary.empty()) output_.Message(summary);
  if (error != 0 && !exit_status_) exit_status_ = error == EPIPE ? kExitPipeClosed : kExitError;
}

std::string Launcher::Summary() const {
  std::string text;
  std::vector<PeEnd> others = pes_.ends();
  if (stop_signal_) {
    text = fmt::format("ended by {}", SignalName(*stop_signal_));
  } else if (first_failure_ && !ReaderLeft()) {
    text = fmt::format("PE {} failed first: {}", first_failure_->pe, first_failure_->Text());
    std::erase_if(others, [&](const PeEnd& end) { return end.pe == first_failure_->pe; });
  } else {
    return text;
  }
  if (!others.empty()) text += fmt::format("; {}", DescribeEnds(others));
  const std::string running = pes_.DescribeRunning();
  if (!running.empty()) text += fmt::format("; {} did not end after SIGKILL", running);
  return text;
}

}  // namespace

int RunPes(const RunOptions& options) {
  OpenStandardStreams();
  PrepareEnvironment();
  const auto fail = [](const Status& status) {
    WriteError(fmt::format("mori run: {}", status.message()));
    return kExitError;
  };
  if (const Status usable = CheckSystemCalls(); !usable.ok()) return fail(usable);
  const Result<rlimit> open_files = MakeRoomForFiles(options.n_pes);
  if (!open_files.ok()) return fail(open_files.status());
  Result<SignalSource> signals = SignalSource::Create();
  if (!signals.ok()) return fail(signals.status());
  const Result<Guard> guard = Guard::Create(options.n_pes);
  if (!guard.ok()) return fail(guard.status());
  return Launcher(options, *signals, *guard, *open_files).Run();
}

}  // namespace mori::launcher
