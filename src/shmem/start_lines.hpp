// What the log says of a world that has started.
#pragma once

#include <cstddef>

#include "base/config.hpp"
#include "heap/heap.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

/// A world as its start lines show it. All but the numbers is borrowed.
struct StartedWorld {
  const Config* config;
  const DeviceRuntime* runtime;
  const Heap* heap;
  int pe;
  int n_pes;
  std::size_t node_pes;  ///< PEs on this PE's node, with it
  int n_nodes;
};

/// One line for the world at INFO, by PE 0; before it, what was chosen otherwise than a variable
/// asked. One line for each PE at DEBUG.
void LogStart(const StartedWorld& world);

}  // namespace mori::shmem
