#include "process_setup.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "bootstrap/unique_id.hpp"

namespace mori::launcher {

using shmem::Error;
using shmem::ErrorCode;
using shmem::Result;
using shmem::Status;
using shmem::UniqueFd;

void OpenStandardStreams() {
  for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;) {
    if (fd <= STDERR_FILENO) continue;
    close(fd);
    return;
  }
}

Result<rlimit> MakeRoomForPipes(int n_pes) {
  constexpr rlim_t kOwnFiles = 32;
  const rlim_t needed = 2 * static_cast<rlim_t>(n_pes) + kOwnFiles;
  rlimit original{};
  if (getrlimit(RLIMIT_NOFILE, &original) != 0) {
    return Status::FromErrno(errno, "read the limit of open files");
  }
  if (needed <= original.rlim_cur) return original;
  if (needed > original.rlim_max) {
    return Error(ErrorCode::kSystem,
                 "{} PEs need {} open files in the launcher, but its limit is {}: raise it (ulimit "
                 "-n) or start fewer PEs",
                 n_pes, needed, original.rlim_max);
  }
  const rlimit raised{original.rlim_max, original.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    return Status::FromErrno(errno, "raise the limit of open files");
  }
  return original;
}

Result<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Status::FromErrno(errno, "make a pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void MakeNonBlocking(const UniqueFd& fd) {
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

void ChooseInterface() {
  const char* chosen = std::getenv("MORI_SOCKET_IFNAME");
  if (chosen == nullptr || *chosen == '\0') setenv("MORI_SOCKET_IFNAME", "lo", 1);
}

std::vector<std::string> PeEnvironment(int pe, int n_pes, const shmem::UniqueId& id) {
  const std::pair<std::string_view, std::string> variables[] = {
      {"MORI_RANK", fmt::to_string(pe)},
      {"MORI_WORLD_SIZE", fmt::to_string(n_pes)},
      {"MORI_LOCAL_RANK", fmt::to_string(pe)},
      {"MORI_LOCAL_WORLD_SIZE", fmt::to_string(n_pes)},
      {"MORI_UNIQUE_ID", shmem::UniqueIdToHex(id)},
  };
  const auto replaced = [&](std::string_view entry) {
    const std::string_view name = entry.substr(0, entry.find('='));
    return std::any_of(std::begin(variables), std::end(variables),
                       [&](const auto& variable) { return variable.first == name; });
  };

  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!replaced(*entry)) environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(fmt::format("{}={}", name, value));
  }
  return environment;
}

}  // namespace mori::launcher
