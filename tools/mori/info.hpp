// `mori info`: what this build and this environment amount to.
#pragma once

namespace mori::launcher {

/// Prints to standard output, and each value that cannot be used, and each warning, to standard
/// error.
/// @return the exit status: 1 if a value cannot be used, or not all could be written.
int PrintInfo(bool environment_only);

}  // namespace mori::launcher
