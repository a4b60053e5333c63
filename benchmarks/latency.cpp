// Small operations between two PEs: 8-byte put, get, atomics and their rates, beside what the
// machine takes for the same loads and stores without a library.
//
//   mori run -n 2 latency
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstring>

#include "common/pe.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

constexpr int kPeer = 1;
constexpr long kWindow = 256;
constexpr std::uint64_t kFromPut = 0x1122334455667788;
constexpr std::uint64_t kAtTarget = 0x99aabbccddeeff00;

struct Words {
  explicit Words(const Pe& pe) : mine(pe, 1), theirs(pe, 1), counter(pe, 1), ring(pe, kWindow) {}
  Symmetric<std::uint64_t> mine, theirs, counter, ring;
};

/// Repeats `operation`, each time as if its memory might have changed meanwhile.
template <typename Operation>
auto Repeat(Operation operation) {
  return [operation](long rounds) {
    const Operation local = operation;  // what it captured may stay in registers
    for (long i = 0; i < rounds; ++i) {
      local();
      Clobber();
    }
  };
}

/// `operation(word)` on each word of a window, then quiet.
template <typename Operation>
auto RepeatWindow(Operation operation) {
  return [operation](long rounds) {
    const Operation local = operation;  // what it captured may stay in registers
    for (long i = 0; i < rounds; ++i) {
      for (long w = 0; w < kWindow; ++w) local(w);
      ShmemQuiet();
      Clobber();
    }
  };
}

void MeasurePut(const Words& words, const BatchPlan& plan) {
  volatile std::size_t eight = 8;
  const std::size_t unknown = eight;
  std::uint64_t* to = words.theirs.data();
  std::uint64_t* from = words.mine.data();
  auto* peer = reinterpret_cast<std::uint64_t*>(
      ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(to), ShmemMyPe(), kPeer));
  MeasureInTurns({{{"put_latency", 8}, Repeat([=] {
                     ShmemPutMem(to, from, 8, kPeer);
                     ShmemQuiet();
                   })},
                  {{"put_latency_size_unknown", 8}, Repeat([=] {
                     ShmemPutMem(to, from, unknown, kPeer);
                     ShmemQuiet();
                   })},
                  {{"bare_store_fence", 8}, Repeat([=] {
                     __atomic_store_n(peer, kFromPut, __ATOMIC_RELAXED);
                     std::atomic_thread_fence(std::memory_order_seq_cst);
                   })}},
                 plan);
}

void MeasureGet(const Words& words, const BatchPlan& plan) {
  volatile std::size_t eight = 8;
  const std::size_t unknown = eight;
  std::uint64_t* from = words.theirs.data();
  std::uint64_t* to = words.mine.data();
  auto* peer = reinterpret_cast<std::uint64_t*>(
      ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(from), ShmemMyPe(), kPeer));
  MeasureInTurns(
      {{{"get_latency", 8}, Repeat([=] { ShmemGetMem(to, from, 8, kPeer); })},
       {{"get_latency_size_unknown", 8}, Repeat([=] { ShmemGetMem(to, from, unknown, kPeer); })},
       {{"bare_load", 8}, Repeat([=] { *to = __atomic_load_n(peer, __ATOMIC_RELAXED); })}},
      plan);
}

/// @return how often the counter was raised by the library.
std::uint64_t MeasureFetchAdd(const Words& words, const BatchPlan& plan) {
  std::uint64_t* counter = words.counter.data();
  std::uint64_t own = 0;
  std::uint64_t raised = 0;
  const auto count = [&raised](auto body, long operations) {
    return [=, &raised](long rounds) {
      body(rounds);
      raised += static_cast<std::uint64_t>(rounds * operations);
    };
  };
  MeasureInTurns(
      {{{"fetch_add", 8},
        count(Repeat([=] { ShmemAtomicFetchAdd(counter, std::uint64_t{1}, kPeer); }), 1)},
       {{"bare_xadd", 8}, Repeat([&own] { __atomic_fetch_add(&own, 1, __ATOMIC_ACQ_REL); })},
       {{"add_rate", 8, 2, "", Unit::kMops},
        count(RepeatWindow([=](long) { ShmemAtomicAdd(counter, std::uint64_t{1}, kPeer); }),
              kWindow),
        kWindow}},
      plan);
  return raised;
}

void MeasureRates(const Words& words, const BatchPlan& plan) {
  std::uint64_t* ring = words.ring.data();
  auto* peer = reinterpret_cast<std::uint64_t*>(
      ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(ring), ShmemMyPe(), kPeer));
  MeasureInTurns(
      {{{"put_nbi_rate", 8, 2, "", Unit::kMops},
        RepeatWindow([=](long w) { ShmemPutMemNbi(ring + w, ring + w, 8, kPeer); }),
        kWindow},
       {{"p_rate", 8, 2, "", Unit::kMops},
        RepeatWindow([=](long w) { ShmemP(ring + w, static_cast<std::uint64_t>(w) + 1, kPeer); }),
        kWindow},
       {{"bare_store_rate", 8, 2, "", Unit::kMops},
        RepeatWindow([=](long w) {
          __atomic_store_n(peer + w, static_cast<std::uint64_t>(w) + 1, __ATOMIC_RELAXED);
        }),
        kWindow}},
      plan);
}

/// Time of a put and a get over size, each beside the copy alone.
void MeasureSizes(const Pe& pe, const BatchPlan& plan) {
  constexpr std::size_t kMost = 64 << 10;
  const Symmetric<std::byte> mine(pe, kMost);
  const Symmetric<std::byte> theirs(pe, kMost);
  std::byte* local = mine.data();
  std::byte* remote = theirs.data();
  std::byte* peer = pe.At(remote, kPeer);
  for (std::size_t bytes = 1; pe.is_first() && bytes <= kMost; bytes *= 4) {
    MeasureInTurns(
        {{{"put_time", bytes}, Repeat([=] {
            ShmemPutMem(remote, local, bytes, kPeer);
            ShmemQuiet();
          })},
         {{"get_time", bytes}, Repeat([=] { ShmemGetMem(local, remote, bytes, kPeer); })},
         {{"bare_put_time", bytes}, Repeat([=] {
            std::memcpy(peer, local, bytes);
            std::atomic_thread_fence(std::memory_order_seq_cst);
          })}},
        plan);
  }
  pe.Barrier();
}

void Run(const BatchPlan& plan) {
  const Pe pe;
  Require(pe.size() >= 2, "needs 2 PEs");
  const Words words(pe);

  *words.mine.data() = kFromPut;
  pe.Barrier();
  if (pe.is_first()) MeasurePut(words, plan);
  pe.Barrier();
  if (pe.rank() == kPeer) Require(*words.theirs.data() == kFromPut, "put wrote something else");
  pe.Barrier();

  *words.theirs.data() = kAtTarget;
  pe.Barrier();
  if (pe.is_first()) MeasureGet(words, plan);
  if (pe.is_first()) Require(*words.mine.data() == kAtTarget, "get read something else");
  pe.Barrier();

  std::uint64_t raised = 0;
  if (pe.is_first()) raised = MeasureFetchAdd(words, plan);
  raised = static_cast<std::uint64_t>(pe.FromFirst(static_cast<long>(raised)));
  if (pe.rank() == kPeer) Require(*words.counter.data() == raised, "additions were lost");

  for (long w = 0; w < kWindow; ++w) {
    words.ring[static_cast<std::size_t>(w)] = pe.is_first() ? static_cast<std::uint64_t>(w) + 1 : 0;
  }
  pe.Barrier();
  for (long w = 0; pe.is_first() && w < kWindow; ++w) {
    Require(ShmemPutMemNbi(&words.ring[static_cast<std::size_t>(w)],
                           &words.ring[static_cast<std::size_t>(w)], 8, kPeer) == 0,
            "a put failed");
  }
  pe.Barrier();
  for (std::size_t w = 0; pe.rank() == kPeer && w < kWindow; ++w) {
    Require(words.ring[w] == w + 1, "a put of the window went elsewhere");
  }
  if (pe.is_first()) MeasureRates(words, plan);
  pe.Barrier();
  MeasureSizes(pe, plan);
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  CLI::App app("Latency and rate of 8-byte operations between PE 0 and PE 1");
  mori::bench::BatchPlan plan;
  app.add_option("--batches", plan.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", plan.batch_ms, "Length of a batch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  mori::bench::Run(plan);
}
