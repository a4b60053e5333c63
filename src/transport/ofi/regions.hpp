// Memory of this PE that others reach, by key, and what is done to it for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "mori/shmem/types.hpp"
#include "transport/remote.hpp"

namespace mori::shmem::ofi {

/// Of keys of memory that the network itself does not reach, so that all that goes there travels in
/// messages. A network that chooses such a key for other memory is slower for it, and no less
/// right.
inline constexpr std::uint64_t kByMessages = std::uint64_t{1} << 63;

/// Thread-safe.
class Regions {
 public:
  /// Memory at [start, start + bytes) has `address` for others. `access` is null where it is the
  /// CPU's.
  void Add(std::uint64_t key, std::uint64_t address, void* start, std::uint64_t bytes,
           RegionAccess* access = nullptr);
  /// Returns once nobody holds a `Use()` that knew it.
  void Remove(std::uint64_t key);

  /// A place that is in a region, and what is done there for others; `memory` is null where it is
  /// in none.
  struct Found {
    std::byte* memory = nullptr;
    RegionAccess* access = nullptr;  ///< null: by the CPU

    Status Write(const void* from, std::uint64_t bytes) const;
    /// Aligned words, at least one, of which the last is seen after the others.
    Status WriteWords(const void* words, std::uint64_t bytes) const;
    Status Read(void* to, std::uint64_t bytes) const;
    Result<std::uint64_t> Atomic(detail::AtomicOp op, int width, std::uint64_t value,
                                 std::uint64_t expected) const;
  };
  /// While it lives no region goes away.
  class Use {
   public:
    explicit Use(const Regions& regions) : regions_(&regions), lock_(regions.mutex_) {}
    /// Nothing where [address, address + bytes) is not all in the region of that key.
    Found Find(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) const;

   private:
    const Regions* regions_;
    std::shared_lock<std::shared_mutex> lock_;
  };

 private:
  struct Region {
    std::uint64_t address;
    std::byte* start;
    std::uint64_t bytes;
    RegionAccess* access;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, Region> by_key_;
};

/// Copies into memory that others may look at meanwhile. An aligned word alone is stored by one
/// store that releases what was there before.
void CopyIn(std::byte* to, const void* from, std::uint64_t bytes);

}  // namespace mori::shmem::ofi
