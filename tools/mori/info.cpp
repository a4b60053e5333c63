#include "info.hpp"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "mori/shmem/shmem_api.hpp"
#include "shmem/info.hpp"

namespace mori::launcher {

int PrintInfo(bool environment_only) {
  if (!environment_only) {
    const auto config = shmem::Config::FromEnvironment();
    fmt::print("{}{}{}\n", shmem::LibraryInfo(), shmem::MachineInfo(),
               shmem::DeviceInfo(config.ok() ? *config : shmem::Config{}));
  }
  fmt::print("{}", shmem::EnvironmentInfo());
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  const auto found = shmem::Config::Check(shmem::Config::ProcessEnvironment());
  for (const std::string& problem : found.problems) fmt::print(stderr, "mori: {}\n", problem);
  for (const std::string& warning : found.warnings)
    fmt::print(stderr, "mori: warning: {}\n", warning);
  return written && found.problems.empty() ? 0 : 1;
}

}  // namespace mori::launcher
