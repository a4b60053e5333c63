// barrier_all over any number of PEs, beside barriers of a few lines over one counter: one that
// spins (with a CPU for every PE) and one that yields. On several nodes, beside half of a round
// trip of a word between PE 0 and the first PE that it does not load from and store to.
//
//   mori run -n 16 barrier
//   mori run -n 4 barrier --nodes       # each PE a node, on this machine
#include <sched.h>

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
  int batches = 7;
  double batch_ms = 80;
  bool nodes = false;
};

/// One counter and one epoch in PE 0's memory, a line each.
class BareBarrier {
 public:
  explicit BareBarrier(const Pe& pe)
      : words_(pe, 64),
        count_(pe.At(words_.data(), 0)),
        epoch_(pe.At(words_.data() + 32, 0)),
        n_pes_(static_cast<std::uint64_t>(pe.size())) {}

  template <typename Pause>
  void Wait(Pause pause) {
    const std::uint64_t epoch = __atomic_load_n(epoch_, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(count_, 1, __ATOMIC_ACQ_REL) == n_pes_) {
      __atomic_store_n(count_, 0, __ATOMIC_RELAXED);
      __atomic_store_n(epoch_, epoch + 1, __ATOMIC_RELEASE);
      return;
    }
    while (__atomic_load_n(epoch_, __ATOMIC_ACQUIRE) == epoch) pause();
  }

 private:
  Symmetric<std::uint64_t> words_;
  std::uint64_t* count_;
  std::uint64_t* epoch_;
  std::uint64_t n_pes_;
};

/// Every PE writes to its right neighbour before the barrier and finds its left one's word after
/// it.
void Verify(const Pe& pe) {
  const Symmetric<std::uint64_t> word(pe, 1);
  const int right = (pe.rank() + 1) % pe.size();
  for (std::uint64_t turn = 1; turn <= 50; ++turn) {
    Require(ShmemP(word.data(), turn, right) == 0, "a put failed");
    pe.Barrier();
    Require(*word.data() == turn, "a put before the barrier is not there after it");
    pe.Barrier();
  }
}

template <typename Barrier>
double TimeNs(Barrier barrier, long rounds) {
  const double start = NowNs();
  for (long i = 0; i < rounds; ++i) barrier();
  return (NowNs() - start) / static_cast<double>(rounds);
}

/// Times barriers of several kinds in turns, the same number of rounds on all PEs.
template <typename... Barriers>
void Measure(const Pe& pe, const Options& options, const std::vector<const char*>& metrics,
             Barriers... barriers) {
  std::vector<std::vector<double>> times(sizeof...(barriers));
  std::vector<long> rounds;
  const auto calibrate = [&](auto barrier) {
    TimeNs(barrier, 3);
    const double round_ns = TimeNs(barrier, 5);
    rounds.push_back(pe.FromFirst(
        std::clamp(static_cast<long>(options.batch_ms * 1e6 / round_ns), 3L, 400000L)));
  };
  (calibrate(barriers), ...);
  for (int batch = 0; batch < options.batches; ++batch) {
    std::size_t kind = 0;
    const auto time = [&](auto barrier) {
      pe.Barrier();
      times[kind].push_back(TimeNs(barrier, rounds[kind]));
      ++kind;
    };
    (time(barriers), ...);
  }
  pe.Barrier();
  if (!pe.is_first()) return;
  for (std::size_t kind = 0; kind < metrics.size(); ++kind) {
    PrintTimes({metrics[kind], 0, pe.size(), "", Unit::kUs}, times[kind]);
  }
}

/// The first PE that PE 0 reaches over the network; 0 if there is none.
int FirstRemote(const Pe& pe) {
  const Symmetric<std::uint64_t> word(pe, 1);
  const auto address = reinterpret_cast<std::uintptr_t>(word.data());
  int remote = 0;
  for (int other = pe.size() - 1; other > 0; --other) {
    if (ShmemPtrP2p(address, pe.rank(), other) == 0) remote = other;
  }
  return static_cast<int>(pe.FromFirst(remote));
}

/// A word goes back and forth between PE 0 and PE `other`, one way a call. The rest look on.
class RoundTrip {
 public:
  RoundTrip(const Pe& pe, int other) : word_(pe, 1), rank_(pe.rank()), other_(other) {}
  void operator()() {
    if (rank_ != 0 && rank_ != other_) return;
    const bool is_sender = (++turn_ % 2 != 0) == (rank_ == 0);
    const bool is_well = is_sender
                             ? ShmemAtomicSet(word_.data(), turn_, rank_ == 0 ? other_ : 0) == 0
                             : ShmemWaitUntil(word_.data(), Cmp::kGe, turn_) == 0;
    Require(is_well, "a word did not go back and forth");
  }

 private:
  Symmetric<std::uint64_t> word_;
  int rank_;
  int other_;
  std::uint64_t turn_ = 0;
};

void Run(const Options& options) {
  const Pe pe;
  Verify(pe);
  if (const int other = FirstRemote(pe); other != 0) {
    RoundTrip round_trip(pe, other);
    Measure(
        pe, options, {"barrier", "one_way"}, [] { ShmemBarrierAll(); }, [&] { round_trip(); });
    return;
  }
  BareBarrier bare(pe);
  const auto ours = [] { ShmemBarrierAll(); };
  const auto yielding = [&] { bare.Wait([] { ::sched_yield(); }); };
  const auto spinning = [&] { bare.Wait([] { detail::CpuRelax(); }); };
  if (pe.has_cpu_each()) {
    Measure(pe, options, {"barrier", "bare_barrier_yield", "bare_barrier_spin"}, ours, yielding,
            spinning);
  } else {
    Measure(pe, options, {"barrier", "bare_barrier_yield"}, ours, yielding);
  }
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Time of barrier_all");
  mori::bench::Options options;
  app.add_option("--batches", options.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", options.batch_ms, "Length of a batch")->check(CLI::PositiveNumber);
  app.add_flag("--nodes", options.nodes, "Each PE is a node of its own");
  CLI11_PARSE(app, argc, argv);
  if (options.nodes) {
    const char* rank = std::getenv("MORI_RANK");
    const std::string node = std::string("node ") + (rank == nullptr ? "0" : rank);
    ::setenv("MORI_NODE_ID", node.c_str(), 1);
  }
  mori::bench::Run(options);
}
