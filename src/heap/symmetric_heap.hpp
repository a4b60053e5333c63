// The heap of every mode: offsets from an allocator, memory as its backing wants it.
#pragma once

#include <atomic>
#include <mutex>

#include "heap/backing.hpp"
#include "heap/heap.hpp"
#include "heap/offset_allocator.hpp"
#include "heap/symmetric_space.hpp"

namespace mori::shmem {

class SymmetricHeap final : public Heap {
 public:
  struct Layout {
    HeapMode mode = HeapMode::kStatic;
    HeapType type = HeapType::kUncached;
    std::uint64_t bytes = 0;             ///< whole granularity units of the device
    std::uint64_t granule_bytes = 0;     ///< offsets and lengths of blocks are multiples of it
    std::uint64_t chunk_bytes = 0;       ///< vmm only
    std::chrono::milliseconds budget{};  ///< for an exchange of memory when it grows
  };

  static Result<std::unique_ptr<Heap>> Create(const Layout& layout, const SpaceParts& parts,
                                              const Deadline& deadline);

  HeapMode mode() const override { return layout_.mode; }
  std::uint64_t bytes() const override { return layout_.bytes; }
  std::byte* base() const override { return space_->base(); }
  std::uint64_t span_bytes() const override {
    return span_bytes_.load(std::memory_order_relaxed);  // written by the caller's own calls
  }
  std::byte* const* peer_bases() const override { return space_->peer_bases(); }
  Result<std::byte*> Allocate(std::uint64_t bytes, std::uint64_t alignment, HeapType type) override;
  Result<Freed> Free(const void* address) override;
  std::byte* Translate(const void* address, std::uint64_t bytes, int pe) const override;
  bool Covers(const void* address, std::uint64_t bytes) const override;
  std::optional<RemotePieces::Stretch> Remote(const void* address, int pe) const override;
  std::optional<std::uint64_t> OffsetOf(const void* address) const override;
  std::uint64_t BlockBytes(const void* address) const override;
  void ReleasePeers() override { space_->ReleasePeers(); }
  HeapStats Stats() const override;
  std::shared_ptr<const void> Retain(const void* address) const override;
  std::string Describe() const override;

 private:
  SymmetricHeap(const Layout& layout, std::unique_ptr<SymmetricSpace> space,
                std::unique_ptr<Backing> backing);

  /// The largest request that succeeds now at its default alignment. Needs the lock.
  std::uint64_t LargestRequest() const;
  Status NoRoom(std::uint64_t bytes, std::uint64_t alignment) const;
  Status NoBlock(const void* address, std::uint64_t offset) const;

  const Layout layout_;
  const std::unique_ptr<SymmetricSpace> space_;
  mutable std::mutex mutex_;  ///< guards the books below
  std::unique_ptr<Backing> backing_;
  OffsetAllocator allocator_;
  std::atomic<std::uint64_t> span_bytes_;
};

}  // namespace mori::shmem
