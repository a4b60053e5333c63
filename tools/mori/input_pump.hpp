// The launcher's standard input on its way to one PE.
#pragma once

#include <poll.h>

#include <string>

#include "base/unique_fd.hpp"

namespace mori::launcher {

/// Reads no more than one buffer ahead of the PE. A PE of its own process group may not read from
/// the terminal itself, hence the detour.
class InputPump {
 public:
  /// A pump that does nothing.
  InputPump() = default;
  /// @param to_pe  write end of the PE's input, non-blocking
  explicit InputPump(shmem::UniqueFd to_pe) : to_pe_(std::move(to_pe)) {}

  /// What to wait for, ...
  pollfd Poll() const;
  /// ... and what to do when it has come. Never blocks.
  void Transfer(const pollfd& poll_fd);

 private:
  void ReadInput();
  void WriteToPe();

  shmem::UniqueFd to_pe_;  // empty once the input or the PE has ended
  std::string pending_;
};

}  // namespace mori::launcher
