// The ordering calls as functions of their own, whose machine code is searched for a weakly ordered
// processor.
#include "stand_in.hpp"

using namespace mori::shmem;

extern "C" {
void probe_fence() { ShmemFence(); }
void probe_quiet() { ShmemQuiet(); }
void probe_atomic_set(std::uint64_t* word) {
  __atomic_store_n(word, 0, __ATOMIC_RELAXED), ShmemAtomicSet(word, std::uint64_t{1}, 0);
}
std::uint64_t probe_atomic_fetch(const std::uint64_t* word) { return ShmemAtomicFetch(word, 0); }
std::uint64_t probe_signal_fetch(const std::uint64_t* word) { return ShmemSignalFetch(word); }
bool probe_test(const std::uint64_t* word) { return ShmemTest(word, Cmp::kEq, std::uint64_t{1}); }
}
