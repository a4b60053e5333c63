#include "process_setup.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "bootstrap/address.hpp"
#include "bootstrap/unique_id.hpp"

namespace mori::launcher {

using shmem::Error;
using shmem::ErrorCode;
using shmem::Result;
using shmem::Status;
using shmem::UniqueFd;

namespace {

/// By these a PE knows its place, in the order of `PeEnvironment()`.
constexpr const char* kPlaceVariables[] = {
    "MORI_RANK",  "MORI_WORLD_SIZE", "MORI_LOCAL_RANK",  "MORI_LOCAL_WORLD_SIZE", "RANK",
    "WORLD_SIZE", "LOCAL_RANK",      "LOCAL_WORLD_SIZE", "MORI_UNIQUE_ID"};

bool IsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

/// What torchrun tells its workers, who would look for its own store.
void UnsetVariablesOfTorchrun() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("TORCHELASTIC_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

/// Without a listing: no process has more descriptors than its limit, unless that was lowered.
void CloseUpToLimit(int first) {
  constexpr rlim_t kEnough = 1 << 20;
  rlimit limit{kEnough, kEnough};
  getrlimit(RLIMIT_NOFILE, &limit);
  for (rlim_t fd = static_cast<rlim_t>(first); fd < std::min(limit.rlim_cur, kEnough); ++fd)
    close(static_cast<int>(fd));
}

}  // namespace

Status CheckSystemCalls() {
  if (kill(getpid(), 0) != 0) return Status::FromErrno(errno, "cannot send signals");
  if (poll(nullptr, 0, 0) != 0) return Status::FromErrno(errno, "cannot wait for events");
  if (waitpid(-1, nullptr, WNOHANG) < 0 && errno != ECHILD)
    return Status::FromErrno(errno, "cannot wait for processes");
  return Status();
}

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
  if (getrlimit(RLIMIT_NOFILE, &original) != 0) return rlimit{RLIM_INFINITY, RLIM_INFINITY};
  if (needed <= original.rlim_cur) return original;
  if (needed > original.rlim_max) {
    return Error(ErrorCode::kSystem,
                 "{} PEs need {} open files in the launcher, but its limit is {}: raise it (ulimit "
                 "-n) or start fewer PEs",
                 n_pes, needed, original.rlim_max);
  }
  const rlimit raised{original.rlim_max, original.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    return Status::FromErrno(errno, "cannot raise the limit of open files");
  }
  return original;
}

Result<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Status::FromErrno(errno, "cannot make a pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Status MakeNonBlocking(const UniqueFd& fd) {
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    return Status::FromErrno(errno, "cannot make a pipe non-blocking");
  return Status();
}

void CloseDescriptorsFrom(int first) {
  if (close_range(static_cast<unsigned>(first), ~0U, 0) == 0) return;
  DIR* const listing = opendir("/proc/self/fd");
  if (listing == nullptr) return CloseUpToLimit(first);
  std::vector<int> open_fds;
  while (const dirent* entry = readdir(listing)) {
    const int fd = std::atoi(entry->d_name);
    if (fd >= first) open_fds.push_back(fd);
  }
  closedir(listing);
  for (const int fd : open_fds) close(fd);
}

void LeaveSurroundingRun() {
  if (IsSet("RANK")) {
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
  }
  for (const char* name : kPlaceVariables) unsetenv(name);
  UnsetVariablesOfTorchrun();
}

bool MasterIsSet() { return IsSet("MASTER_ADDR") && IsSet("MASTER_PORT"); }

void SetMaster(const std::string& address, const std::string& port) {
  if (address.empty() || port.empty()) return;
  setenv("MASTER_ADDR", address.c_str(), 1);
  setenv("MASTER_PORT", port.c_str(), 1);
}

int FreePort(const shmem::IpAddress& address) {
  const UniqueFd fd(socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  sockaddr_storage name = address.ToSockaddr(0, &length);
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  const bool bound = fd.valid() && bind(fd.get(), generic, length) == 0 &&
                     getsockname(fd.get(), generic, &length) == 0;
  if (!bound) return 0;
  return ntohs(address.family == AF_INET ? reinterpret_cast<sockaddr_in*>(&name)->sin_port
                                         : reinterpret_cast<sockaddr_in6*>(&name)->sin6_port);
}

void MeetOnLoopback() {
  if (!MasterIsSet()) {
    const shmem::IpAddress loopback{.family = AF_INET, .bytes = {127, 0, 0, 1}};
    const int port = FreePort(loopback);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    if (port != 0) SetMaster(loopback.ToString(), fmt::to_string(port));
  }
  // A machine, or a container, may have no loopback that is up: then whatever there is.
  if (!IsSet("MORI_SOCKET_IFNAME") && shmem::SelectOwnAddresses("lo").ok())
    setenv("MORI_SOCKET_IFNAME", "lo", 1);
}

std::vector<std::string> PeEnvironment(const PeShare& share, int local_rank,
                                       const std::optional<shmem::UniqueId>& id) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const std::string rank = fmt::to_string(share.first + local_rank),
                    size = fmt::to_string(share.world), index = fmt::to_string(local_rank),
                    here = fmt::to_string(share.count);
  const std::string values[] = {rank,  size, index,
                                here,  rank, size,
                                index, here, id ? shmem::UniqueIdToHex(*id) : std::string()};
  static_assert(std::size(values) == std::size(kPlaceVariables));
  for (std::size_t i = 0; i < std::size(values); ++i) {
    if (!values[i].empty())
      environment.push_back(fmt::format("{}={}", kPlaceVariables[i], values[i]));
  }
  return environment;
}

}  // namespace mori::launcher
