#include "heap/symmetric_heap.hpp"

#include <algorithm>

namespace mori::shmem {
namespace {

std::unique_ptr<Backing> MakeBacking(const SymmetricHeap::Layout& layout) {
  switch (layout.mode) {
    case HeapMode::kStatic: return MakeWholeBacking(layout.bytes);
    case HeapMode::kVmm: return MakeChunkBacking(layout.bytes, layout.chunk_bytes);
    case HeapMode::kIsolation: return MakeBlockBacking();
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Heap>> SymmetricHeap::Create(const Layout& layout, const SpaceParts& parts,
                                                    const Deadline& deadline) {
  MORI_ASSIGN_OR_RETURN(auto space, SymmetricSpace::Reserve(parts, layout.bytes));
  auto backing = MakeBacking(layout);
  MORI_RETURN_IF_ERROR(space->Add(backing->AtInit(), layout.type, deadline));
  return std::unique_ptr<Heap>(new SymmetricHeap(layout, std::move(space), std::move(backing)));
}

SymmetricHeap::SymmetricHeap(const Layout& layout, std::unique_ptr<SymmetricSpace> space,
                             std::unique_ptr<Backing> backing)
    : layout_(layout),
      space_(std::move(space)),
      backing_(std::move(backing)),
      allocator_(layout.bytes, layout.granule_bytes),
      span_bytes_(backing_->End()) {}

Result<std::byte*> SymmetricHeap::Allocate(std::uint64_t bytes, std::uint64_t alignment,
                                           HeapType type) {
  if (alignment > space_->alignment()) {
    return Error(ErrorCode::kInvalidArgument,
                 "an alignment of {} is more than {}, which heaps of {} start at multiples of; "
                 "with a larger MORI_SHMEM_HEAP_SIZE it may be more",
                 FormatByteSize(alignment), FormatByteSize(space_->alignment()),
                 FormatByteSize(layout_.bytes));
  }
  Piece block;
  std::vector<Piece> wanted;
  {
    const std::lock_guard lock(mutex_);
    const auto offset = allocator_.Allocate(bytes, alignment);
    if (!offset) return NoRoom(bytes, alignment);
    block = {*offset, (bytes + layout_.granule_bytes - 1) & ~(layout_.granule_bytes - 1)};
    wanted = backing_->Take(block);
    span_bytes_.store(backing_->End(), std::memory_order_relaxed);
  }
  if (!wanted.empty()) {
    const Status added = space_->Add(wanted, type, Deadline::After(layout_.budget));
    if (!added.ok()) {
      const std::lock_guard lock(mutex_);
      backing_->Undo(block, wanted);
      allocator_.Free(block.offset);
      span_bytes_.store(backing_->End(), std::memory_order_relaxed);
      return added;
    }
  }
  return space_->base() + block.offset;
}

Result<Heap::Freed> SymmetricHeap::Free(const void* address) {
  const auto offset = OffsetOf(address);
  if (!offset) return Error(ErrorCode::kInvalidArgument, "{} is no address of this heap", address);
  std::vector<Piece> unused;
  {
    const std::lock_guard lock(mutex_);
    const auto bytes = allocator_.Free(*offset);
    if (!bytes) return NoBlock(address, *offset);
    unused = backing_->Drop({*offset, *bytes});
    span_bytes_.store(backing_->End(), std::memory_order_relaxed);
  }
  if (unused.empty()) return Freed{};
  return Freed{true, space_->Remove(unused)};
}

Status SymmetricHeap::NoRoom(std::uint64_t bytes, std::uint64_t alignment) const {
  return Error(ErrorCode::kOutOfMemory,
               "no room for {} ({} bytes, alignment {}) in the heap of {}: {} free, largest free "
               "block {}; a larger heap is "
               "set by MORI_SHMEM_HEAP_SIZE",
               FormatByteSize(bytes), bytes, alignment, FormatByteSize(layout_.bytes),
               FormatByteSize(allocator_.Stats().free_bytes), FormatByteSize(LargestRequest()));
}

Status SymmetricHeap::NoBlock(const void* address, std::uint64_t offset) const {
  if (const auto block = allocator_.Find(offset)) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} is {} bytes inside the block of {} bytes at {}: pass the start of a block",
                 address, offset - block->offset, block->bytes,
                 static_cast<const void*>(space_->base() + block->offset));
  }
  return Error(ErrorCode::kInvalidArgument,
               "{} is no live block: never allocated, or freed already", address);
}

std::byte* SymmetricHeap::Translate(const void* address, std::uint64_t bytes, int pe) const {
  std::byte* base = space_->peer_bases()[pe];
  if (base == nullptr || !Covers(address, bytes)) return nullptr;
  return base + *OffsetOf(address);
}

bool SymmetricHeap::Covers(const void* address, std::uint64_t bytes) const {
  const auto offset = OffsetOf(address);
  if (!offset) return false;
  const std::lock_guard lock(mutex_);
  return backing_->Covers({*offset, std::max<std::uint64_t>(bytes, 1)});
}

std::optional<RemotePieces::Stretch> SymmetricHeap::Remote(const void* address, int pe) const {
  const auto offset = OffsetOf(address);
  const RemotePieces* const remote = space_->remote();
  return remote != nullptr && offset ? remote->At(pe, *offset) : std::nullopt;
}

std::optional<std::uint64_t> SymmetricHeap::OffsetOf(const void* address) const {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base());
  if (offset >= layout_.bytes) return std::nullopt;
  return offset;
}

std::uint64_t SymmetricHeap::BlockBytes(const void* address) const {
  const auto offset = OffsetOf(address);
  if (!offset) return 0;
  const std::lock_guard lock(mutex_);
  return allocator_.SizeOf(*offset).value_or(0);
}

std::uint64_t SymmetricHeap::LargestRequest() const {
  const std::uint64_t small =
      std::min(allocator_.LargestFree(layout_.granule_bytes), kPageAlignedFromBytes - 1);
  return std::max(small, allocator_.LargestFree(DefaultAlignment(kPageAlignedFromBytes)));
}

HeapStats SymmetricHeap::Stats() const {
  const std::lock_guard lock(mutex_);
  const auto stats = allocator_.Stats();
  return {stats.capacity_bytes, stats.used_bytes, stats.free_bytes, LargestRequest(),
          stats.live_blocks};
}

std::shared_ptr<const void> SymmetricHeap::Retain(const void* address) const {
  return space_->Retain(address);
}

std::string SymmetricHeap::Describe() const {
  switch (layout_.mode) {
    case HeapMode::kStatic: return "mapped at init";
    case HeapMode::kVmm:
      return fmt::format("mapped as it grows, in chunks of {}, up to {} now",
                         FormatByteSize(layout_.chunk_bytes), FormatByteSize(span_bytes()));
    case HeapMode::kIsolation: return "each allocation has memory of its own";
  }
  return {};
}

}  // namespace mori::shmem
