// Ways to wait in a barrier over one counter, for processes on a bare shared mapping: how long to
// spin and to yield before sleeping is chosen by this.
//
//   barrier_candidates --processes 2 16 --ways spin yield "0/400/futex"
//
// A way is spin, yield, futex, or spins/yields/futex and spins/yields/nap: so many of each, then
// sleeping until woken, or in naps of 50 us and more.
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "common/figure.hpp"
#include "mori/shmem/host_ops.hpp"

namespace mori::bench {
namespace {

struct Options {
  std::vector<int> processes{2, 4, 8, 16, 64};
  std::vector<std::string> ways{"spin",           "yield",        "futex",         "0/400/futex",
                                "0/20/futex",     "0/2000/futex", "100/400/futex", "1000/400/futex",
                                "4000/400/futex", "4000/0/futex", "0/400/nap",     "4000/400/nap"};
  int batches = 7;
  double batch_ms = 60;
};

struct Way {
  long spins = 0;
  long yields = 0;
  bool naps = false;
};

Way ParseWay(const std::string& text) {
  constexpr long kForever = std::numeric_limits<long>::max();
  if (text == "spin") return {kForever, 0, false};
  if (text == "yield") return {0, kForever, false};
  if (text == "futex") return {};
  Way way;
  char last[8] = {};
  if (std::sscanf(text.c_str(), "%ld/%ld/%7s", &way.spins, &way.yields, last) != 3) {
    std::printf("BAD no such way: %s\n", text.c_str());
    ::_exit(1);
  }
  way.naps = std::string(last) == "nap";
  return way;
}

struct Shared {
  alignas(128) std::atomic<std::uint32_t> arrived;
  alignas(128) std::atomic<std::uint32_t> epoch;
  alignas(128) std::atomic<std::uint32_t> sleepers;
  alignas(128) std::atomic<std::uint32_t> turns[1024];
};

void Sleep(Shared* shared, std::uint32_t epoch, const Way& way, long* nap_ns) {
  if (way.naps) {
    const timespec time{0, *nap_ns};
    ::nanosleep(&time, nullptr);
    *nap_ns = std::min(2 * *nap_ns, 1'000'000L);
    return;
  }
  shared->sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (shared->epoch.load(std::memory_order_seq_cst) == epoch) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&shared->epoch), FUTEX_WAIT, epoch,
              nullptr, nullptr, 0);
  }
  shared->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Barrier(Shared* shared, std::uint32_t count, const Way& way) {
  const std::uint32_t epoch = shared->epoch.load(std::memory_order_relaxed);
  if (shared->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    shared->arrived.store(0, std::memory_order_relaxed);
    // Pairs with `sleepers` in Sleep(): we see the sleeper, or it sees the new epoch.
    shared->epoch.store(epoch + 1, std::memory_order_seq_cst);
    if (shared->sleepers.load(std::memory_order_seq_cst) != 0) {
      ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&shared->epoch), FUTEX_WAKE, INT_MAX,
                nullptr, nullptr, 0);
    }
    return;
  }
  Way left = way;
  long nap_ns = 50'000;
  while (shared->epoch.load(std::memory_order_acquire) == epoch) {
    if (left.spins > 0) {
      --left.spins;
      shmem::detail::CpuRelax();
    } else if (left.yields > 0) {
      --left.yields;
      ::sched_yield();
    } else {
      Sleep(shared, epoch, way, &nap_ns);
    }
  }
}

void Pin(int index, int count) {
  if (count > ::sysconf(_SC_NPROCESSORS_ONLN)) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(index), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

/// After each barrier of a short run, every process finds its neighbour's word of that turn.
void VerifyTurns(Shared* shared, int index, int count, const Way& way) {
  const int neighbour = (index + 1) % count;
  for (std::uint32_t turn = 1; turn <= 10; ++turn) {
    shared->turns[index].store(turn, std::memory_order_relaxed);
    Barrier(shared, static_cast<std::uint32_t>(count), way);
    if (shared->turns[neighbour].load(std::memory_order_relaxed) < turn) {
      std::printf("BAD a barrier let a process through early\n");
      ::_exit(1);
    }
  }
}

double TimeNs(Shared* shared, int count, const Way& way, long rounds) {
  const double start = NowNs();
  for (long i = 0; i < rounds; ++i) Barrier(shared, static_cast<std::uint32_t>(count), way);
  return (NowNs() - start) / static_cast<double>(rounds);
}

/// What each of the processes does; the first one prints.
void Participate(Shared* shared, int index, int count, const Options& options) {
  Pin(index, count);
  std::vector<std::vector<double>> times(options.ways.size());
  std::vector<long> rounds(options.ways.size());
  for (int batch = -1; batch < options.batches; ++batch) {
    for (std::size_t w = 0; w < options.ways.size(); ++w) {
      const Way way = ParseWay(options.ways[w]);
      if (batch >= 0) {
        times[w].push_back(TimeNs(shared, count, way, rounds[w]));
        continue;
      }
      VerifyTurns(shared, index, count, way);
      const double round_ns = TimeNs(shared, count, way, 10);
      if (index == 0) {
        shared->turns[1023].store(static_cast<std::uint32_t>(
            std::clamp(options.batch_ms * 1e6 / round_ns, 5.0, 500'000.0)));
      }
      TimeNs(shared, count, way, 1);
      rounds[w] = shared->turns[1023].load();
      for (std::size_t i = 0; index == 0 && i < 1023; ++i) shared->turns[i].store(0);
      TimeNs(shared, count, way, 1);
    }
  }
  for (std::size_t w = 0; index == 0 && w < times.size(); ++w) {
    PrintTimes({"barrier_candidate", 0, count, options.ways[w], Unit::kUs}, times[w]);
  }
}

void Measure(int count, const Options& options) {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) ::_exit(1);
  auto* shared = new (memory) Shared{};
  for (int index = 1; index < count; ++index) {
    if (::fork() == 0) {
      Participate(shared, index, count, options);
      ::_exit(0);
    }
  }
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof before, &before);
  Participate(shared, 0, count, options);
  ::sched_setaffinity(0, sizeof before, &before);
  for (int index = 1; index < count; ++index) ::wait(nullptr);
  ::munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  using namespace mori::bench;
  CLI::App app("Ways to wait in a barrier");
  Options options;
  app.add_option("--processes", options.processes, "Numbers of processes")
      ->check(CLI::Range(2, 1000));
  app.add_option("--ways", options.ways, "Ways to wait");
  app.add_option("--batches", options.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", options.batch_ms, "Length of a batch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  for (const int count : options.processes) {
    Options now = options;
    if (count > ::sysconf(_SC_NPROCESSORS_ONLN))
      std::erase(now.ways, "spin");  // never ends, nearly
    Measure(count, now);
  }
}
