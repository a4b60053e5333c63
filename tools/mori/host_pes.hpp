// PEs on several hosts, each of which has an agent of the launcher.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent_link.hpp"
#include "agent_messages.hpp"
#include "guard.hpp"
#include "host_list.hpp"
#include "pe_output.hpp"
#include "pe_processes.hpp"
#include "running_pes.hpp"
#include "signals.hpp"

namespace mori::launcher {

/// How agents are started, and what they are to do.
struct HostPlan {
  HostList hosts;
  /// What a host's name and `agent_command` are appended to. Empty: ssh, but for this machine.
  std::vector<std::string> launch_agent;
  std::string mori_path;                 ///< the mori command on the hosts
  std::string folder;                    ///< working directory there
  std::vector<std::string> environment;  ///< "NAME=value" that travels
  std::vector<std::string> command;      ///< program and arguments
  bool with_input = false;               ///< PE 0 reads standard input
};

/// The command line that starts the agent of a host.
std::vector<std::string> AgentCommand(const HostPlan& plan, const std::string& host);

/// The children of the launcher are the programs that start agents, as ssh; they end with it, and
/// an agent whose input ends kills its PEs.
///
/// No PE starts before all agents are ready. The agent of the first host serves the unique id: its
/// address is one that the other hosts reach.
class HostPes : public RunningPes {
 public:
  /// @param output  outlives this, as `signals` and `guard` do
  HostPes(const SignalSource& signals, const Guard& guard, const rlimit& open_files,
          PeOutput& output, HostPlan plan);

  void Start() override;
  std::optional<RunFailure> TakeFailure() override;

  std::size_t PollCount() const override { return 1 + agents_.size() * AgentLink::kPolls; }
  void FillPolls(std::span<pollfd> polls) override;
  void Transfer(std::span<const pollfd> polls) override;
  void FollowOutput() override;
  void Drain() override;
  bool StreamsClosed() const override { return AllAre(Stage::kGone); }

  void SignalGroups(int signal) override { Signal({signal, true}); }
  void SignalPes(int signal) override { Signal({signal, false}); }
  void EndOrphansBy(int signal) override;
  void Reap(pid_t first) override;

  const std::vector<PeEnd>& ends() const override { return ends_; }
  std::string PlaceOf(int pe) const override;
  bool AllEnded() const override;
  bool GroupsGone() const override { return AllAre(Stage::kGone); }
  std::string DescribeRunning() const override;

 private:
  /// How far the agent of a host has come.
  enum class Stage {
    kCalled,   ///< what starts it was started
    kGreeted,  ///< it runs, and knows its work
    kReady,    ///< it can start its PEs
    kStarted,  ///< it was told to
    kOver,     ///< nothing is left of what it started
    kGone      ///< the program that started it has ended
  };

  struct Agent {
    HostShare share;
    int first;  ///< of its PEs
    std::string starter;
    AgentLink link;
    Stage stage = Stage::kCalled;
    bool has_failed = false;  ///< why was said, or it was ended on purpose
    bool given_up = false;
    std::vector<bool> ended{};  ///< by PE
  };

  bool StartAgent(std::size_t index);
  void Take(std::size_t index);
  bool OnMessage(Agent& agent, const Message& message);
  bool OnHello(Agent& agent, const Message& message);
  bool OnReady(Agent& agent, const Message& message);
  bool OnFailed(Agent& agent, const Message& message);
  bool OnOutput(Agent& agent, const Message& message);
  bool OnEnd(Agent& agent, const Message& message);
  void OnOver(Agent& agent);
  AgentWork WorkOf(const Agent& agent) const;
  void StartPesIfReady();

  void Signal(const SignalOrder& order);
  void SendFlow(Agent& agent, StreamKind kind);
  void SendInput();
  void OnAgentEnd(const PeEnd& end);
  void Conclude(Agent& agent);
  RunFailure LossOf(const Agent& agent, const PeEnd& end) const;
  void Fail(Agent& agent, RunFailure failure);
  bool AllAre(Stage stage) const;

  PeOutput& output_;
  HostPlan plan_;
  PeProcesses starters_;
  std::vector<Agent> agents_;
  std::size_t reaped_ = 0;  // ends of starters_ that were looked at
  std::vector<PeEnd> ends_;
  std::deque<RunFailure> failures_;
  Meeting meeting_;
  bool ending_ = false;
  bool wants_input_ = false;
  Flow told_flow_[2] = {Flow::kOpen, Flow::kOpen};
};

}  // namespace mori::launcher
