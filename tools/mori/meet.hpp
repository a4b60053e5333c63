// `mori meet`: runs another launcher, whose ranks on several nodes need a unique id.
#pragma once

#include <string>
#include <vector>

namespace mori::launcher {

/// Becomes the command, with MORI_UNIQUE_ID in its environment. A child process serves the id until
/// the command ends. To be called once, by the main thread of a process that has no other thread.
/// @return only if it failed: the exit status, 126 or 127 if the command could not be run
int Meet(const std::vector<std::string>& command);

}  // namespace mori::launcher
