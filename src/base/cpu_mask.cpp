#include "base/cpu_mask.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace mori::shmem {
namespace {

/// Far more than the kernel has bits for.
constexpr std::size_t kMostCpus = std::size_t{1} << 20;

bool Has(const CpuMask& mask, std::size_t cpu) {
  return cpu / 8 < mask.size() && (mask[cpu / 8] >> (cpu % 8) & 1) != 0;
}

/// Gives threads a CPU each, moving those that have one where that makes room.
class Matching {
 public:
  Matching(const std::vector<CpuMask>& masks, std::size_t cpus)
      : masks_(masks), cpus_(cpus), thread_of_(cpus, kNone) {}

  bool Place(std::size_t thread) {
    tried_.assign(cpus_, false);
    return Find(thread);
  }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  bool Find(std::size_t thread) {
    // A free one first: threads with the same mask then never move each other.
    for (const bool free_only : {true, false}) {
      for (std::size_t cpu = 0; cpu < cpus_; ++cpu) {
        if (tried_[cpu] || !Has(masks_[thread], cpu)) continue;
        if (free_only && thread_of_[cpu] != kNone) continue;
        tried_[cpu] = true;
        if (thread_of_[cpu] != kNone && !Find(thread_of_[cpu])) continue;
        thread_of_[cpu] = thread;
        return true;
      }
    }
    return false;
  }

  const std::vector<CpuMask>& masks_;
  const std::size_t cpus_;
  std::vector<std::size_t> thread_of_;  ///< by CPU
  std::vector<bool> tried_;             ///< by CPU, for the thread that is being placed
};

void Add(std::size_t cpu, CpuMask* mask) {
  if (cpu / 8 >= mask->size()) mask->resize(cpu / 8 + 1);
  (*mask)[cpu / 8] = static_cast<std::uint8_t>((*mask)[cpu / 8] | 1 << cpu % 8);
}

}  // namespace

CpuMask UsableCpus() {
  CpuMask mask;
  for (std::size_t cpus = 1024; cpus <= kMostCpus; cpus *= 2) {
    std::vector<cpu_set_t> set(cpus / CPU_SETSIZE);
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, set.data()) == 0) {
      for (std::size_t cpu = 0; cpu < cpus; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set.data())) Add(cpu, &mask);
      }
      return mask;
    }
    if (errno != EINVAL) break;  // it is for a machine of more CPUs
  }
  const long online = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  for (std::size_t cpu = 0; cpu < static_cast<std::size_t>(online); ++cpu) Add(cpu, &mask);
  return mask;
}

bool EachHasACpu(const std::vector<CpuMask>& masks) {
  std::size_t bytes = 0;
  for (const CpuMask& mask : masks) bytes = std::max(bytes, mask.size());
  Matching matching(masks, 8 * bytes);
  for (std::size_t thread = 0; thread < masks.size(); ++thread) {
    if (!matching.Place(thread)) return false;
  }
  return true;
}

}  // namespace mori::shmem
