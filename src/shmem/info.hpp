// What `ShmemInfo()` and `mori info` show: text for people.
#pragma once

#include <string>

#include "shmem/world.hpp"

namespace mori::shmem {

/// Version, and the backends, heap modes and transports of this build.
std::string LibraryInfo();
/// The machine as this process may use it: CPUs, and memory with what limits it.
std::string MachineInfo();
/// The devices of this machine that a backend can use, or why it can use none. Opens drivers: a
/// process that forks PEs afterwards must not call it.
std::string DeviceInfo(const Config& config);
/// Networks that would reach other nodes, or why there is none. Takes a third of a second.
std::string NetworkInfo(const Config& config);
/// Every variable with its meaning, values, default, and what it is now. Secrets are not shown.
std::string EnvironmentInfo();
/// The variables that are set, a line each. Secrets are not shown.
std::string SetVariablesInfo();
/// What was chosen at init; says so if `world` is null.
std::string WorldInfo(const World* world);

}  // namespace mori::shmem
