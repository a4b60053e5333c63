// The CPUs that a thread may run on.
#pragma once

#include <cstdint>
#include <vector>

namespace mori::shmem {

/// Bit i % 8 of byte i / 8 stands for CPU i. No zero bytes at the end.
using CpuMask = std::vector<std::uint8_t>;

/// Those of the calling thread; all that are online if the kernel does not say.
CpuMask UsableCpus();

/// Whether each of the threads with these masks can have a CPU that no other one needs.
bool EachHasACpu(const std::vector<CpuMask>& masks);

}  // namespace mori::shmem
