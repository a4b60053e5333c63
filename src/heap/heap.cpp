#include "heap/heap.hpp"

#include "heap/static_heap.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kPage = 4096;

}  // namespace

std::uint64_t DefaultAlignment(std::uint64_t bytes) {
  return bytes >= kPageAlignedFromBytes ? kPage : kCacheLine;
}

Status CheckHeapConfig(const Config& config, const DeviceRuntime& runtime) {
  if (config.heap_mode != HeapMode::kStatic) {
    return Error(ErrorCode::kUnsupported,
                 "MORI_SHMEM_MODE={} is not available in this version: set MORI_SHMEM_MODE=static "
                 "or leave it unset",
                 HeapModeName(config.heap_mode));
  }
  if (!config.heap_bytes) {
    return Error(ErrorCode::kInvalidConfig,
                 "MORI_SHMEM_HEAP_SIZE is not set, and static mode needs it, e.g. export "
                 "MORI_SHMEM_HEAP_SIZE=6G");
  }
  if (*config.heap_bytes < kPage) {
    return Error(ErrorCode::kInvalidConfig,
                 "MORI_SHMEM_HEAP_SIZE is {}, less than the smallest heap of {}; a number without "
                 "a unit is in bytes, e.g. "
                 "export MORI_SHMEM_HEAP_SIZE=6G",
                 FormatByteSize(*config.heap_bytes), FormatByteSize(kPage));
  }
  if (*config.heap_bytes > runtime.MemoryBytes()) {
    return Error(ErrorCode::kInvalidConfig,
                 "MORI_SHMEM_HEAP_SIZE is {}, more than the {} of memory there are",
                 FormatByteSize(*config.heap_bytes), FormatByteSize(runtime.MemoryBytes()));
  }
  return Status();
}

Result<std::unique_ptr<Heap>> MakeHeap(const Config& config, DeviceRuntime* runtime,
                                       Transport* transport, int pe, int world_size,
                                       const Deadline& deadline) {
  MORI_RETURN_IF_ERROR(CheckHeapConfig(config, *runtime));
  return StaticHeap::Create(config, runtime, transport, pe, world_size, deadline);
}

}  // namespace mori::shmem
