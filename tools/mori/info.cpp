#include "info.hpp"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "mori/shmem/shmem_api.hpp"

namespace mori::launcher {

int PrintInfo(bool) {
  fmt::print("{}", shmem::ShmemInfo());
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace mori::launcher
