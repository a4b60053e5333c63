// Operations between PEs of different hosts; benchmarks/network.py puts other libraries beside it.
//
//   mori run --hosts a,b network         latency, rates, bandwidth and barrier
//   mori run --hosts a,b,c,d network     the barrier alone
//
// PE 0 does the work, PE 1 waits in a barrier meanwhile. A rate is that of puts that are not
// waited for one by one: `blocking` may change their source at once and lie apart, `gathered` lie
// side by side and keep their source until quiet.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

constexpr int kPeer = 1;
constexpr std::size_t kPuts = 1000;     // before a quiet, of a rate
constexpr std::size_t kApart = 8;       // words from one to the next that is not beside it
constexpr std::size_t kTransfers = 16;  // before a quiet, of a bandwidth
constexpr std::size_t kMost = std::size_t{1} << 20;

void Check(int code) { Require(code == 0, "an operation failed"); }

struct Memory {
  explicit Memory(const Pe& pe) : data(pe, kMost), words(pe, kPuts * kApart), counter(pe, 8) {}
  Symmetric<unsigned char> data;
  Symmetric<std::uint64_t> words, counter;
};

unsigned char Expected(std::size_t i) { return static_cast<unsigned char>(i % 251 + 1); }

/// @return how often the counter of PE 1 was raised.
std::uint64_t MeasureLatencies(const Memory& memory, const BatchPlan& plan) {
  std::uint64_t word = 42, raised = 0;
  std::uint64_t* const there = memory.words.data();
  const auto repeat = [](auto operation) {
    return [operation](long rounds) {
      for (long i = 0; i < rounds; ++i) operation();
    };
  };
  MeasureInTurns({{{"net_put_quiet", 8, 2, "", Unit::kUs}, repeat([&] {
                     Check(ShmemPutMem(there, &word, 8, kPeer));
                     Check(ShmemQuiet());
                   })},
                  {{"net_get", 8, 2, "", Unit::kUs},
                   repeat([&] { Check(ShmemGetMem(&word, there, 8, kPeer)); })},
                  {{"net_fetch_add", 8, 2, "", Unit::kUs}, repeat([&] {
                     ShmemAtomicFetchAdd(memory.counter.data(), std::uint64_t{1}, kPeer);
                     ++raised;
                   })}},
                 plan);
  return raised;
}

void MeasureRates(const Memory& memory, const BatchPlan& plan) {
  std::vector<std::uint64_t> mine(kPuts);
  for (std::size_t i = 0; i < kPuts; ++i) mine[i] = i + 1;
  std::uint64_t* const there = memory.words.data();
  MeasureInTurns({{{"net_put_rate", 8, 2, "blocking", Unit::kMops},
                   [&](long rounds) {
                     for (long round = 0; round < rounds; ++round) {
                       for (std::size_t i = 0; i < kPuts; ++i)
                         Check(ShmemPutMem(there + i * kApart, &mine[i], 8, kPeer));
                       Check(ShmemQuiet());
                     }
                   },
                   kPuts},
                  {{"net_put_rate", 8, 2, "gathered", Unit::kMops},
                   [&](long rounds) {
                     for (long round = 0; round < rounds; ++round) {
                       for (std::size_t i = 0; i < kPuts; ++i)
                         Check(ShmemPutMemNbi(there + i, &mine[i], 8, kPeer));
                       Check(ShmemQuiet());
                     }
                   },
                   kPuts}},
                 plan);
}

void MeasureBandwidth(const Memory& memory, std::size_t bytes, const BatchPlan& plan) {
  std::vector<unsigned char> mine(kMost), back(kMost);
  for (std::size_t i = 0; i < kMost; ++i) mine[i] = Expected(i);
  const auto repeat = [](auto operation) {
    return [operation](long rounds) {
      for (long round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < kTransfers; ++i) Check(operation());
        Check(ShmemQuiet());
      }
    };
  };
  MeasureInTurns(
      {{{"net_put_bandwidth", bytes, 2, "", Unit::kGBps},
        repeat([&] { return ShmemPutMemNbi(memory.data.data(), mine.data(), bytes, kPeer); }),
        kTransfers},
       {{"net_get_bandwidth", bytes, 2, "", Unit::kGBps},
        repeat([&] { return ShmemGetMemNbi(back.data(), memory.data.data(), bytes, kPeer); }),
        kTransfers}},
      plan);
  Require(std::equal(back.begin(), back.begin() + static_cast<long>(bytes), mine.begin()),
          "a get brought something else");
}

/// Half a round trip of a word with its signal.
void MeasureOneWay(const Pe& pe, const Memory& memory, const BatchPlan& plan) {
  constexpr long kRoundTrips = 1000;
  std::uint64_t* const signal = memory.counter.data() + 1;
  std::uint64_t turn = 0;
  std::vector<double> times;
  for (int batch = 0; batch < plan.batches; ++batch) {
    pe.Barrier();
    const double start = NowNs();
    for (long i = 0; i < kRoundTrips; ++i) {
      ++turn;
      if (!pe.is_first()) Check(ShmemSignalWaitUntil(signal, Cmp::kEq, turn));
      Check(ShmemPutMemSignal(memory.words.data(), &turn, 8, signal, turn, SignalOp::kSet,
                              1 - pe.rank()));
      if (pe.is_first()) Check(ShmemSignalWaitUntil(signal, Cmp::kEq, turn));
    }
    times.push_back((NowNs() - start) / (2.0 * kRoundTrips));
  }
  pe.Barrier();
  if (pe.is_first()) PrintTimes({"net_one_way", 8, 2, "", Unit::kUs}, times);
}

void MeasureBarrier(const Pe& pe, const BatchPlan& plan) {
  const auto time_ns = [&](long rounds) {
    const double start = NowNs();
    for (long i = 0; i < rounds; ++i) pe.Barrier();
    return (NowNs() - start) / static_cast<double>(rounds);
  };
  time_ns(10);
  const long rounds =
      pe.FromFirst(std::clamp(static_cast<long>(plan.batch_ms * 1e6 / time_ns(10)), 3L, 100'000L));
  std::vector<double> times;
  for (int batch = 0; batch < plan.batches; ++batch) {
    pe.Barrier();
    times.push_back(time_ns(rounds));
  }
  pe.Barrier();
  if (pe.is_first()) PrintTimes({"net_barrier", 0, pe.size(), "", Unit::kUs}, times);
}

void MeasurePair(const Pe& pe, const BatchPlan& plan) {
  const Memory memory(pe);
  std::uint64_t raised = 0;
  if (pe.is_first()) {
    raised = MeasureLatencies(memory, plan);
    MeasureRates(memory, plan);
    for (const std::size_t bytes : {std::size_t{65536}, kMost})
      MeasureBandwidth(memory, bytes, plan);
  }
  pe.Barrier();
  for (std::size_t i = 0; !pe.is_first() && i < kPuts; ++i)
    Require(memory.words[i] == i + 1, "a put went elsewhere");
  for (std::size_t i = 0; !pe.is_first() && i < kMost; ++i)
    Require(memory.data[i] == Expected(i), "a put wrote something else");
  if (pe.is_first())
    Require(ShmemAtomicFetch(memory.counter.data(), kPeer) == raised, "additions were lost");
  pe.Barrier();
  MeasureOneWay(pe, memory, plan);
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Operations between PEs of different hosts");
  mori::bench::BatchPlan plan{7, 100};
  app.add_option("--batches", plan.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", plan.batch_ms, "Length of a batch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const mori::bench::Pe pe;
  if (pe.size() == 2) mori::bench::MeasurePair(pe, plan);
  mori::bench::MeasureBarrier(pe, plan);
}
