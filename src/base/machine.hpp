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

/// Which processes can share memory with this one, as far as the kernel tells: the boot and the
/// network namespace. Empty where one of them cannot be read.
std::string MachineId(const std::string& root = "/");

std::string HostName();

/// CPUs that the calling thread may run on; at least 1.
int UsableCpuCount();

/// How much memory processes here can have, and where the number comes from.
struct MemoryLimit {
  std::uint64_t bytes;
  std::string source;  ///< "this machine's memory", "the limit of control group /jobs/17"
};

/// The least of the machine's memory and the limits of this process's control group and of its
/// parents (versions 1 and 2). Without `/proc` the machine's memory is what the kernel tells in
/// another way, and of control groups only the limit of the topmost visible one is known.
/// @param root  where `proc/` and `sys/` are looked for; "/" but in tests.
MemoryLimit FindMemoryLimit(const std::string& root = "/");

/// Bytes of `FindMemoryLimit()`.
std::uint64_t MemoryBytes(const std::string& root = "/");

}  // namespace mori::shmem
