#include "heap/static_heap.hpp"

#include <algorithm>
#include <bit>

namespace mori::shmem {
namespace {

constexpr std::uint64_t kGranule = 64;

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Result<std::unique_ptr<Heap>> StaticHeap::Create(const Config& config, DeviceRuntime* runtime,
                                                 Transport* transport, int pe, int world_size,
                                                 const Deadline& deadline) {
  const std::uint64_t granularity = runtime->GranularityBytes();
  const std::uint64_t bytes = RoundUp(*config.heap_bytes, granularity);
  MORI_ASSIGN_OR_RETURN(auto mine, runtime->Allocate(bytes, config.heap_type));
  MORI_ASSIGN_OR_RETURN(auto memories, transport->Share(*mine, deadline));
  const auto self = static_cast<std::size_t>(pe);
  memories[self] = std::move(mine);

  // Every heap starts at a multiple of a power of two no less than its size, so that an aligned
  // offset is an aligned address, here and for every peer.
  const std::uint64_t stride = std::bit_ceil(bytes);
  const auto mapped = static_cast<std::uint64_t>(
      std::count_if(memories.begin(), memories.end(), [](const auto& m) { return m != nullptr; }));
  MORI_ASSIGN_OR_RETURN(std::shared_ptr<AddressRange> range,
                        runtime->Reserve(mapped * stride, stride));
  std::vector<std::byte*> bases(static_cast<std::size_t>(world_size), nullptr);
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < memories.size(); ++i) {
    if (memories[i] == nullptr) continue;
    MORI_RETURN_IF_ERROR(range->Map(offset, *memories[i]));
    bases[i] = range->base() + offset;
    offset += stride;
  }
  std::byte* base = bases[self];
  return std::unique_ptr<Heap>(new StaticHeap(bytes, std::move(range), base, std::move(bases)));
}

StaticHeap::StaticHeap(std::uint64_t bytes, std::shared_ptr<AddressRange> range, std::byte* base,
                       std::vector<std::byte*> peer_bases)
    : bytes_(bytes),
      range_(std::move(range)),
      base_(base),
      peer_bases_(std::move(peer_bases)),
      allocator_(bytes, kGranule) {}

Result<std::byte*> StaticHeap::Allocate(std::uint64_t bytes, std::uint64_t alignment) {
  const std::lock_guard lock(mutex_);
  if (const auto offset = allocator_.Allocate(bytes, alignment)) return base_ + *offset;
  const std::uint64_t free = allocator_.Stats().free_bytes;
  return Error(ErrorCode::kOutOfMemory,
               "no room for {} ({} bytes, alignment {}) in the heap of {}: {} free, largest free "
               "block {}; a larger heap is "
               "set by MORI_SHMEM_HEAP_SIZE",
               FormatByteSize(bytes), bytes, alignment, FormatByteSize(bytes_),
               FormatByteSize(free), FormatByteSize(LargestRequest()));
}

Status StaticHeap::Free(const void* address) {
  const auto offset = OffsetOf(address);
  if (!offset) return Error(ErrorCode::kInvalidArgument, "{} is no address of this heap", address);
  const std::lock_guard lock(mutex_);
  if (allocator_.Free(*offset)) return Status();
  if (const auto block = allocator_.Find(*offset)) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} is {} bytes inside the block of {} bytes at {}: pass the start of a block",
                 address, *offset - block->offset, block->bytes,
                 static_cast<const void*>(base_ + block->offset));
  }
  return Error(ErrorCode::kInvalidArgument,
               "{} is no live block: never allocated, or freed already", address);
}

std::byte* StaticHeap::Translate(const void* address, std::uint64_t bytes, int pe) const {
  const auto offset = OffsetOf(address);
  if (!offset || bytes > bytes_ - *offset) return nullptr;
  std::byte* base = peer_bases_[static_cast<std::size_t>(pe)];
  return base == nullptr ? nullptr : base + *offset;
}

std::optional<std::uint64_t> StaticHeap::OffsetOf(const void* address) const {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base_);
  if (offset >= bytes_) return std::nullopt;
  return offset;
}

std::uint64_t StaticHeap::LargestRequest() const {
  const std::uint64_t small = std::min(allocator_.LargestFree(kGranule), kPageAlignedFromBytes - 1);
  return std::max(small, allocator_.LargestFree(DefaultAlignment(kPageAlignedFromBytes)));
}

HeapStats StaticHeap::Stats() const {
  const std::lock_guard lock(mutex_);
  const auto stats = allocator_.Stats();
  return {stats.capacity_bytes, stats.used_bytes, stats.free_bytes, LargestRequest(),
          stats.live_blocks};
}

std::shared_ptr<const void> StaticHeap::Retain(const void* address) const {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(range_->base());
  if (offset >= range_->bytes()) return nullptr;
  return range_;
}

}  // namespace mori::shmem
