// What this machine is: its identity, processors and memory, read from the kernel.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace mori::shmem {

/// Same for all processes of one operating-system boot: the kernel's boot id; the host name if that
/// cannot be read.
/// @param root  where `proc/` is looked for; "/" but in tests.
/// @return kSystem if it is there and cannot be read, as without a free descriptor.
Result<std::string> BootId(const std::string& root = "/");

std::string HostName();

/// CPUs that the calling thread may run on; at least 1.
int UsableCpuCount();

/// Memory that processes here can have at most: physical, or the control group's limit if that is
/// less.
std::uint64_t MemoryBytes(const std::string& root = "/");

}  // namespace mori::shmem
