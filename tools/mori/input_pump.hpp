// Standard input on its way to one PE.
#pragma once

#include <poll.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.hpp"

namespace mori::launcher {

/// Holds no more than one piece that the PE has not read. A PE of its own process group may not
/// read from the terminal itself, hence the detour.
class InputPump {
 public:
  /// A pump that does nothing.
  InputPump() = default;
  /// @param to_pe  write end of the PE's input, non-blocking
  /// @param from   where it is read; -1: it comes by `Put()`
  InputPump(shmem::UniqueFd to_pe, int from) : to_pe_(std::move(to_pe)), from_(from) {}

  /// The next piece can be put.
  bool WantsInput() const { return to_pe_.valid() && pending_.empty(); }
  /// Gives it; an empty one is the end. What the PE does not read any more is dropped.
  void Put(std::string_view bytes);

  /// What to wait for, ...
  pollfd Poll() const;
  /// ... and what to do when it has come. Never blocks.
  void Transfer(const pollfd& poll_fd);

 private:
  void ReadInput();
  void WriteToPe();

  shmem::UniqueFd to_pe_;  // empty once the input or the PE has ended
  int from_ = -1;
  std::string pending_;
};

}  // namespace mori::launcher
