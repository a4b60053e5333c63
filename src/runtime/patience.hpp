// How long a thread of the host waits for a device.
#pragma once

#include <chrono>
#include <functional>

#include "base/status.hpp"

namespace mori::shmem {

/// Asked now and then by who waits for a device, with the time waited so far: an error ends the
/// wait. kPeerLost leaves kernels that wait for that PE the time to see it themselves. Called from
/// any thread, several at a time.
using Patience = std::function<Status(std::chrono::milliseconds so_far)>;

/// Whether a wait has ended before the device did.
inline bool IsGivenUp(const Status& waited) {
  return waited.code() == ErrorCode::kTimeout || waited.code() == ErrorCode::kPeerLost;
}

}  // namespace mori::shmem
