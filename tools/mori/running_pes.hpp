// The PEs of a run, wherever they run, as the launcher looks after them.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pe_processes.hpp"

namespace mori::launcher {

inline constexpr int kExitError = 1;
inline constexpr int kExitCannotRun = 126;
inline constexpr int kExitNotFound = 127;

/// What goes wrong beside PEs: a sentence, and the exit status for the launcher.
struct RunFailure {
  std::string text;
  int exit_status = kExitError;
  bool more_may_follow = false;  ///< others may soon say the same, or why
};

/// Nothing here blocks.
class RunningPes {
 public:
  virtual ~RunningPes() = default;

  /// Begins to start all PEs. What keeps one of them from it is a failure.
  virtual void Start() = 0;
  /// The next failure that has come up since; empty when all are taken.
  virtual std::optional<RunFailure> TakeFailure() = 0;

  /// The part of the poll set that belongs to the PEs has this size ...
  virtual std::size_t PollCount() const = 0;
  /// ... and is set here before poll(), ...
  virtual void FillPolls(std::span<pollfd> polls) = 0;
  /// ... and used here after it: moves input and output.
  virtual void Transfer(std::span<const pollfd> polls) = 0;
  /// To be called when output has been written, or given up: PEs go on, pause, or learn that
  /// nobody reads what they write.
  virtual void FollowOutput() = 0;
  /// No more output is wanted than what is on its way now.
  virtual void Drain() = 0;
  /// All of it has been given to the output.
  virtual bool StreamsClosed() const = 0;

  /// Signals all that PEs are and have started, ...
  virtual void SignalGroups(int signal) = 0;
  /// ... or the PEs only.
  virtual void SignalPes(int signal) = 0;
  /// The end of the run has come: what PEs leave behind from now on gets this signal.
  virtual void EndOrphansBy(int signal) = 0;
  /// Takes the end of every child of the launcher that has ended, `first` before others.
  virtual void Reap(pid_t first) = 0;

  /// Those that have ended, in this order.
  virtual const std::vector<PeEnd>& ends() const = 0;
  /// " on host b", where there are several; else empty.
  virtual std::string PlaceOf(int pe) const = 0;
  virtual bool AllEnded() const = 0;
  /// Nothing is left of what PEs started.
  virtual bool GroupsGone() const = 0;
  /// "PE 3 (process 4711)", of those that have not ended.
  virtual std::string DescribeRunning() const = 0;
};

}  // namespace mori::launcher
