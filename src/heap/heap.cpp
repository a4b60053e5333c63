#include "heap/heap.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/round_up.hpp"
#include "heap/symmetric_heap.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kPage = 4096;
/// What a chunk is by default, unless the heap is smaller; see docs/architecture.md for the
/// measurement.
constexpr std::uint64_t kDefaultChunkBytes = std::uint64_t{64} << 20;

/// Each heap fits the machine by itself; all of a node's may not. Memory comes with its first use,
/// so that is no error, and the first PE says it for all.
void WarnOfMemory(const Config& config, const SpaceParts& parts) {
  if (config.heap_mode != HeapMode::kStatic || !parts.runtime->IsHostMemory()) return;
  std::uint64_t heaps = 1;
  for (int pe = 0; pe < parts.world_size; ++pe) {
    if (pe == parts.pe || !parts.transport->Reaches(pe)) continue;
    if (pe < parts.pe) return;
    ++heaps;
  }
  const std::uint64_t bytes = HeapBytes(config, *parts.runtime);
  if (bytes <= parts.runtime->MemoryBytes() / heaps) return;
  LogWarn(
      "the heaps of the {} PEs of this node, {} each by MORI_SHMEM_HEAP_SIZE, are more than the {} "
      "of memory there are: where they are filled, the system ends a PE, and at most {} each fits",
      heaps, FormatByteSize(bytes), FormatByteSize(parts.runtime->MemoryBytes()),
      FormatByteSize(parts.runtime->MemoryBytes() / heaps));
}

}  // namespace

std::uint64_t DefaultAlignment(std::uint64_t bytes) {
  return bytes >= kPageAlignedFromBytes ? kPage : kCacheLine;
}

std::uint64_t HeapBytes(const Config& config, const DeviceRuntime& runtime) {
  const std::uint64_t granularity = runtime.GranularityBytes();
  if (config.heap_bytes) return RoundUp(*config.heap_bytes, granularity);
  return runtime.MemoryBytes() / granularity * granularity;
}

std::uint64_t ChunkBytes(const Config& config, const DeviceRuntime& runtime) {
  const std::uint64_t wanted = config.vmm_chunk_bytes.value_or(kDefaultChunkBytes);
  return std::min(RoundUp(wanted, runtime.GranularityBytes()), HeapBytes(config, runtime));
}

Status CheckHeapConfig(const Config& config, const DeviceRuntime& runtime) {
  if (!config.heap_bytes && config.heap_mode == HeapMode::kStatic) {
    return Error(ErrorCode::kInvalidConfig,
                 "MORI_SHMEM_HEAP_SIZE is not set, and static mode needs it, e.g. export "
                 "MORI_SHMEM_HEAP_SIZE=6G");
  }
  if (runtime.ChoosesAddresses() && config.heap_mode != HeapMode::kStatic) {
    return Error(ErrorCode::kInvalidConfig,
                 "MORI_SHMEM_MODE={} needs memory at addresses of our choice, and by "
                 "MORI_SHMEM_GPU_SHARING={} the device chooses them: set MORI_SHMEM_MODE=static "
                 "({})",
                 HeapModeName(config.heap_mode), GpuSharingName(runtime.sharing()),
                 runtime.Describe());
  }
  if (config.heap_bytes && *config.heap_bytes < kPage) {
    return Error(ErrorCode::kInvalidConfig,
                 "MORI_SHMEM_HEAP_SIZE is {}, less than the smallest heap of {}; a number without "
                 "a unit is in bytes, e.g. "
                 "export MORI_SHMEM_HEAP_SIZE=6G",
                 FormatExactByteSize(*config.heap_bytes), FormatExactByteSize(kPage));
  }
  for (const auto& [name, value] :
       {std::pair("MORI_SHMEM_HEAP_SIZE", config.heap_bytes),
        std::pair("MORI_SHMEM_VMM_CHUNK_SIZE", config.vmm_chunk_bytes)}) {
    if (value && *value > runtime.MemoryBytes()) {
      return Error(ErrorCode::kInvalidConfig, "{} is {}, more than the {} of memory there are ({})",
                   name, FormatExactByteSize(*value), FormatExactByteSize(runtime.MemoryBytes()),
                   runtime.Describe());
    }
  }
  return Status();
}

Result<std::unique_ptr<Heap>> MakeHeap(const Config& config, const SpaceParts& parts,
                                       const Deadline& deadline) {
  const DeviceRuntime& runtime = *parts.runtime;
  MORI_RETURN_IF_ERROR(CheckHeapConfig(config, runtime));
  WarnOfMemory(config, parts);
  SymmetricHeap::Layout layout;
  layout.mode = config.heap_mode;
  layout.type = config.heap_type;
  layout.bytes = HeapBytes(config, runtime);
  layout.granule_bytes =
      config.heap_mode == HeapMode::kIsolation ? runtime.GranularityBytes() : kCacheLine;
  layout.chunk_bytes = ChunkBytes(config, runtime);
  layout.budget = config.wait_timeout.value_or(config.bootstrap_timeout);
  return SymmetricHeap::Create(layout, parts, deadline);
}

}  // namespace mori::shmem
