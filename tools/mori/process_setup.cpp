#include "process_setup.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

#include "bootstrap/unique_id.hpp"

namespace mori::launcher {

using shmem::Error;
using shmem::ErrorCode;
using shmem::Result;
using shmem::Status;
using shmem::UniqueFd;

namespace {

/// By these a PE knows its place, in the order of `PeEnvironment()`.
constexpr const char* kPlaceVariables[] = {"MORI_RANK", "MORI_WORLD_SIZE", "MORI_LOCAL_RANK",
                                           "MORI_LOCAL_WORLD_SIZE", "MORI_UNIQUE_ID"};

}  // namespace

void OpenStandardStreams() {
  for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;) {
    if (fd <= STDERR_FILENO) continue;
    close(fd);
    return;
  }
}

Result<rlimit> MakeRoomForFiles(int n_pes) {
  constexpr rlim_t kFilesPerPe = 3;  // two pipes, and a connection while PEs meet
  constexpr rlim_t kOwnFiles = 32;
  const rlim_t needed = kFilesPerPe * static_cast<rlim_t>(n_pes) + kOwnFiles;
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

void PrepareEnvironment() {
  for (const char* name : kPlaceVariables) unsetenv(name);
  const char* interface = std::getenv("MORI_SOCKET_IFNAME");
  if (interface == nullptr || *interface == '\0') setenv("MORI_SOCKET_IFNAME", "lo", 1);
}

std::vector<std::string> PeEnvironment(int pe, int n_pes, const shmem::UniqueId& id) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const std::string values[] = {fmt::to_string(pe), fmt::to_string(n_pes), fmt::to_string(pe),
                                fmt::to_string(n_pes), shmem::UniqueIdToHex(id)};
  static_assert(std::size(values) == std::size(kPlaceVariables));
  for (std::size_t i = 0; i < std::size(values); ++i) {
    environment.push_back(fmt::format("{}={}", kPlaceVariables[i], values[i]));
  }
  return environment;
}

}  // namespace mori::launcher
