#include "host_pes.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/machine.hpp"
#include "base/text.hpp"
#include "local_pes.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "process_setup.hpp"

namespace mori::launcher {

using shmem::Result;
using shmem::Status;
using shmem::UniqueFd;

namespace {

/// Without questions, and with an end where the host does not answer: after 20 s at the start, and
/// 45 s of silence later.
constexpr const char* kSsh[] = {"ssh",
                                "-x",
                                "-T",
                                "-o",
                                "BatchMode=yes",
                                "-o",
                                "ConnectTimeout=20",
                                "-o",
                                "ServerAliveInterval=15",
                                "-o",
                                "ServerAliveCountMax=3",
                                "-o",
                                "ControlMaster=no"};

bool IsThisMachine(const std::string& host) {
  const std::string own = shmem::HostName();
  return host == "localhost" || host == own || host == own.substr(0, own.find('.'));
}

/// As a shell reads it: a word of harmless characters as it is, others in single quotes.
std::string ForShell(const std::string& word) {
  constexpr std::string_view kHarmless =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-";
  if (!word.empty() && word.find_first_not_of(kHarmless) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string_view LastPart(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

shmem::ByteView View(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

std::vector<std::string> AgentCommand(const HostPlan& plan, const std::string& host) {
  if (plan.launch_agent.empty() && IsThisMachine(host)) return {plan.mori_path, "agent"};
  std::vector<std::string> words = plan.launch_agent;
  if (words.empty()) {
    words.assign(std::begin(kSsh), std::end(kSsh));
    words.emplace_back("--");
  }
  words.push_back(host);
  words.push_back(ForShell(plan.mori_path));
  words.emplace_back("agent");
  return words;
}

HostPes::HostPes(const SignalSource& signals, const Guard& guard, const rlimit& open_files,
                 PeOutput& output, HostPlan plan)
    : output_(output), plan_(std::move(plan)), starters_(signals, guard, open_files) {}

// ---- start

void HostPes::Start() {
  agents_.reserve(plan_.hosts.size());
  for (std::size_t index = 0; index < plan_.hosts.size(); ++index) {
    if (!StartAgent(index)) return;
  }
}

bool HostPes::StartAgent(std::size_t index) {
  const HostShare& share = plan_.hosts[index];
  const auto fail = [&](std::string_view why) {
    failures_.push_back(
        {.text = fmt::format("cannot start the agent of host {}: {}", share.name, why)});
    return false;
  };
  Result<Pipe> in = MakePipe(), out = MakePipe(), err = MakePipe();
  for (const auto* pipe : {&in, &out, &err}) {
    if (!pipe->ok()) return fail(pipe->status().message());
  }
  for (const UniqueFd* fd : {&in->write_end, &out->read_end, &err->read_end}) {
    const Status status = MakeNonBlocking(*fd);
    if (!status.ok()) return fail(status.message());
  }
  const std::vector<std::string> command = AgentCommand(plan_, share.name);
  const StringArray arguments(command);
  const StartError error = starters_.Start({.arguments = arguments.data(),
                                            .environment = environ,
                                            .input_fd = in->read_end.get(),
                                            .output_fd = out->write_end.get(),
                                            .error_fd = err->write_end.get()});
  if (error.in_program) {
    failures_.push_back(CannotRun(command.front(), error.number));
    failures_.back().text += fmt::format(", to reach host {}", share.name);
    return false;
  }
  if (error.number != 0)
    return fail(fmt::format("cannot {}: {}", error.what, std::strerror(error.number)));
  const int first = agents_.empty() ? 0 : agents_.back().first + agents_.back().share.n_pes;
  agents_.push_back(
      {share, first, std::string(LastPart(command.front())),
       AgentLink(std::move(in->write_end), std::move(out->read_end), std::move(err->read_end))});
  agents_.back().ended.resize(static_cast<std::size_t>(share.n_pes));
  return true;
}

AgentWork HostPes::WorkOf(const Agent& agent) const {
  const bool is_first = agent.first == 0;
  return {
      .folder = plan_.folder,
      .environment = plan_.environment,
      .command = plan_.command,
      .share = {.first = agent.first, .count = agent.share.n_pes, .world = CountPes(plan_.hosts)},
      .is_alone = plan_.hosts.size() == 1,
      .opens_meeting = is_first,
      .has_input = is_first && plan_.with_input};
}

void HostPes::StartPesIfReady() {
  if (ending_ || agents_.size() != plan_.hosts.size() || !AllAre(Stage::kReady)) return;
  const shmem::Bytes meeting = Encode(meeting_);
  for (Agent& agent : agents_) {
    agent.stage = Stage::kStarted;
    for (const StreamKind kind : kStreamKinds) {
      if (told_flow_[static_cast<std::size_t>(kind)] != Flow::kOpen) SendFlow(agent, kind);
    }
    agent.link.Send(MessageType::kStart, meeting);
  }
}

// ---- what agents say

void HostPes::FillPolls(std::span<pollfd> polls) {
  polls[0] = {wants_input_ ? STDIN_FILENO : -1, POLLIN, 0};
  for (std::size_t i = 0; i < agents_.size(); ++i)
    agents_[i].link.FillPolls(polls.subspan(1 + i * AgentLink::kPolls));
}

void HostPes::Transfer(std::span<const pollfd> polls) {
  if (polls[0].fd >= 0 && polls[0].revents != 0) SendInput();
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    agents_[i].link.Transfer(polls.subspan(1 + i * AgentLink::kPolls, AgentLink::kPolls));
    Take(i);
  }
}

/// Does what its messages say.
void HostPes::Take(std::size_t index) {
  Agent& agent = agents_[index];
  while (agent.stage != Stage::kGone) {
    const Result<std::optional<Message>> message = agent.link.Next();
    if (message.ok() && !message->has_value()) break;
    if (message.ok() && OnMessage(agent, **message)) continue;
    Fail(agent, {fmt::format("host {} sent something that is no message of an agent, or none of "
                             "its turn",
                             agent.share.name)});
    agent.link.ReadOut();
    starters_.SignalGroup(index, SIGKILL);
    return;
  }
}

bool HostPes::OnMessage(Agent& agent, const Message& message) {
  switch (message.type) {
    case MessageType::kHello: return OnHello(agent, message);
    case MessageType::kReady: return OnReady(agent, message);
    case MessageType::kFailed: return OnFailed(agent, message);
    case MessageType::kOutput:
    case MessageType::kOutputEnd: return OnOutput(agent, message);
    case MessageType::kEnd: return OnEnd(agent, message);
    case MessageType::kWantInput:
      wants_input_ = agent.first == 0 && plan_.with_input;
      return wants_input_;
    case MessageType::kOver:
      if (agent.stage != Stage::kStarted) return false;
      OnOver(agent);
      return true;
    default: return false;
  }
}

bool HostPes::OnHello(Agent& agent, const Message& message) {
  const auto hello = Decode<AgentHello>(message.payload);
  if (!hello || agent.stage != Stage::kCalled) return false;
  if (hello->protocol != kAgentProtocol || hello->version != shmem::ShmemVersion()) {
    Fail(agent,
         {fmt::format("host {} has version {} of the mori command, this one is {}: all hosts "
                      "need the same",
                      agent.share.name, shmem::OneLine(hello->version), shmem::ShmemVersion())});
    agent.link.CloseInput();
    return true;
  }
  agent.stage = Stage::kGreeted;
  agent.link.Send(MessageType::kWork, Encode(WorkOf(agent)));
  return true;
}

bool HostPes::OnReady(Agent& agent, const Message& message) {
  const auto meeting = Decode<Meeting>(message.payload);
  if (!meeting || agent.stage != Stage::kGreeted) return false;
  if (agent.first == 0) meeting_ = *meeting;
  agent.stage = Stage::kReady;
  StartPesIfReady();
  return true;
}

bool HostPes::OnFailed(Agent& agent, const Message& message) {
  const auto failure = Decode<AgentFailure>(message.payload);
  if (!failure || agent.stage < Stage::kGreeted) return false;
  Fail(agent, {fmt::format("host {}: {}", agent.share.name, failure->text), failure->exit_status});
  return true;
}

bool HostPes::OnOutput(Agent& agent, const Message& message) {
  const auto piece = Decode<OutputPiece>(message.payload);
  if (!piece || agent.stage != Stage::kStarted || piece->pe < agent.first ||
      piece->pe >= agent.first + agent.share.n_pes)
    return false;
  if (message.type == MessageType::kOutputEnd) {
    output_.Finish(piece->pe, piece->kind);
  } else {
    output_.Feed(piece->pe, piece->kind, piece->bytes);
  }
  return true;
}

bool HostPes::OnEnd(Agent& agent, const Message& message) {
  const auto notice = Decode<EndNotice>(message.payload);
  if (!notice || agent.stage != Stage::kStarted || notice->pe < agent.first ||
      notice->pe >= agent.first + agent.share.n_pes)
    return false;
  const auto place = static_cast<std::size_t>(notice->pe - agent.first);
  if (agent.ended[place]) return false;
  agent.ended[place] = true;
  ends_.push_back({notice->pe, notice->wait_status});
  return true;
}

void HostPes::OnOver(Agent& agent) {
  agent.stage = Stage::kOver;
  // Until then the first host's agent may be asked where the PEs meet.
  if (!std::ranges::all_of(agents_, [](const Agent& a) { return a.stage >= Stage::kOver; })) return;
  for (Agent& other : agents_) other.link.CloseInput();
}

// ---- what agents are told

void HostPes::Signal(const SignalOrder& order) {
  const shmem::Bytes payload = Encode(order);
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    if (agents_[i].stage == Stage::kStarted) agents_[i].link.Send(MessageType::kSignal, payload);
    if (agents_[i].stage == Stage::kOver && order.signal == SIGKILL)
      starters_.SignalGroup(i, SIGKILL);
  }
}

void HostPes::EndOrphansBy(int signal) {
  ending_ = true;
  const shmem::Bytes payload = Encode(SignalOrder{signal, true});
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (agent.stage == Stage::kStarted) agent.link.Send(MessageType::kEndOrphans, payload);
    if (agent.stage >= Stage::kStarted) continue;
    // It has started nothing yet.
    agent.link.CloseInput();
    agent.has_failed = true;
    starters_.SignalGroup(i, signal == SIGKILL ? SIGKILL : SIGTERM);
  }
}

void HostPes::FollowOutput() {
  for (const StreamKind kind : kStreamKinds) {
    const Flow flow = output_.Closed(kind) ? Flow::kClosed
                      : output_.Full(kind) ? Flow::kPaused
                                           : Flow::kOpen;
    Flow& told = told_flow_[static_cast<std::size_t>(kind)];
    if (std::exchange(told, flow) == flow) continue;
    for (Agent& agent : agents_) {
      if (agent.stage == Stage::kStarted) SendFlow(agent, kind);
    }
  }
}

void HostPes::SendFlow(Agent& agent, StreamKind kind) {
  const Flow flow = told_flow_[static_cast<std::size_t>(kind)];
  agent.link.Send(MessageType::kFlow, Encode(FlowOrder{kind, flow}));
}

void HostPes::SendInput() {
  std::array<char, 16 * 1024> buffer;
  const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  wants_input_ = false;
  const auto bytes = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  agents_.front().link.Send(MessageType::kInput, View({buffer.data(), bytes}));
}

// ---- the end

void HostPes::Reap(pid_t first) {
  starters_.Reap(first);
  for (; reaped_ < starters_.ends().size(); ++reaped_) OnAgentEnd(starters_.ends()[reaped_]);
}

void HostPes::OnAgentEnd(const PeEnd& end) {
  const auto index = static_cast<std::size_t>(end.pe);
  Agent& agent = agents_[index];
  if (agent.stage == Stage::kGone) return;
  agent.link.ReadOut();
  Take(index);
  const bool is_lost = agent.stage < Stage::kOver;
  const bool had_started = agent.stage >= Stage::kStarted;
  if (is_lost) Fail(agent, LossOf(agent, end));
  Conclude(agent);
  if (!is_lost || !had_started) return;
  for (std::size_t i = 0; i < agent.ended.size(); ++i) {
    if (agent.ended[i]) continue;
    agent.ended[i] = true;
    ends_.push_back({agent.first + static_cast<int>(i), 0, agent.share.name});
  }
}

/// Nothing more comes of it.
void HostPes::Conclude(Agent& agent) {
  const Stage before = std::exchange(agent.stage, Stage::kGone);
  for (int i = 0; i < agent.share.n_pes && before >= Stage::kStarted; ++i) {
    for (const StreamKind kind : kStreamKinds) output_.Finish(agent.first + i, kind);
  }
  if (std::ranges::all_of(agents_, [](const Agent& a) { return a.stage >= Stage::kOver; })) {
    for (Agent& other : agents_) other.link.CloseInput();
  }
}

RunFailure HostPes::LossOf(const Agent& agent, const PeEnd& end) const {
  const std::string words = agent.link.Words();
  const std::string ended = fmt::format("{} {}", agent.starter, end.Text());
  const std::string said = words.empty() ? "" : fmt::format(": {}", words);
  const std::string& host = agent.share.name;
  if (agent.stage >= Stage::kGreeted)
    return {fmt::format("host {} is lost: {}{}", host, ended, said)};
  const int status = end.ExitStatus();
  if (status == kExitNotFound || status == kExitCannotRun) {
    return {
        fmt::format("host {}: {} cannot be run there: install MORI Shmem in the same place on "
                    "all hosts, or say by --remote-mori where it is ({}{})",
                    host, shmem::Quote(plan_.mori_path, 4096), ended, said)};
  }
  return {fmt::format("host {} cannot be reached: {}{}", host, ended, said)};
}

void HostPes::Fail(Agent& agent, RunFailure failure) {
  if (std::exchange(agent.has_failed, true)) return;
  failure.more_may_follow = true;
  failures_.push_back(std::move(failure));
}

std::optional<RunFailure> HostPes::TakeFailure() {
  if (failures_.empty()) return std::nullopt;
  RunFailure failure = std::move(failures_.front());
  failures_.pop_front();
  return failure;
}

/// To be called when all are gone, or given up.
void HostPes::Drain() {
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (agent.stage == Stage::kGone) continue;
    starters_.SignalGroup(i, SIGKILL);
    agent.link.ReadOut();
    Take(i);
    agent.given_up = true;
    Conclude(agent);
  }
}

bool HostPes::AllAre(Stage stage) const {
  return std::ranges::all_of(agents_, [&](const Agent& agent) { return agent.stage == stage; });
}

bool HostPes::AllEnded() const {
  return std::ranges::all_of(agents_, [](const Agent& agent) {
    return agent.stage >= Stage::kOver ||
           std::ranges::all_of(agent.ended, [](bool e) { return e; });
  });
}

std::string HostPes::PlaceOf(int pe) const {
  const auto next = std::ranges::upper_bound(agents_, pe, {}, &Agent::first);
  return next == agents_.begin() ? "" : fmt::format(" on host {}", std::prev(next)->share.name);
}

std::string HostPes::DescribeRunning() const {
  std::string text;
  for (const Agent& agent : agents_) {
    if (!agent.given_up) continue;
    for (std::size_t i = 0; i < agent.ended.size(); ++i) {
      if (agent.ended[i]) continue;
      text += fmt::format("{}PE {} (host {})", text.empty() ? "" : ", ",
                          agent.first + static_cast<int>(i), agent.share.name);
    }
  }
  return text;
}

}  // namespace mori::launcher
