#include "common/figure.hpp"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mori::bench {
namespace {

const char* UnitName(Unit unit) {
  switch (unit) {
    case Unit::kNs: return "ns";
    case Unit::kUs: return "us";
    case Unit::kMs: return "ms";
    case Unit::kMops: return "Mops";
    case Unit::kGBps: return "GBps";
    case Unit::kKiB: return "KiB";
  }
  return "?";
}

double InUnit(const Label& label, double ns) {
  switch (label.unit) {
    case Unit::kUs: return ns * 1e-3;
    case Unit::kMs: return ns * 1e-6;
    case Unit::kMops: return 1e3 / ns;
    case Unit::kGBps: return static_cast<double>(label.bytes) / ns;
    default: return ns;
  }
}

double TimeNs(const Candidate& candidate, long rounds) {
  const double start = NowNs();
  candidate.body(rounds);
  return (NowNs() - start) / static_cast<double>(rounds);
}

/// Rounds that take about as long as a batch should.
long RoundsPerBatch(const Candidate& candidate, double batch_ms) {
  constexpr double kLongNs = 1e6;
  double round_ns = TimeNs(candidate, 1);
  if (round_ns < kLongNs) round_ns = TimeNs(candidate, 16);
  if (round_ns < kLongNs / 1000) round_ns = TimeNs(candidate, 1000);
  return std::max(1L, std::lround(batch_ms * 1e6 / std::max(1.0, round_ns)));
}

}  // namespace

double NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void PrintFigure(const Label& label, double value, double best) {
  std::printf(
      "FIG library=mori metric=%s bytes=%zu pes=%d variant=%s value=%.6g best=%.6g unit=%s\n",
      label.metric.c_str(), label.bytes, label.pes,
      label.variant.empty() ? "-" : label.variant.c_str(), value, best, UnitName(label.unit));
  std::fflush(stdout);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void PrintTimes(const Label& label, const std::vector<double>& ns_per_operation) {
  const double least = *std::min_element(ns_per_operation.begin(), ns_per_operation.end());
  PrintFigure(label, InUnit(label, Median(ns_per_operation)), InUnit(label, least));
}

void MeasureInTurns(const std::vector<Candidate>& candidates, const BatchPlan& plan) {
  std::vector<long> rounds;
  for (const Candidate& candidate : candidates) {
    rounds.push_back(RoundsPerBatch(candidate, plan.batch_ms));
  }
  std::vector<std::vector<double>> times(candidates.size());
  for (int batch = 0; batch < plan.batches; ++batch) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      times[i].push_back(TimeNs(candidates[i], rounds[i]) / candidates[i].operations_per_round);
    }
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) PrintTimes(candidates[i].label, times[i]);
}

}  // namespace mori::bench
