#include "base/machine.hpp"

#include <sched.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/text.hpp"

namespace mori::shmem {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Bytes in a control group's limit file; nothing for "max", absence, or anything else.
std::optional<std::uint64_t> LimitIn(const std::string& path) {
  const std::string text = FirstLine(path);
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const bool whole = error == std::errc() && end == text.data() + text.size() && bytes > 0;
  return whole ? std::optional(bytes) : std::nullopt;
}

MemoryLimit PhysicalMemory(const std::string& root) {
  std::ifstream file(root + "proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  while (file >> key >> kibibytes) {
    if (key == "MemTotal:") return {kibibytes << 10, "this machine's memory"};
    file.ignore(256, '\n');
  }
  struct sysinfo told {};
  if (::sysinfo(&told) != 0) return {UINT64_MAX, "unknown: neither /proc/meminfo nor sysinfo()"};
  return {std::uint64_t{told.totalram} * told.mem_unit,
          "this machine's memory by sysinfo(), since /proc/meminfo cannot be read"};
}

/// A hierarchy of control groups that can limit memory: where it is mounted, this process's path
/// in it, and the name of the files with limits.
struct Hierarchy {
  std::string mount;
  std::string path;  ///< "/" or "/jobs/17"
  std::string_view file;
};

/// The process's groups, of both versions; the topmost ones where `/proc` does not tell.
std::vector<Hierarchy> Hierarchies(const std::string& root) {
  const std::string groups = root + "sys/fs/cgroup";
  std::string unified = "/", memory = "/";
  std::ifstream file(root + "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    if (controllers == ",,") unified = line.substr(second + 1);
    if (controllers.find(",memory,") != std::string::npos) memory = line.substr(second + 1);
  }
  return {{groups, unified, "/memory.max"},
          {groups + "/unified", unified, "/memory.max"},
          {groups + "/memory", memory, "/memory.limit_in_bytes"}};
}

/// Lowers `least` to the limits of the group and of its parents. A path that is not below the
/// mount, as in a container that sees a part of the hierarchy, leaves the topmost group.
void ApplyLimits(const Hierarchy& hierarchy, MemoryLimit& least) {
  std::string path = hierarchy.path == "/" ? "" : hierarchy.path;
  if (path.find("/..") != std::string::npos) path.clear();
  while (true) {
    const auto limit = LimitIn(hierarchy.mount + path + std::string(hierarchy.file));
    if (limit && *limit < least.bytes)
      least = {*limit, "the limit of control group " + Quote(path.empty() ? "/" : path, 256)};
    if (path.empty()) return;
    path.resize(std::min(path.rfind('/'), path.size() - 1));
  }
}

}  // namespace

Result<std::string> BootId(const std::string& root) {
  const std::string path = root + "proc/sys/kernel/random/boot_id";
  if (::access(path.c_str(), F_OK) != 0) return HostName();
  std::string id = FirstLine(path);
  if (id.empty()) return Status::FromErrno(errno, "read the boot id of this machine");
  return id;
}

std::string MachineId(const std::string& root) {
  std::error_code error;
  const auto space = std::filesystem::read_symlink(root + "proc/self/ns/net", error);
  const std::string boot = FirstLine(root + "proc/sys/kernel/random/boot_id");
  return error || boot.empty() ? "" : fmt::format("{} {}", boot, space.string());
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

MemoryLimit FindMemoryLimit(const std::string& root) {
  MemoryLimit least = PhysicalMemory(root);
  for (const Hierarchy& hierarchy : Hierarchies(root)) ApplyLimits(hierarchy, least);
  return least;
}

std::uint64_t MemoryBytes(const std::string& root) { return FindMemoryLimit(root).bytes; }

}  // namespace mori::shmem
