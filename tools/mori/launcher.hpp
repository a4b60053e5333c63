// `mori run`: starts PEs, on this machine or on several, and looks after them until the last has
// ended.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "host_list.hpp"

namespace mori::launcher {

struct RunOptions {
  int n_pes = 1;
  std::vector<std::string> command;       ///< program and arguments
  HostList hosts;                         ///< where they run; empty: on this machine
  std::vector<std::string> launch_agent;  ///< runs a command on a host; empty: ssh
  std::string remote_mori;           ///< the mori command on the hosts; empty: where it is here
  std::vector<std::string> exports;  ///< "NAME" or "NAME=value" for the PEs' environment
  bool with_prefix = true;           ///< lines start with their PE
  bool with_input = false;           ///< PE 0 gets the launcher's standard input
  std::chrono::milliseconds grace{5000};  ///< from the request to end until SIGKILL
};

/// Runs the command as `n_pes` PEs; where there are hosts, it is the sum of theirs. Blocks until
/// all have ended. To be called once, by the main thread of a process that has no other thread yet.
/// @return the exit status for the launcher: 0, that of the first PE that failed, 128 + signal if a
/// signal ended the run, 126 or 127 if the program could not be started, 1 for other errors (said
/// on standard error).
int RunPes(const RunOptions& options);

}  // namespace mori::launcher
