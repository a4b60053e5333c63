// What a PE costs before it does anything: time of init, first barrier and finalize at PE 0. The
// driver times the whole launch.
//
//   mori run -n 64 startup
//   mori run -n 64 startup --memory   and what each PE holds beyond the symmetric heaps
//   mori run -n 64 startup --bare     the same program without init: what launching alone costs
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/memory.hpp"
#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

double SinceMs(double start_ns) { return (NowNs() - start_ns) * 1e-6; }

void PrintWorst(const std::vector<MemoryUse>& uses, const char* metric, double MemoryUse::*field) {
  const auto [least, most] = std::minmax_element(
      uses.begin(), uses.end(), [=](const auto& a, const auto& b) { return a.*field < b.*field; });
  PrintFigure({metric, 0, static_cast<int>(uses.size()), "", Unit::kKiB}, *most.*field,
              *least.*field);
}

/// Every PE puts its number to every PE, and finds everybody's.
void TalkToAll(int me, int n_pes, std::int64_t* numbers) {
  for (int pe = 0; pe < n_pes; ++pe) {
    Require(ShmemP(numbers + me, std::int64_t{me}, pe) == 0, "a put failed");
  }
  Require(ShmemBarrierAll() == 0, "a barrier failed");
  for (int pe = 0; pe < n_pes; ++pe) Require(numbers[pe] == pe, "a number is missing");
}

/// The PE with the most, and the one with the least, once each has talked to all.
void MeasureMemory(int me, int n_pes) {
  const auto count = static_cast<std::size_t>(n_pes);
  auto* numbers = static_cast<std::int64_t*>(ShmemMalloc(count * sizeof(std::int64_t)));
  auto* uses = static_cast<MemoryUse*>(ShmemMalloc(count * sizeof(MemoryUse)));
  Require(numbers != nullptr && uses != nullptr, "no symmetric memory");
  TalkToAll(me, n_pes, numbers);

  std::vector<std::uintptr_t> heaps;
  for (int pe = 0; pe < n_pes; ++pe) {
    heaps.push_back(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(numbers), me, pe));
  }
  const MemoryUse mine = MemoryWithout(heaps);
  Require(ShmemPut(uses + me, &mine, 1, 0) == 0, "a put failed");
  Require(ShmemBarrierAll() == 0, "a barrier failed");
  if (me != 0) return;
  const std::vector<MemoryUse> all(uses, uses + count);
  PrintWorst(all, "rss_beyond_heap", &MemoryUse::rss_kib);
  PrintWorst(all, "pss_beyond_heap", &MemoryUse::pss_kib);
  PrintWorst(all, "peak_rss", &MemoryUse::peak_kib);
}

void Run(bool with_memory) {
  double start = NowNs();
  Require(ShmemInit() == 0, "init failed");
  const double init_ms = SinceMs(start);
  const int me = ShmemMyPe();
  const int n_pes = ShmemNPes();
  start = NowNs();
  Require(ShmemBarrierAll() == 0, "a barrier failed");
  const double barrier_ms = SinceMs(start);
  if (with_memory) MeasureMemory(me, n_pes);
  start = NowNs();
  Require(ShmemFinalize() == 0, "finalize failed");
  const double finalize_ms = SinceMs(start);
  if (me != 0 || with_memory) return;
  PrintFigure({"init", 0, n_pes, "", Unit::kMs}, init_ms, init_ms);
  PrintFigure({"first_barrier", 0, n_pes, "", Unit::kMs}, barrier_ms, barrier_ms);
  PrintFigure({"finalize", 0, n_pes, "", Unit::kMs}, finalize_ms, finalize_ms);
}

void RunBare() {
  const MemoryUse use = MemoryWithout({});
  const char* rank = std::getenv("MORI_RANK");
  const char* size = std::getenv("MORI_WORLD_SIZE");
  if (rank == nullptr || size == nullptr || std::string(rank) != "0") return;
  PrintFigure({"bare_rss", 0, std::atoi(size), "", Unit::kKiB}, use.rss_kib, use.rss_kib);
}

}  // namespace
}  // namespace mori::bench

// No library reads the arguments here: what it would cost to load is no part of what is measured.
int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (argc > 2 || (argc == 2 && option != "--memory" && option != "--bare")) {
    std::fprintf(stderr, "usage: startup [--memory | --bare]\n");
    return 2;
  }
  if (option == "--bare") {
    mori::bench::RunBare();
  } else {
    mori::bench::Run(option == "--memory");
  }
}
