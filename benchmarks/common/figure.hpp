// Measuring and printing: clock, batches in turns, and one line per figure that the driver reads.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace mori::bench {

/// Monotonic time.
double NowNs();

/// Keeps the compiler from moving or merging memory accesses across this point.
inline void Clobber() { asm volatile("" ::: "memory"); }

enum class Unit { kNs, kUs, kMs, kMops, kGBps, kKiB };

/// What was measured, beside its value.
struct Label {
  std::string metric;
  std::size_t bytes = 0;
  int pes = 2;
  /// Of the destination modulo the page, number of live blocks, …; empty where there is none.
  std::string variant = {};
  Unit unit = Unit::kNs;
};

/// Prints `FIG library=mori metric=… bytes=… pes=… variant=… value=… best=… unit=…`.
void PrintFigure(const Label& label, double value, double best);

/// Something to time: `body(n)` performs n rounds of `operations_per_round` operations each.
struct Candidate {
  Label label;
  std::function<void(long)> body;
  double operations_per_round = 1;
};

struct BatchPlan {
  int batches = 11;
  double batch_ms = 20;
};

/// Times the candidates batch by batch in turns, so that all of them meet the same slow moments,
/// and prints median and best batch of each.
void MeasureInTurns(const std::vector<Candidate>& candidates, const BatchPlan& plan);

/// Median of `values`, which are at least one.
double Median(std::vector<double> values);

/// Prints median and best of times per operation, in ns, as a figure in the label's unit.
void PrintTimes(const Label& label, const std::vector<double>& ns_per_operation);

}  // namespace mori::bench
