// Kernels of the GPU tests: each operation and scope behind a C name. Compiled to PTX.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

#define KERNEL extern "C" __global__ void

#define FOR_EACH_SCOPE(ROW) ROW(thread, Thread) ROW(warp, Warp) ROW(block, Block)

#define PUT_AND_GET(name, Scope)                                                     \
  KERNEL put_##name(void* dest, const void* source, u64 bytes, int pe) {             \
    Put<Scope>(dest, source, bytes, pe);                                             \
    Quiet<Scope>();                                                                  \
  }                                                                                  \
  KERNEL get_##name(void* dest, const void* source, u64 bytes, int pe) {             \
    Get<Scope>(dest, source, bytes, pe);                                             \
  }                                                                                  \
  /* Rounds of data then signal, both ways: whoever sees the signal must see the data. */ \
  KERNEL ping_pong_##name(u64* data, u64* scratch, u64 words, u64* signal, int rounds,    \
                          int peer, u64* errors) {                                   \
    for (int round = 1; round <= rounds; ++round) {                                  \
      const u64 value = static_cast<u64>(round);                                     \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size()) scratch[i] = value + i; \
      Scope::Sync();                                                                 \
      PutSignal<Scope>(data, scratch, words * 8, signal, value, Signal::kSet, peer); \
      WaitUntil<Scope>(signal, Compare::kGe, value);                                 \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size()) {                   \
        if (data[i] != value + i) FetchAdd(errors, u64{1});                          \
      }                                                                              \
      Scope::Sync();                                                                 \
      BarrierAll<Scope>();                                                           \
    }                                                                                \
  }
FOR_EACH_SCOPE(PUT_AND_GET)

/// Every thread of the grid adds to a counter of every PE.
KERNEL add_everywhere(u64* counter, u32* small, int times) {
  for (int pe = 0; pe < NPes(); ++pe) {
    for (int i = 0; i < times; ++i) {
      AtomicFetchAdd(counter, u64{1}, pe);
      AtomicFetchAdd(small, u32{3}, pe);
    }
  }
}

/// The operations on one word, each checked by what it returns.
KERNEL atomics(u64* word, u32* small, int pe, u64* errors) {
  const auto check = [&](bool holds) {
    if (!holds) FetchAdd(errors, u64{1});
  };
  AtomicSet(word, u64{5}, pe);
  check(AtomicFetch(word, pe) == 5);
  check(AtomicFetchAdd(word, u64{10}, pe) == 5);
  check(AtomicFetchAnd(word, u64{0xe}, pe) == 15);
  check(AtomicFetchOr(word, u64{0x11}, pe) == 14);
  check(AtomicFetchXor(word, u64{0x3}, pe) == 0x1f);
  check(AtomicSwap(word, u64{7}, pe) == 0x1c);
  check(AtomicCompareSwap(word, u64{6}, u64{9}, pe) == 7);
  check(AtomicCompareSwap(word, u64{7}, u64{9}, pe) == 7);
  check(G(word, pe) == 9);
  P(word, u64{11}, pe);
  Quiet<Thread>();
  check(AtomicFetch(word, pe) == 11);
  AtomicSet(small, 1u, pe);
  check(AtomicFetchAdd(small, 0xffffffffu, pe) == 1);
  check(AtomicSwap(small, 4u, pe) == 0);
  check(AtomicCompareSwap(small, 4u, 8u, pe) == 4);
  check(AtomicFetchOr(small, 1u, pe) == 8 && AtomicFetchAnd(small, 8u, pe) == 9);
  check(AtomicFetchXor(small, 8u, pe) == 8 && AtomicFetch(small, pe) == 0);
}

/// Back to back; each PE writes the round into its own word before, and reads all words after.
KERNEL barriers(u64* rounds_of_all, int rounds, u64* errors) {
  for (int round = 1; round <= rounds; ++round) {
    const u64 value = static_cast<u64>(round);
    if (Block::Rank() == 0) P(rounds_of_all, value, MyPe());
    BarrierAll<Block>();
    for (int pe = static_cast<int>(Block::Rank()); pe < NPes(); pe += static_cast<int>(Block::Size())) {
      if (G(rounds_of_all, pe) != value) FetchAdd(errors, u64{1});
    }
    BarrierAll<Block>();
  }
}

/// Each warp of the block puts a part of its own, also where the last one has fewer lanes; then the first
/// or the last of them meets the other PEs.
KERNEL put_by_warps(u64* dest, u64* source, u64 words, u64 value, int pe, u64* errors) {
  const u32 warp = ThreadInBlock() / 32;
  u64* const part = source + warp * words;
  for (u64 i = Warp::Rank(); i < words; i += Warp::Size()) part[i] = value + warp * words + i;
  Warp::Sync();
  Put<Warp>(dest + warp * words, part, words * 8, pe);
  Quiet<Warp>();
  BlockSync();
  const u32 last = (ThreadsInBlock() - 1) / 32;
  if (warp == (value % 2 == 0 ? 0 : last)) BarrierAll<Warp>();
  BlockSync();
  for (u64 i = ThreadInBlock(); i < (last + 1) * words; i += ThreadsInBlock()) {
    if (AtomicFetch(dest + i, MyPe()) != value + i) FetchAdd(errors, u64{1});
  }
  BlockSync();
  if (warp == last) BarrierAll<Warp>();
}

KERNEL identity(int* pes) {
  pes[0] = MyPe();
  pes[1] = NPes();
}
