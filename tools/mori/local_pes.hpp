// PEs that are processes of this machine.
#pragma once

#include <sys/resource.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "guard.hpp"
#include "input_pump.hpp"
#include "mori/shmem/types.hpp"
#include "pe_output.hpp"
#include "pe_processes.hpp"
#include "pe_streams.hpp"
#include "process_setup.hpp"
#include "running_pes.hpp"
#include "signals.hpp"

namespace mori::launcher {

/// "cannot run "x": no such program in PATH", after exec failed with this error number; with the
/// exit status that shells have for it.
RunFailure CannotRun(const std::string& program, int error_number);

/// The id by which PEs find each other, served by this process. None where this machine has no
/// network and the run has one PE, which meets nobody.
/// @return kInvalidConfig, or kSystem
shmem::Result<std::optional<shmem::UniqueId>> OpenMeeting(const shmem::Config& config, int n_pes);

/// What is started here.
struct LocalPlan {
  std::vector<std::string> command;      ///< program and arguments
  PeShare share;                         ///< which PEs
  std::optional<shmem::UniqueId> id;     ///< by which they meet
  std::optional<int> input_for_first{};  ///< the first PE reads this descriptor; -1: input()
};

class LocalPes : public RunningPes {
 public:
  /// @param output      outlives this, as `signals` and `guard` do
  /// @param open_files  the limit that the PEs get
  LocalPes(const SignalSource& signals, const Guard& guard, const rlimit& open_files,
           PeOutput& output);

  void SetPlan(LocalPlan plan) { plan_ = std::move(plan); }
  /// What the first PE reads, if there is such a plan.
  InputPump& input() { return input_; }

  void Start() override;
  std::optional<RunFailure> TakeFailure() override { return std::exchange(failure_, {}); }

  std::size_t PollCount() const override { return 1 + streams_.PollCount(); }
  void FillPolls(std::span<pollfd> polls) override;
  void Transfer(std::span<const pollfd> polls) override;
  void FollowOutput() override { streams_.CloseWithoutOutput(); }
  void Drain() override { streams_.Drain(); }
  bool StreamsClosed() const override { return streams_.Closed(); }

  void SignalGroups(int signal) override { processes_.SignalGroups(signal); }
  void SignalPes(int signal) override { processes_.SignalPes(signal); }
  void EndOrphansBy(int signal) override { processes_.EndOrphansBy(signal); }
  void Reap(pid_t first) override { processes_.Reap(first); }

  const std::vector<PeEnd>& ends() const override { return processes_.ends(); }
  std::string PlaceOf(int /*pe*/) const override { return ""; }
  bool AllEnded() const override { return processes_.AllEnded(); }
  bool GroupsGone() const override { return processes_.GroupsGone(); }
  std::string DescribeRunning() const override { return processes_.DescribeRunning(); }

 private:
  bool StartOne(int local_rank, const StringArray& arguments);
  shmem::Result<shmem::UniqueFd> InputFor(int local_rank);

  PeProcesses processes_;
  PeStreams streams_;
  InputPump input_;
  LocalPlan plan_;
  std::optional<RunFailure> failure_;
};

}  // namespace mori::launcher
