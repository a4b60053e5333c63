#include "base/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

namespace mori::shmem {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Bytes in a control group's limit file; the largest number for "max", absence, or anything else.
std::uint64_t LimitIn(const std::string& path) {
  const std::string text = FirstLine(path);
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const bool whole = error == std::errc() && end == text.data() + text.size() && bytes > 0;
  return whole ? bytes : UINT64_MAX;
}

std::uint64_t PhysicalBytes(const std::string& root) {
  std::ifstream file(root + "proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  while (file >> key >> kibibytes) {
    if (key == "MemTotal:") return kibibytes << 10;
    file.ignore(256, '\n');
  }
  return UINT64_MAX;
}

}  // namespace

Result<std::string> BootId(const std::string& root) {
  const std::string path = root + "proc/sys/kernel/random/boot_id";
  if (::access(path.c_str(), F_OK) != 0) return HostName();
  std::string id = FirstLine(path);
  if (id.empty()) return Status::FromErrno(errno, "read the boot id of this machine");
  return id;
}

std::string HostName() {
  char name[256] = "localhost";
  if (::gethostname(name, sizeof name) == 0) name[sizeof name - 1] = '\0';
  return name;
}

int UsableCpuCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0)
    return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  return std::max(1, CPU_COUNT(&set));
}

std::uint64_t MemoryBytes(const std::string& root) {
  return std::min({PhysicalBytes(root), LimitIn(root + "sys/fs/cgroup/memory.max"),
                   LimitIn(root + "sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

}  // namespace mori::shmem
