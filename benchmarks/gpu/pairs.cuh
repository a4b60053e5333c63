// The figures of one PE towards another, for each pair: those of figures.cuh, by "/from-to".
#pragma once

#include <string>

#include "figures.cuh"

namespace mori::bench {

inline std::string PairSuffix(int from, int to) {
  return "/" + std::to_string(from) + "-" + std::to_string(to);
}

/// `between(from, to)` gives the stage of a pair; what its figures are called comes on top.
template <class L, class Between>
void PairFigures(const Options& options, int n_pes, Between between) {
  const auto figures_of = [&](int from, int to, auto measure) {
    Stage stage = between(from, to);
    stage.suffix = PairSuffix(from, to);
    measure(Figures<L>(stage, static_cast<u32>(1000 * (64 * from + to))));
  };
  if (options.Wants("latency")) {
    for (int to = 1; to < n_pes; ++to) {
      figures_of(0, to, [](Figures<L> figures) {
        figures.WordFigures();
        figures.template PutFigure<Scope::kBlock>("put/block", 64);
        figures.SignalFigure(32, 8);
      });
    }
  }
  if (options.Wants("put")) {
    for (int from = 0; from < n_pes; ++from) {
      for (int to = 0; to < n_pes; ++to) {
        if (to == from) continue;
        figures_of(from, to,
                   [](Figures<L> figures) { figures.BandwidthFigure(kMostBlocks, kMostBytes); });
      }
    }
  }
}

}  // namespace mori::bench
