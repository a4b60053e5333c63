// Memory of this PE that others reach, by key, and what is done to it for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "mori/shmem/types.hpp"

namespace mori::shmem::ofi {

/// Thread-safe.
class Regions {
 public:
  /// Memory at [start, start + bytes) has `address` for others.
  void Add(std::uint64_t key, std::uint64_t address, void* start, std::uint64_t bytes);
  /// Returns once nobody holds a `Use()` that knew it.
  void Remove(std::uint64_t key);

  /// While it lives no region goes away.
  class Use {
   public:
    explicit Use(const Regions& regions) : regions_(&regions), lock_(regions.mutex_) {}
    /// Null where [address, address + bytes) is not all in the region of that key.
    std::byte* Find(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) const;

   private:
    const Regions* regions_;
    std::shared_lock<std::shared_mutex> lock_;
  };

 private:
  struct Region {
    std::uint64_t address;
    std::byte* start;
    std::uint64_t bytes;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, Region> by_key_;
};

/// Copies into memory that others may look at meanwhile. An aligned word alone is stored by one
/// store that releases what was there before.
void CopyIn(std::byte* to, const void* from, std::uint64_t bytes);
/// Whether `op` and `width` are an atomic at all, and `memory` is aligned for it.
bool IsAtomic(detail::AtomicOp op, int width, const void* memory);
/// Carries it out. @return the bits that were there before
std::uint64_t ApplyAtomic(void* memory, detail::AtomicOp op, int width, std::uint64_t value,
                          std::uint64_t expected);

}  // namespace mori::shmem::ofi
