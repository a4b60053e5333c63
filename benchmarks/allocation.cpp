// A pair of collective malloc and free, beside a number of live blocks of mixed sizes with as many
// holes between them.
//
//   mori run -n 2 allocation --live 0 100000
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

struct Options {
  std::vector<long> live{0, 100, 10'000, 100'000};
  std::vector<std::size_t> sizes{64, 1 << 20};
  int batches = 7;
  double batch_ms = 60;
};

std::uint64_t* Allocate(std::size_t bytes) {
  auto* block = static_cast<std::uint64_t*>(ShmemMalloc(bytes));
  Require(block != nullptr, "no room: raise MORI_SHMEM_HEAP_SIZE");
  return block;
}

/// Blocks of 64 to 1024 bytes, each marked with its index; every second one is given back at once,
/// in an order that is all over the heap.
class LiveBlocks {
 public:
  explicit LiveBlocks(long live) {
    std::vector<std::uint64_t*> holes;
    for (long i = 0; i < live; ++i) {
      const std::size_t bytes = 64 << (static_cast<std::size_t>(i) % 5);
      blocks_.push_back(Allocate(bytes));
      *blocks_.back() = static_cast<std::uint64_t>(i);
      holes.push_back(Allocate(bytes));
    }
    std::uint64_t state = 42;  // the same order on every PE
    for (std::size_t left = holes.size(); left > 0; --left) {
      state = state * 6364136223846793005 + 1442695040888963407;
      std::swap(holes[(state >> 33) % left], holes[left - 1]);
      Require(ShmemFree(holes[left - 1]) == 0, "a free failed");
    }
  }
  ~LiveBlocks() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Require(*blocks_[i] == i, "a live block was overwritten");
      Require(ShmemFree(blocks_[i]) == 0, "a free failed");
    }
  }
  LiveBlocks(const LiveBlocks&) = delete;
  LiveBlocks& operator=(const LiveBlocks&) = delete;

 private:
  std::vector<std::uint64_t*> blocks_;
};

double PairNs(std::size_t bytes, long rounds) {
  const double start = NowNs();
  for (long i = 0; i < rounds; ++i) {
    std::uint64_t* block = Allocate(bytes);
    *block = 0x5a5a5a5a5a5a5a5a;
    Require(ShmemFree(block) == 0, "a free failed");
  }
  return (NowNs() - start) / static_cast<double>(rounds);
}

void Measure(const Pe& pe, const Options& options, long live, std::size_t bytes) {
  PairNs(bytes, 3);
  const double pair_ns = PairNs(bytes, 20);
  const long rounds =
      pe.FromFirst(std::clamp(static_cast<long>(options.batch_ms * 1e6 / pair_ns), 3L, 400'000L));
  std::vector<double> times;
  for (int batch = 0; batch < options.batches; ++batch) {
    pe.Barrier();
    times.push_back(PairNs(bytes, rounds));
  }
  if (!pe.is_first()) return;
  const char* mode = std::getenv("MORI_SHMEM_MODE");
  const std::string suffix = mode != nullptr ? std::string("_") + mode : "";
  PrintTimes({"malloc_free" + suffix, bytes, pe.size(), std::to_string(live), Unit::kUs}, times);
}

void Run(const Options& options) {
  const Pe pe;
  HeapStats before{};
  Require(ShmemHeapStats(&before) == 0, "no statistics");
  for (const long live : options.live) {
    const LiveBlocks blocks(live);
    for (const std::size_t bytes : options.sizes) Measure(pe, options, live, bytes);
  }
  HeapStats after{};
  Require(ShmemHeapStats(&after) == 0, "no statistics");
  Require(after.used_bytes == before.used_bytes, "blocks are left");
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Time of collective malloc and free beside live blocks");
  mori::bench::Options options;
  app.add_option("--live", options.live, "Numbers of live blocks")->check(CLI::NonNegativeNumber);
  app.add_option("--sizes", options.sizes, "Bytes of a block")->check(CLI::PositiveNumber);
  app.add_option("--batches", options.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", options.batch_ms, "Length of a batch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  mori::bench::Run(options);
}
