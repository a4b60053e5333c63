#include "common/memory.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace mori::bench {
namespace {

/// Value of a line "Key:   123 kB" with that key; 0 for any other line.
double KibOf(const std::string& line, const std::string& key) {
  if (line.rfind(key + ":", 0) != 0) return 0;
  return std::stod(line.substr(key.size() + 1));
}

}  // namespace

MemoryUse MemoryWithout(const std::vector<std::uintptr_t>& addresses) {
  MemoryUse use;
  bool is_counted = true;
  std::ifstream mappings("/proc/self/smaps");
  for (std::string line; std::getline(mappings, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_counted = std::none_of(addresses.begin(), addresses.end(),
                                [&](auto address) { return begin <= address && address < end; });
    } else if (is_counted) {
      use.rss_kib += KibOf(line, "Rss");
      use.pss_kib += KibOf(line, "Pss");
    }
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) use.peak_kib += KibOf(line, "VmHWM");
  return use;
}

}  // namespace mori::bench
