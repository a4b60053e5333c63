// `mori agent`: what the launcher starts on each host of a run.
#pragma once

namespace mori::launcher {

/// Starts and looks after the PEs of this host, as messages on standard input say, and reports on
/// standard output. When standard input ends, all that it started is killed. To be called once, by
/// the main thread of a process that has no other thread yet.
/// @return the exit status
int RunAgent();

}  // namespace mori::launcher
