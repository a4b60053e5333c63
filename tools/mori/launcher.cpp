#include "launcher.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/config.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "guard.hpp"
#include "host_pes.hpp"
#include "local_pes.hpp"
#include "output.hpp"
#include "output_hub.hpp"
#include "poll_or_look.hpp"
#include "process_setup.hpp"
#include "running_pes.hpp"
#include "signals.hpp"

namespace mori::launcher {
namespace {

using shmem::Deadline;
using shmem::Result;
using shmem::Status;

/// After a failure, the time in which the other PEs may notice by themselves and say so.
constexpr std::chrono::milliseconds kNoticeTime{1000};
/// The time that the system may take to end a killed process.
constexpr std::chrono::milliseconds kKillTime{5000};

constexpr int kExitPipeClosed = 128 + SIGPIPE;

class Launcher {
 public:
  Launcher(std::chrono::milliseconds grace, SignalSource& signals, RunningPes& pes,
           OutputHub& output)
      : grace_(grace), signals_(signals), pes_(pes), output_(output) {}

  int Run();

 private:
  /// How far the end of the run has come. Every phase but the first and the last has a deadline, at
  /// which the next one begins.
  enum class Phase { kRunning, kNoticing, kAskedToEnd, kKilled, kGivenUp };

  // Places in polls_.
  static constexpr std::size_t kSignalPoll = 0;
  static constexpr std::size_t kHubPolls = 1;
  static constexpr std::size_t kPePolls = kHubPolls + OutputHub::kPolls;

  void WaitForEvents();
  void HandleEvents();
  void OnSignal(const signalfd_siginfo& event);
  void OnStopSignal(int signal);
  void Abandon();

  void AdvanceEnding();
  void NoticeFailures();
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

  const std::chrono::milliseconds grace_;
  SignalSource& signals_;
  RunningPes& pes_;
  OutputHub& output_;
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
  pes_.Start();
  AdvanceEnding();
  while (!finished_ || !pes_.StreamsClosed() || !output_.Empty()) {
    WaitForEvents();
    HandleEvents();
    AdvanceEnding();
  }
  return exit_status_.value_or(0);
}

// ---- events

void Launcher::WaitForEvents() {
  polls_.resize(kPePolls + pes_.PollCount());
  polls_[kSignalPoll] = {signals_.fd(), POLLIN, 0};
  output_.FillPolls(std::span(polls_).subspan(kHubPolls));
  pes_.FillPolls(std::span(polls_).subspan(kPePolls));
  PollOrLook(polls_, deadline_.PollTimeoutMs());
}

void Launcher::HandleEvents() {
  while (const std::optional<signalfd_siginfo> event = signals_.Next()) OnSignal(*event);
  pes_.Transfer(std::span(polls_).subspan(kPePolls));
  output_.Flush();
  pes_.FollowOutput();
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
  if (Over()) return Abandon();  // nothing but unread output keeps the launcher
  if (second_interrupt) return Kill();
  Ask(signal);
}

void Launcher::Abandon() {
  output_.Abandon();
  pes_.FollowOutput();
}

// ---- the end

void Launcher::AdvanceEnding() {
  NoticeFailures();
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

void Launcher::NoticeFailures() {
  while (const std::optional<RunFailure> failure = pes_.TakeFailure()) {
    output_.Message(failure->text);
    if (exit_status_) continue;
    exit_status_ = failure->exit_status;
    if (failure->more_may_follow) {
      Enter(Phase::kNoticing, kNoticeTime);
    } else {
      Ask(SIGTERM);
    }
  }
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
  if (phase_ < Phase::kAskedToEnd) Enter(Phase::kAskedToEnd, grace_);
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
  pes_.Drain();
  if (finished_ || !pes_.StreamsClosed()) return;
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
    text = fmt::format("PE {}{} failed first: {}", first_failure_->pe,
                       pes_.PlaceOf(first_failure_->pe), first_failure_->Text());
    std::erase_if(others, [&](const PeEnd& end) { return end.pe == first_failure_->pe; });
  } else {
    return text;
  }
  if (!others.empty()) text += fmt::format("; {}", DescribeEnds(others));
  const std::string running = pes_.DescribeRunning();
  if (!running.empty()) text += fmt::format("; {} did not end after SIGKILL", running);
  return text;
}

int Fail(std::string_view text) {
  WriteError(fmt::format("mori run: {}", text));
  return kExitError;
}

/// What a run on this machine begins with. @return kInvalidConfig for a variable that would end
/// each PE: here it is said once, and by whom it is read
Result<LocalPlan> PlanFor(const RunOptions& options) {
  MORI_ASSIGN_OR_RETURN(const shmem::Config config, shmem::Config::FromEnvironment());
  LocalPlan plan;
  MORI_ASSIGN_OR_RETURN(plan.id, OpenMeeting(config, options.n_pes));
  plan.command = options.command;
  plan.share = {.first = 0, .count = options.n_pes, .world = options.n_pes};
  if (options.with_input) plan.input_for_first = STDIN_FILENO;
  return plan;
}

/// What of this process's environment the hosts get, beside what is asked for by name.
bool Travels(std::string_view name) {
  constexpr std::string_view kPaths[] = {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"};
  const bool is_master =
      MasterIsSet() && (name == "MASTER_ADDR" || name == "MASTER_PORT");  // both, or none
  // A node's name is its own.
  return (name.starts_with("MORI_") && name != "MORI_NODE_ID") || is_master ||
         std::ranges::find(kPaths, name) != std::end(kPaths);
}

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

/// Sets what was given with a value. @return kInvalidConfig for a name that is not set
Status ApplyExports(const std::vector<std::string>& exports) {
  for (const std::string& text : exports) {
    const std::string name(NameOf(text));
    const bool has_value = name.size() < text.size();
    if (has_value) setenv(name.c_str(), text.c_str() + name.size() + 1, 1);
    if (has_value || getenv(name.c_str()) != nullptr) continue;
    return shmem::Error(shmem::ErrorCode::kInvalidConfig, "-x {}: there is no such variable",
                        shmem::Quote(name));
  }
  return Status();
}

std::vector<std::string> TravellingEnvironment(const std::vector<std::string>& exports) {
  std::vector<std::string> travelling;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name = NameOf(*entry);
    const bool is_asked_for =
        std::ranges::any_of(exports, [&](const std::string& text) { return NameOf(text) == name; });
    if (!name.empty() && (is_asked_for || Travels(name))) travelling.emplace_back(*entry);
  }
  return travelling;
}

/// Where this command is; the name alone where the system does not say.
std::string OwnPath() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "mori" : path.string();
}

Result<HostPlan> HostPlanFor(const RunOptions& options) {
  // A wrong variable would end each PE: here it is said once.
  MORI_RETURN_IF_ERROR(shmem::Config::FromEnvironment().status());
  HostPlan plan;
  plan.hosts = options.hosts;
  plan.launch_agent = options.launch_agent;
  plan.mori_path = options.remote_mori.empty() ? OwnPath() : options.remote_mori;
  std::error_code error;
  plan.folder = std::filesystem::current_path(error).string();
  if (error) return Status::FromErrno(error.value(), "cannot find the working directory");
  plan.environment = TravellingEnvironment(options.exports);
  plan.command = options.command;
  plan.with_input = options.with_input;
  return plan;
}

std::unique_ptr<RunningPes> MakePes(const RunOptions& options, const SignalSource& signals,
                                    const Guard& guard, const rlimit& open_files, OutputHub& output,
                                    Status* status) {
  if (!options.hosts.empty()) {
    Result<HostPlan> plan = HostPlanFor(options);
    *status = plan.status();
    if (!plan.ok()) return nullptr;
    return std::make_unique<HostPes>(signals, guard, open_files, output, std::move(*plan));
  }
  auto pes = std::make_unique<LocalPes>(signals, guard, open_files, output);
  Result<LocalPlan> plan = PlanFor(options);
  *status = plan.status();
  if (!plan.ok()) return nullptr;
  pes->SetPlan(std::move(*plan));
  return pes;
}

}  // namespace

int RunPes(const RunOptions& options) {
  OpenStandardStreams();
  LeaveSurroundingRun();
  if (const Status set = ApplyExports(options.exports); !set.ok()) return Fail(set.message());
  if (options.hosts.empty()) MeetOnLoopback();
  if (const Status usable = CheckSystemCalls(); !usable.ok()) return Fail(usable.message());
  const int n_children =
      options.hosts.empty() ? options.n_pes : static_cast<int>(options.hosts.size());
  const Result<rlimit> open_files = MakeRoomForFiles(n_children);
  if (!open_files.ok()) return Fail(open_files.status().message());
  Result<SignalSource> signals = SignalSource::Create();
  if (!signals.ok()) return Fail(signals.status().message());
  const Result<Guard> guard = Guard::Create(n_children);
  if (!guard.ok()) return Fail(guard.status().message());
  OutputHub output(options.n_pes, options.with_prefix);
  Status status;
  const auto pes = MakePes(options, *signals, *guard, *open_files, output, &status);
  if (pes == nullptr) return Fail(status.message());
  return Launcher(options.grace, *signals, *pes, output).Run();
}

}  // namespace mori::launcher
