// The program of a library on many GPUs: pairs of PEs, all at once, barriers, collectives.
#pragma once

#include <algorithm>

#include "all_at_once.cuh"
#include "barriers.cuh"
#include "pairs.cuh"
#include "processes.hpp"
#include "stream_figures.cuh"

namespace mori::bench {

template <class L>
void KernelFigures(const Options& options, Pe<L>& pe) {
  PairFigures<L>(options, pe.size(), [&](int from, int to) { return pe.Between(from, to); });
  if (options.Wants("all")) AtOnceFigures<L>(pe).All();
  if (options.Wants("barrier")) BarrierFigures<L>(pe).All();
}

/// `more(options, pe)` has the figures of this library alone. Of PEs that are threads and share a
/// GPU, kernels that are linked into a program are one's only: no figures of kernels then.
template <class L, class More>
int ScaleMain(int argc, char** argv, More more) {
  const Options options = Options::Parse(argc, argv);
  // Kernels are loaded before one waits for another.
  if (L::kHasKernels) ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  // Streams of threads on one GPU do not wait for each other.
  if (options.as_threads) ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  L::SetEnvironment("2G");
  return RunPes(options, [&](const Crew& crew) {
    Pe<L> pe(options, crew);
    pe.Open(std::max(kMostBytes, static_cast<u64>(crew.size()) * kSlotStride));
    if constexpr (L::kHasKernels) {
      if (!options.as_threads || pe.pes_of_gpu() == 1) {
        KernelFigures(options, pe);
        more(options, pe);
      }
    }
    StreamFigures<L>(pe).All(options);
    pe.Close();
  });
}

/// For those without.
struct NoMore {
  template <class P>
  void operator()(const Options&, P&) const {}
};

}  // namespace mori::bench
