// Store buffering: each of two threads stores, calls quiet, and loads what the other stores.
// Both loading the old value is the outcome that a quiet forbids. Exits 1 once it was seen.
#include <atomic>
#include <cstdio>
#include <thread>

#include "stand_in.hpp"

using namespace mori::shmem;

int main() {
  constexpr int kRounds = 200'000;
  auto* words = reinterpret_cast<std::uint64_t*>(heap);
  std::uint64_t* flags[2] = {words, words + 32};  // lines of their own
  std::uint64_t seen[2][64];
  std::atomic<int> arrived{0};
  const auto meet = [&](int phase) {
    arrived.fetch_add(1);
    while (arrived.load() < 2 * phase) {
    }
  };
  int missed = 0;
  const auto run = [&](int self) {
    for (int round = 0; round < kRounds / 64; ++round) {
      for (int i = 0; i < 64; ++i) {
        ShmemAtomicSet(flags[self], std::uint64_t{0}, 0);
        meet(128 * round + 2 * i + 1);
        ShmemP(flags[self], std::uint64_t{1}, 0);
        ShmemQuiet();
        seen[self][i] = __atomic_load_n(flags[1 - self], __ATOMIC_RELAXED);
        meet(128 * round + 2 * i + 2);
        if (self == 0) missed += seen[0][i] == 0 && seen[1][i] == 0;
      }
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  std::printf("both missed: %d of %d\n", missed, kRounds);
  return missed > 0 ? 1 : 0;
}
