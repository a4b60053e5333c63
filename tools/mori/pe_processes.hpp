// The PEs of a run as processes: start, signal, reap.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "guard.hpp"
#include "signals.hpp"

namespace mori::launcher {

/// What a started program begins with.
struct StartSpec {
  char* const* arguments;    ///< arguments[0] is looked up in PATH; ends with null
  char* const* environment;  ///< ends with null
  int input_fd;              ///< become 0, 1 and 2; above 2, close-on-exec
  int output_fd;
  int error_fd;
};

/// Why a PE was not started.
struct StartError {
  int number = 0;           ///< error number; 0: it was started
  const char* what = "";    ///< what of the preparation failed
  bool in_program = false;  ///< the program could not be run
};

/// How a PE ended.
struct PeEnd {
  int pe;
  int wait_status;
  std::string lost_with{};  ///< the host on which it was, of which nothing more is heard

  bool Failed() const { return wait_status != 0 || !lost_with.empty(); }
  /// As a shell has it: 128 + signal for a signal.
  int ExitStatus() const;
  /// "exited with status 3", "killed by SIGSEGV (core dumped)", "lost with host b".
  std::string Text() const;
};

/// "PE 2 killed by SIGKILL; PE 0-1, 3 exited with status 1": in the order of ending, alike ends
/// together.
std::string DescribeEnds(const std::vector<PeEnd>& ends);

/// Each PE leads a process group of its own, which holds what it starts, and dies with the
/// launcher. What leaves its group becomes a child of the launcher once its own parent has ended,
/// and is found there. Used by the main thread only, whose end is what the PEs notice.
class PeProcesses {
 public:
  /// @param signals, guard  outlive this
  /// @param open_files      the limit that the PEs get
  PeProcesses(const SignalSource& signals, const Guard& guard, const rlimit& open_files);

  /// Starts the next PE.
  StartError Start(const StartSpec& spec);

  /// Signals every process of every PE's group, also of PEs that ended and left some behind, and
  /// those that left the groups and have no other parent.
  void SignalGroups(int signal) const;
  /// The same for one of them, in the order of their start.
  void SignalGroup(std::size_t index, int signal) const;
  /// Signals the PEs only, not what they started.
  void SignalPes(int signal) const;

  /// Takes the end of every child that has ended, `first` before others.
  void Reap(pid_t first);

  const std::vector<PeEnd>& ends() const { return ends_; }
  bool AllEnded() const { return ends_.size() == pes_.size(); }
  /// Nothing is left of any PE's group, and no process outside of them is our child.
  bool GroupsGone() const;
  /// The end of the run has come: processes that are or become our children, beside PEs, get this
  /// signal, too.
  void EndOrphansBy(int signal) { orphan_signal_ = signal; }
  /// "PE 3 (process 4711)", of those that have not ended.
  std::string DescribeRunning() const;

 private:
  struct Pe {
    pid_t process;
    bool running;
    bool group_exists;
  };

  void Record(pid_t process, int wait_status);
  void ForgetEmptyGroups();
  void LookForOrphans();

  const SignalSource& signals_;
  const Guard& guard_;
  rlimit open_files_;
  std::vector<Pe> pes_;
  std::vector<PeEnd> ends_;
  std::set<pid_t> strangers_;  // children that the launcher had before, and the guard
  std::set<pid_t> orphans_;    // children that PEs left behind
  int orphan_signal_ = 0;      // 0 until the end of the run has come
};

}  // namespace mori::launcher
