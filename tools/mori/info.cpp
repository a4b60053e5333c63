#include "info.hpp"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "mori/shmem/shmem_api.hpp"
#include "shmem/info.hpp"

namespace mori::launcher {

int PrintInfo(bool environment_only) {
  if (environment_only) {
    fmt::print("{}", shmem::EnvironmentInfo());
  } else {
    const auto config = shmem::Config::FromEnvironment();
    fmt::print("{}{}\n{}", shmem::LibraryInfo(),
               shmem::DeviceInfo(config.ok() ? *config : shmem::Config{}),
               shmem::EnvironmentInfo());
    if (!config.ok()) fmt::print("\n{}\n", config.status().message());
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace mori::launcher
