#include "info.hpp"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "mori/shmem/shmem_api.hpp"
#include "shmem/info.hpp"

namespace mori::launcher {

int PrintInfo(bool environment_only) {
  fmt::print("{}", environment_only ? shmem::EnvironmentInfo() : shmem::ShmemInfo());
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace mori::launcher
