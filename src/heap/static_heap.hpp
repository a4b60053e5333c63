// One region of `MORI_SHMEM_HEAP_SIZE` bytes per PE, mapped whole at init.
#pragma once

#include <mutex>
#include <vector>

#include "heap/heap.hpp"
#include "heap/offset_allocator.hpp"

namespace mori::shmem {

class StaticHeap final : public Heap {
 public:
  static Result<std::unique_ptr<Heap>> Create(const Config& config, DeviceRuntime* runtime,
                                              Transport* transport, int pe, int world_size,
                                              const Deadline& deadline);

  HeapMode mode() const override { return HeapMode::kStatic; }
  std::uint64_t bytes() const override { return bytes_; }
  std::byte* base() const override { return base_; }
  std::uint64_t span_bytes() const override { return bytes_; }
  std::byte* const* peer_bases() const override { return peer_bases_.data(); }
  Result<std::byte*> Allocate(std::uint64_t bytes, std::uint64_t alignment) override;
  Status Free(const void* address) override;
  std::byte* Translate(const void* address, std::uint64_t bytes, int pe) const override;
  std::optional<std::uint64_t> OffsetOf(const void* address) const override;
  HeapStats Stats() const override;
  std::shared_ptr<const void> Retain(const void* address) const override;

 private:
  StaticHeap(std::uint64_t bytes, std::shared_ptr<AddressRange> range, std::byte* base,
             std::vector<std::byte*> peer_bases);

  /// The largest request that succeeds now at its default alignment. Needs the lock.
  std::uint64_t LargestRequest() const;

  const std::uint64_t bytes_;
  std::shared_ptr<AddressRange> range_;  ///< this PE's and all peers' memory
  std::byte* const base_;
  const std::vector<std::byte*> peer_bases_;
  mutable std::mutex mutex_;  ///< guards `allocator_`
  OffsetAllocator allocator_;
};

}  // namespace mori::shmem
