#include "info.hpp"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "mori/shmem/shmem_api.hpp"
#include "output.hpp"
#include "shmem/info.hpp"

namespace mori::launcher {

int PrintInfo(bool environment_only) {
  std::string text;
  if (!environment_only) {
    const auto read = shmem::Config::FromEnvironment();
    const shmem::Config config = read.ok() ? *read : shmem::Config{};
    text = fmt::format("{}{}{}{}\n", shmem::LibraryInfo(), shmem::MachineInfo(),
                       shmem::DeviceInfo(config), shmem::NetworkInfo(config));
  }
  text += shmem::EnvironmentInfo();
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!written) WriteError("mori: cannot write to standard output");
  const auto found = shmem::Config::Check(shmem::Config::ProcessEnvironment());
  for (const std::string& problem : found.problems) WriteError("mori: " + problem);
  for (const std::string& warning : found.warnings) WriteError("mori: warning: " + warning);
  return written && found.problems.empty() ? 0 : 1;
}

}  // namespace mori::launcher
