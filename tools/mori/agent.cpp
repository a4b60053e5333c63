#include "agent.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent_messages.hpp"
#include "base/config.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "bootstrap/unique_id.hpp"
#include "guard.hpp"
#include "local_pes.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "output.hpp"
#include "pe_output.hpp"
#include "poll_or_look.hpp"
#include "process_setup.hpp"
#include "running_pes.hpp"
#include "signals.hpp"

namespace mori::launcher {
namespace {

using shmem::Deadline;
using shmem::Result;
using shmem::Status;

/// The time that the system may take to end killed processes, and the launcher to read.
constexpr std::chrono::milliseconds kLastTime{5000};
constexpr int kUsageError = 2;

/// Messages to the launcher; among them what the PEs write.
class Replies : public PeOutput {
 public:
  Replies() : sink_(STDOUT_FILENO) { Append(kAgentGreeting); }

  void Send(MessageType type, shmem::ByteView payload = {}) {
    Append(EncodeMessage(type, payload));
  }

  void Feed(int pe, StreamKind kind, std::string_view bytes) override {
    Send(MessageType::kOutput, Encode(OutputPiece{pe, kind, std::string(bytes)}));
  }
  void Finish(int pe, StreamKind kind) override {
    Send(MessageType::kOutputEnd, Encode(OutputPiece{pe, kind, {}}));
  }
  bool Full(StreamKind kind) const override {
    return sink_.full() || flow_[static_cast<std::size_t>(kind)] == Flow::kPaused;
  }
  bool Closed(StreamKind kind) const override {
    return sink_.error() != 0 || flow_[static_cast<std::size_t>(kind)] == Flow::kClosed;
  }
  void SetFlow(const FlowOrder& order) { flow_[static_cast<std::size_t>(order.kind)] = order.flow; }

  pollfd Poll() const { return {sink_.empty() ? -1 : sink_.fd(), POLLOUT, 0}; }
  void Flush() { sink_.Flush(); }
  bool Sent() const { return sink_.empty(); }
  /// Nobody reads them.
  bool Lost() const { return sink_.error() != 0; }
  void Discard() { sink_.Discard(EPIPE); }

 private:
  void Append(std::string_view bytes) { sink_.Append(0, {}, bytes); }

  OutputSink sink_;
  Flow flow_[2] = {Flow::kOpen, Flow::kOpen};
};

class Agent {
 public:
  explicit Agent(SignalSource& signals) : signals_(signals) {}

  int Run();

 private:
  // Places in polls_.
  static constexpr std::size_t kSignalPoll = 0;
  static constexpr std::size_t kInputPoll = 1;
  static constexpr std::size_t kOutputPoll = 2;
  static constexpr std::size_t kPePolls = 3;

  void WaitForEvents();
  void HandleSignals();
  void Listen();
  bool OnMessage(const Message& message);
  bool OnWork(const Message& message);
  bool OnStart(const Message& message);
  Status Prepare(const AgentWork& work);
  Result<Meeting> Meet(const AgentWork& work, const shmem::Config& config);
  void Refuse(std::string text, int exit_status);
  void Tell();
  void Leave();
  bool Over() const { return started_ && pes_->AllEnded() && pes_->GroupsGone(); }

  SignalSource& signals_;
  Replies replies_;
  MessageReader orders_{kMaxWorkBytes};
  std::vector<pollfd> polls_;

  std::optional<Guard> guard_;
  std::unique_ptr<LocalPes> pes_;  // once the work is known
  AgentWork work_;
  bool started_ = false;
  std::size_t told_ends_ = 0;
  bool asked_for_input_ = false;
  bool told_over_ = false;
  bool is_alone_ = false;  // the launcher is gone, or has nothing more to say
  Deadline end_ = Deadline::Never();
};

int Agent::Run() {
  replies_.Send(MessageType::kHello, Encode(AgentHello{kAgentProtocol, shmem::ShmemVersion()}));
  for (;;) {
    Tell();
    replies_.Flush();
    if (pes_ != nullptr) pes_->FollowOutput();
    if (replies_.Lost()) Leave();
    if (is_alone_ && (replies_.Sent() || replies_.Lost()) && (!started_ || told_over_)) return 0;
    if (end_.Expired()) return kExitError;
    WaitForEvents();
    HandleSignals();
    if (polls_[kInputPoll].revents != 0) Listen();
    if (pes_ != nullptr && polls_.size() == kPePolls + pes_->PollCount())
      pes_->Transfer(std::span(polls_).subspan(kPePolls));
  }
}

/// Nobody gives orders any more.
void Agent::Leave() {
  if (std::exchange(is_alone_, true)) return;
  end_ = Deadline::After(kLastTime);
  if (!started_ || told_over_) return;
  replies_.Discard();
  pes_->EndOrphansBy(SIGKILL);
  pes_->SignalGroups(SIGKILL);
}

// ---- events

void Agent::WaitForEvents() {
  const std::size_t pe_polls = pes_ == nullptr ? 0 : pes_->PollCount();
  polls_.resize(kPePolls + pe_polls);
  polls_[kSignalPoll] = {signals_.fd(), POLLIN, 0};
  polls_[kInputPoll] = {is_alone_ ? -1 : STDIN_FILENO, POLLIN, 0};
  polls_[kOutputPoll] = replies_.Poll();
  if (pes_ != nullptr) pes_->FillPolls(std::span(polls_).subspan(kPePolls));
  PollOrLook(polls_, end_.PollTimeoutMs());
}

void Agent::HandleSignals() {
  while (const std::optional<signalfd_siginfo> event = signals_.Next()) {
    const int signal = static_cast<int>(event->ssi_signo);
    switch (signal) {
      case SIGCHLD:
        if (pes_ != nullptr) pes_->Reap(static_cast<pid_t>(event->ssi_pid));
        break;
      case SIGINT:
      case SIGTERM:
      case SIGHUP:
      case SIGQUIT:
        // The launcher hears of it by the end of the PEs.
        if (!started_) return Leave();
        pes_->SignalGroups(signal);
        break;
      default: break;
    }
  }
}

void Agent::Listen() {
  std::array<char, 64 * 1024> buffer;
  const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) return Leave();
  orders_.Add({buffer.data(), static_cast<std::size_t>(got)});
  for (;;) {
    const Result<std::optional<Message>> message = orders_.Next();
    if (message.ok() && !message->has_value()) return;
    if (!message.ok() || !OnMessage(**message)) {
      WriteError("mori agent: standard input holds no orders of mori run");
      return Leave();
    }
  }
}

// ---- orders

bool Agent::OnMessage(const Message& message) {
  if (message.type == MessageType::kWork) return OnWork(message);
  if (pes_ == nullptr) return false;
  switch (message.type) {
    case MessageType::kStart: return OnStart(message);
    case MessageType::kSignal: {
      const auto order = Decode<SignalOrder>(message.payload);
      if (!order) return false;
      order->to_groups ? pes_->SignalGroups(order->signal) : pes_->SignalPes(order->signal);
      return true;
    }
    case MessageType::kEndOrphans: {
      const auto order = Decode<SignalOrder>(message.payload);
      if (order) pes_->EndOrphansBy(order->signal);
      return order.has_value();
    }
    case MessageType::kFlow: {
      const auto order = Decode<FlowOrder>(message.payload);
      if (order) replies_.SetFlow(*order);
      return order.has_value();
    }
    case MessageType::kInput:
      asked_for_input_ = false;
      pes_->input().Put(
          {reinterpret_cast<const char*>(message.payload.data()), message.payload.size()});
      return true;
    default: return false;
  }
}

bool Agent::OnWork(const Message& message) {
  auto work = Decode<AgentWork>(message.payload);
  if (!work || pes_ != nullptr) return false;
  work_ = std::move(*work);
  if (const Status ready = Prepare(work_); !ready.ok()) {
    Refuse(ready.message(), kExitError);
    Leave();
  }
  return true;
}

/// Makes this process's surroundings those of the run, and opens the meeting.
Status Agent::Prepare(const AgentWork& work) {
  if (chdir(work.folder.c_str()) != 0) {
    return Status::FromErrno(errno,
                             fmt::format("cannot enter {}, the working directory of mori run",
                                         shmem::Quote(work.folder, 4096)));
  }
  LeaveSurroundingRun();
  setenv("PWD", work.folder.c_str(), 1);
  for (const std::string& entry : work.environment) {
    const std::size_t equals = entry.find('=');
    setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
  if (work.is_alone) MeetOnLoopback();
  MORI_RETURN_IF_ERROR(CheckSystemCalls());
  // Who serves the meeting has a connection to each PE meanwhile.
  const int n_served = work.opens_meeting ? work.share.world : work.share.count;
  MORI_ASSIGN_OR_RETURN(const rlimit open_files, MakeRoomForFiles(n_served));
  MORI_ASSIGN_OR_RETURN(Guard guard, Guard::Create(work.share.count));
  guard_.emplace(std::move(guard));
  MORI_ASSIGN_OR_RETURN(const shmem::Config config, shmem::Config::FromEnvironment());
  Meeting meeting;
  if (work.opens_meeting) {
    MORI_ASSIGN_OR_RETURN(meeting, Meet(work, config));
  }
  pes_ = std::make_unique<LocalPes>(signals_, *guard_, open_files, replies_);
  replies_.Send(MessageType::kReady, Encode(meeting));
  return Status();
}

Result<Meeting> Agent::Meet(const AgentWork& work, const shmem::Config& config) {
  Meeting meeting;
  MORI_ASSIGN_OR_RETURN(meeting.id, OpenMeeting(config, work.share.world));
  if (work.is_alone || !meeting.id) return meeting;
  MORI_ASSIGN_OR_RETURN(const shmem::Rendezvous rendezvous, shmem::DecodeUniqueId(*meeting.id));
  const shmem::IpAddress& address = rendezvous.addresses.front();
  if (address.IsLoopback() && config.socket_ifname.empty()) {
    return shmem::Error(shmem::ErrorCode::kSystem,
                        "it has no network interface that other hosts reach, only the loopback: "
                        "name one in MORI_SOCKET_IFNAME");
  }
  if (MasterIsSet()) return meeting;
  if (const int port = FreePort(address); port != 0) {
    meeting.master_address = address.ToString();
    meeting.master_port = fmt::to_string(port);
  }
  return meeting;
}

bool Agent::OnStart(const Message& message) {
  const auto meeting = Decode<Meeting>(message.payload);
  if (!meeting || started_) return false;
  SetMaster(meeting->master_address, meeting->master_port);
  LocalPlan plan;
  plan.command = work_.command;
  plan.share = work_.share;
  plan.id = meeting->id;
  if (work_.has_input) plan.input_for_first = -1;
  pes_->SetPlan(std::move(plan));
  started_ = true;
  pes_->Start();
  if (auto failure = pes_->TakeFailure()) Refuse(std::move(failure->text), failure->exit_status);
  return true;
}

// ---- reports

void Agent::Refuse(std::string text, int exit_status) {
  replies_.Send(MessageType::kFailed, Encode(AgentFailure{std::move(text), exit_status}));
}

void Agent::Tell() {
  if (!started_ || told_over_) return;
  for (; told_ends_ < pes_->ends().size(); ++told_ends_) {
    const PeEnd& end = pes_->ends()[told_ends_];
    replies_.Send(MessageType::kEnd,
                  Encode(EndNotice{work_.share.first + end.pe, end.wait_status}));
  }
  if (work_.has_input && !asked_for_input_ && pes_->input().WantsInput()) {
    asked_for_input_ = true;
    replies_.Send(MessageType::kWantInput);
  }
  if (!Over()) return;
  pes_->Drain();
  if (!pes_->StreamsClosed()) return;
  told_over_ = true;
  replies_.Send(MessageType::kOver);
}

}  // namespace

int RunAgent() {
  OpenStandardStreams();
  if (isatty(STDIN_FILENO) == 1) {
    WriteError("mori agent: mori run starts it on each host of --hosts; it is of no other use");
    return kUsageError;
  }
  Result<SignalSource> signals = SignalSource::Create();
  if (!signals.ok()) {
    WriteError(fmt::format("mori agent: {}", signals.status().message()));
    return kExitError;
  }
  return Agent(*signals).Run();
}

}  // namespace mori::launcher
