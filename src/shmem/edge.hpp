// How a public function reaches the calling thread's PE.
#pragma once

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "shmem/last_error.hpp"
#include "shmem/linked_states.hpp"
#include "shmem/registry.hpp"

namespace mori::shmem {

/// The code of `work(world)` on the calling thread's world, which this thread is bound to if it
/// can be; the code of having none. `stream`: what the call is about to put something on, if it is.
template <typename Work>
int OnWorld(const char* call, Work work, void* stream = nullptr) noexcept {
  Log(LogLevel::kTrace, "{}", call);
  return Reported(call, [&]() -> Status {
    if (Registry::IsForkedChild()) return Registry::ForkedChild(ErrorCode::kNotInitialized);
    LinkedStates::Instance().Retry(stream);
    const Lease world = Registry::Instance().Enter();
    if (!world) return Registry::Instance().NoWorld();
    FaultPoint("in a call");
    return work(*world);
  });
}

}  // namespace mori::shmem
