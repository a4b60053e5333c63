// Who looks after a wait that lasts.
#pragma once

#include "base/status.hpp"

namespace mori::shmem {

/// What looks after a wait once it sleeps. Called by the waiting thread, several times a second.
class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  /// @return an error that ends the wait; success to go on
  virtual Status Look() = 0;
};

}  // namespace mori::shmem
