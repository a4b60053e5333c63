// Points at which a test can kill or stop this process, or take a resource from it. Without a test
// they do nothing.
#pragma once

#include <atomic>

namespace mori::shmem {

/// Called at every fault point with its name, once a test has set it. One relaxed load where it is
/// not set.
inline std::atomic<void (*)(const char* point)> fault_hook{nullptr};

inline void FaultPoint(const char* point) {
  if (auto* hook = fault_hook.load(std::memory_order_relaxed)) hook(point);
}

}  // namespace mori::shmem
