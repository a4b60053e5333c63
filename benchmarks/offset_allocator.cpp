// Cost of the heap's bookkeeping: a pair of Allocate() and Free() beside a number of live blocks.
//
// Beside it the same pairs by the C library's malloc() and free(), whose cost is what bookkeeping
// in general costs on this machine. It serves smaller blocks here, as it needs memory for them.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "heap/offset_allocator.hpp"

namespace mori::shmem {
namespace {

constexpr std::uint64_t kGranule = 64;
constexpr std::uint64_t kPage = 4096;

/// Cheap next to what is measured.
class Random {
 public:
  std::uint64_t Below(std::uint64_t n) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return (state_ >> 33) * n >> 31;
  }
  /// Sizes of 1 to 2^bits bytes, as many of each magnitude.
  std::uint64_t Size(unsigned bits) { return 1 + Below(std::uint64_t{1} << Below(bits + 1)); }

 private:
  std::uint64_t state_ = 42;
};

/// Requests as the heap makes them: to the granule, or to the page from 2 KiB on.
struct Range {
  static constexpr unsigned kSizeBits = 18;
  std::uint64_t Allocate(std::uint64_t bytes) {
    return *allocator.Allocate(bytes, bytes < 2048 ? kGranule : kPage);
  }
  bool Free(std::uint64_t offset) { return allocator.Free(offset).has_value(); }
  OffsetAllocator allocator{std::uint64_t{1} << 40, kGranule};
};

struct CLibrary {
  static constexpr unsigned kSizeBits = 14;
  void* Allocate(std::uint64_t bytes) { return std::malloc(bytes); }
  bool Free(void* block) {
    std::free(block);
    return true;
  }
};

/// A block that is freed again at once, beside `live` others.
template <typename Heap>
void AllocateThenFree(benchmark::State& state) {
  Heap heap;
  Random random;
  std::vector<decltype(heap.Allocate(1))> blocks;
  for (auto i = state.range(0); i > 1; --i) {
    blocks.push_back(heap.Allocate(random.Size(Heap::kSizeBits)));
  }
  for (auto _ : state) {
    auto block = heap.Allocate(random.Size(Heap::kSizeBits));
    benchmark::DoNotOptimize(block);
    if (!heap.Free(block)) state.SkipWithError("lost a block");
  }
  for (auto block : blocks) heap.Free(block);
}

/// Each of `live` blocks in random order makes room for another of a random size.
template <typename Heap>
void ReplaceRandomBlock(benchmark::State& state) {
  Heap heap;
  Random random;
  std::vector<decltype(heap.Allocate(1))> blocks;
  for (auto i = state.range(0); i > 0; --i) {
    blocks.push_back(heap.Allocate(random.Size(Heap::kSizeBits)));
  }
  const auto replace = [&] {
    auto& block = blocks[random.Below(blocks.size())];
    const bool freed = heap.Free(block);
    block = heap.Allocate(random.Size(Heap::kSizeBits));
    return freed;
  };
  for (std::size_t i = 0; i < 6 * blocks.size(); ++i) replace();
  for (auto _ : state) {
    if (!replace()) state.SkipWithError("lost a block");
  }
  if constexpr (std::is_same_v<Heap, Range>) {
    const auto used = heap.allocator.Stats().used_bytes;
    state.counters["end/used"] =
        static_cast<double>(heap.allocator.UsedEnd()) / static_cast<double>(used);
  }
  for (auto block : blocks) heap.Free(block);
}

BENCHMARK(AllocateThenFree<Range>)->RangeMultiplier(10)->Range(1, 100'000);
BENCHMARK(AllocateThenFree<CLibrary>)->RangeMultiplier(10)->Range(1, 100'000);
BENCHMARK(ReplaceRandomBlock<Range>)->RangeMultiplier(10)->Range(1, 100'000);
BENCHMARK(ReplaceRandomBlock<CLibrary>)->RangeMultiplier(10)->Range(1, 100'000);

}  // namespace
}  // namespace mori::shmem

BENCHMARK_MAIN();
