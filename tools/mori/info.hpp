// `mori info`: what this build and this environment amount to.
#pragma once

namespace mori::launcher {

/// Prints to standard output. @return the exit status.
int PrintInfo(bool environment_only);

}  // namespace mori::launcher
