// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>
#include <vector>

namespace mori::bench {

struct MemoryUse {
  double rss_kib = 0;   ///< resident, shared pages counted in full
  double pss_kib = 0;   ///< resident, a page shared by n processes counted as 1/n
  double peak_kib = 0;  ///< most that was resident at once, nothing left out
};

/// From /proc/self/smaps, without the mappings that hold one of `addresses`.
MemoryUse MemoryWithout(const std::vector<std::uintptr_t>& addresses);

}  // namespace mori::bench
