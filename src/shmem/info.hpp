// What `ShmemInfo()` and `mori info` show: text for people.
#pragma once

#include <string>

#include "shmem/world.hpp"

namespace mori::shmem {

/// Version, and the backends, heap modes and transports of this build.
std::string LibraryInfo();
/// The devices of this machine that a backend can use, or why it can use none. Opens drivers: a
/// process that forks PEs afterwards must not call it.
std::string DeviceInfo(const Config& config);
/// The variable table with what is set now; values that are secret are not shown.
std::string EnvironmentInfo();
/// What was chosen at init; says so if `world` is null.
std::string WorldInfo(const World* world);

}  // namespace mori::shmem
