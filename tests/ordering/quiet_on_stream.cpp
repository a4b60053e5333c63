// Store buffering, as in quiet.cpp, by a put and a quiet on a stream of the host. Exits 1 once both
// threads have loaded the old value.
#include <atomic>
#include <cstdio>
#include <thread>

#include "shmem/operations.hpp"
#include "shmem/streams.hpp"

namespace mori::shmem {

// Without a network, as here, each of these has nothing to do but what the test does not ask for.
Status Operations::Put(void*, const void*, std::uint64_t, int, Until) const { return Status(); }
Status Operations::Get(void*, const void*, std::uint64_t, int, Until) const { return Status(); }
Status Operations::PutSignal(void*, const void*, std::uint64_t, std::uint64_t*, std::uint64_t,
                             SignalOp, int) const {
  return Status();
}
Status Operations::Signal(std::uint64_t*, std::uint64_t, SignalOp, int) const { return Status(); }
Status Operations::Quiet() const { return Status(); }

}  // namespace mori::shmem

using namespace mori::shmem;

int main() {
  constexpr int kRounds = 200'000;
  const Operations operations{Operations::Parts{}};
  const auto streams = MakeHostStreams({&operations, 0, 1, {}, {}});
  alignas(4096) static std::uint64_t words[64];
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
    const std::uint64_t one = 1;
    for (int round = 0; round < kRounds / 64; ++round) {
      for (int i = 0; i < 64; ++i) {
        __atomic_store_n(flags[self], 0, __ATOMIC_RELAXED);
        meet(128 * round + 2 * i + 1);
        static_cast<void>(streams->Copy(flags[self], &one, sizeof one, nullptr));
        static_cast<void>(streams->Quiet(nullptr));
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
