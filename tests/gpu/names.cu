// Kernels of cuda_names_test.cpp: each name of shmem_device_api.hpp once, with what it must have
// done. Two PEs run them at the same time, or one by itself.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

namespace {

constexpr u64 kCount = 64;

/// Symmetric.
struct Area {
  i32 source[kCount];
  i32 dest[2 * kCount];  // of two PEs at most
  u64 signal;
  u64 words[4];
};

__device__ void Expect(bool holds, u64* errors) {
  if (!holds) FetchAdd(errors, u64{1});
}
/// What PE `pe` has in its source.
__device__ i32 ValueOf(int pe, u64 i) { return 1000 * pe - 500 + static_cast<i32>(i); }

/// The other PE; itself where it is alone.
__device__ int Peer() { return NPes() - 1 - MyPe(); }

/// What is to be in front of `dest`, and 77 behind it.
enum class Expected { kOfPeer, kOfFirst, kOfLast, kOfAll, kMyPartOfAll, kSumOfAll };
__device__ i32 ExpectedAt(Expected expected, u64 i) {
  const int n_pes = NPes();
  const u64 part = kCount / static_cast<u64>(n_pes);
  if (expected == Expected::kOfAll && i < static_cast<u64>(n_pes) * kCount)
    return ValueOf(static_cast<int>(i / kCount), i % kCount);
  if (i >= kCount) return 77;
  switch (expected) {
    case Expected::kOfFirst: return ValueOf(0, i);
    case Expected::kOfLast: return ValueOf(n_pes - 1, i);
    case Expected::kMyPartOfAll:
      return ValueOf(static_cast<int>(i / part), static_cast<u64>(MyPe()) * part + i % part);
    case Expected::kSumOfAll: return ValueOf(0, i) + (n_pes > 1 ? ValueOf(1, i) : 0);
    default: return ValueOf(Peer(), i);
  }
}
/// Before and after one name. Out of line, as what is not inlined is compiled once, and fast.
template <typename Scope>
__device__ __noinline__ void Start(Area* area) {
#pragma unroll 1
  for (u64 i = Scope::Rank(); i < 2 * kCount; i += Scope::Size()) {
    if (i < kCount) area->source[i] = ValueOf(MyPe(), i);
    area->dest[i] = 77;
  }
  BarrierAll<Scope>();
}
template <typename Scope>
__device__ __noinline__ void Finish(Area* area, Expected expected, u64* errors) {
  BarrierAll<Scope>();
#pragma unroll 1
  for (u64 i = Scope::Rank(); i < 2 * kCount; i += Scope::Size())
    Expect(area->dest[i] == ExpectedAt(expected, i), errors);
  BarrierAll<Scope>();
}

}  // namespace

#define KERNEL extern "C" __global__ void

#define STEP(Scope, expected, ...) \
  Start<Scope>(area);              \
  __VA_ARGS__;                     \
  Finish<Scope>(area, Expected::expected, errors);

#define NAMES(scope, Scope, S)                                                               \
  KERNEL names_##scope(Area* area, u64 count, u64* errors) {                                 \
    const int peer = Peer();                                                                 \
    const int last = ShmemNPes() - 1;                                                        \
    i32* const dest = area->dest;                                                            \
    const i32* const source = area->source;                                                  \
    const u64 bytes = count * sizeof(i32);                                                   \
    u64* const signal = &area->signal;                                                       \
    const bool leads = Scope::Rank() == 0;                                                   \
    u64 seen = 0;                                                                            \
    STEP(Scope, kOfPeer, ShmemPutMem##S(dest, source, bytes, peer))                          \
    STEP(Scope, kOfPeer, ShmemPutMemNbi##S(dest, source, bytes, peer); ShmemQuiet##S())      \
    STEP(Scope, kOfPeer, ShmemPut##S(dest, source, count, peer))                             \
    STEP(Scope, kOfPeer, ShmemPutNbi##S(dest, source, count, peer); ShmemQuiet##S(peer))     \
    STEP(Scope, kOfPeer, ShmemGetMem##S(dest, source, bytes, peer))                          \
    STEP(Scope, kOfPeer, ShmemGetMemNbi##S(dest, source, bytes, peer); ShmemQuiet##S())      \
    STEP(Scope, kOfPeer, ShmemGet##S(dest, source, count, peer))                             \
    STEP(Scope, kOfPeer, ShmemGetNbi##S(dest, source, count, peer); ShmemQuiet##S(peer))     \
    STEP(Scope, kOfPeer,                                                                     \
         ShmemPutMemSignal##S(dest, source, bytes, signal, 40, Signal::kSet, peer);          \
         seen = ShmemSignalWaitUntil##S(signal, Compare::kEq, u64{40});                      \
         Expect(!leads || seen == 40, errors))                                               \
    STEP(Scope, kOfPeer,                                                                     \
         ShmemPutMemSignalNbi##S(dest, source, bytes, signal, 2, Signal::kAdd, peer);        \
         seen = ShmemWaitUntil##S(signal, Compare::kGt, u64{41});                            \
         Expect(!leads || seen == 42, errors))                                               \
    STEP(Scope, kOfPeer, ShmemPut##S(dest, source, count, peer); ShmemFence##S();            \
         for (u64 i = 0; leads && i < 4; ++i) ShmemAtomicAdd(area->words + i, u64{5}, peer); \
         ShmemWaitUntilAll##S(area->words, 4, nullptr, Compare::kGe, u64{5}))                \
    STEP(Scope, kOfPeer, ShmemPut##S(dest, source, count, peer); ShmemQuiet##S();            \
         ShmemSyncAll##S())                                                                  \
    STEP(Scope, kOfPeer, ShmemBarrierAll##S(); ShmemGet##S(dest, source, count, peer))       \
    STEP(Scope, kOfLast, ShmemBroadcastMem##S(dest, source, bytes, last))                    \
    STEP(Scope, kOfAll, ShmemFCollectMem##S(dest, source, bytes))                            \
    STEP(Scope, kMyPartOfAll, ShmemAllToAllMem##S(dest, source, bytes / (last + 1)))         \
    STEP(Scope, kSumOfAll, ShmemSumReduce##S(dest, source, count))                           \
    STEP(Scope, kOfFirst, ShmemMinReduce##S(dest, source, count))                            \
    STEP(Scope, kOfLast, ShmemMaxReduce##S(dest, source, count))                             \
  }
NAMES(thread, Thread, )
NAMES(warp, Warp, Warp)
NAMES(block, Block, Block)

/// What one thread does, on words of the peer that no other PE touches meanwhile.
template <typename T>
__device__ void NamesOfWords(T* word, T* words, int peer, u64* errors) {
  ShmemP(word, T(5), peer);
  ShmemQuiet();
  Expect(ShmemG(word, peer) == 5 && ShmemAtomicFetch(word, peer) == 5, errors);
  ShmemAtomicSet(word, T(6), peer);
  Expect(ShmemAtomicSwap(word, T(7), peer) == 6, errors);
  Expect(ShmemAtomicCompareSwap(word, T(6), T(1), peer) == 7, errors);
  Expect(ShmemAtomicCompareSwap(word, T(7), T(8), peer) == 7, errors);
  Expect(ShmemAtomicFetchInc(word, peer) == 8, errors);
  ShmemAtomicInc(word, peer);
  Expect(ShmemAtomicFetchAdd(word, T(-20), peer) == 10, errors);
  ShmemAtomicAdd(word, T(17), peer);
  Expect(ShmemAtomicFetchAnd(word, T(6), peer) == 7, errors);
  ShmemAtomicAnd(word, T(2), peer);
  Expect(ShmemAtomicFetchOr(word, T(8), peer) == 2, errors);
  ShmemAtomicOr(word, T(1), peer);
  Expect(ShmemAtomicFetchXor(word, T(3), peer) == 11, errors);
  ShmemAtomicXor(word, T(8), peer);
  Expect(ShmemAtomicFetch(word, peer) == 0, errors);

  const int leaves_out_first[4] = {1, 0, 0, 0};
  u64 indices[4];
  for (int i = 0; i < 4; ++i) words[i] = T(i);
  Expect(ShmemTest(words + 3, Compare::kEq, T(3)), errors);
  Expect(!ShmemTest(words + 3, Compare::kLt, T(3)), errors);
  Expect(ShmemTestAll(words, 4, leaves_out_first, Compare::kGt, T(0)), errors);
  Expect(ShmemTestAny(words, 4, nullptr, Compare::kGe, T(2)) == 2, errors);
  Expect(ShmemTestSome(words, 4, indices, leaves_out_first, Compare::kNe, T(2)) == 2, errors);
  Expect(indices[0] == 1 && indices[1] == 3, errors);
  Expect(ShmemWaitUntilAny(words, 4, leaves_out_first, Compare::kLe, T(1)) == 1, errors);
  Expect(ShmemWaitUntilSome(words, 4, indices, nullptr, Compare::kEq, T(0)) == 1, errors);
}
#define NAMES_OF_WORDS(name, type)                                      \
  KERNEL names_##name(type* word, type* words, int peer, u64* errors) { \
    NamesOfWords(word, words, peer, errors);                            \
  }
NAMES_OF_WORDS(int32, i32)
NAMES_OF_WORDS(uint32, u32)
NAMES_OF_WORDS(int64, i64)
NAMES_OF_WORDS(uint64, u64)
NAMES_OF_WORDS(ulong, unsigned long)  // what uint64_t is on Linux

KERNEL names_of_signals(u64* signal, int peer, u64* errors) {
  ShmemSignalOp(signal, 11, Signal::kSet, peer);
  ShmemSignalWaitUntil(signal, Compare::kEq, u64{11});
  ShmemBarrierAll();
  ShmemSignalOp(signal, 22, Signal::kAdd, peer);
  Expect(ShmemWaitUntil(signal, Compare::kGe, u64{33}) == 33, errors);
  Expect(ShmemSignalFetch(signal) == 33, errors);
}
/// Pointers to a peer are for its own loads and stores.
KERNEL names_of_queries(u64* word, int n_pes, u64* errors) {
  const int peer = Peer();
  Expect(ShmemNPes() == n_pes, errors);
  Expect(ShmemPtr(word, ShmemMyPe()) == word, errors);
  Expect(ShmemPtr(word, n_pes) == nullptr && ShmemPtr(word, -1) == nullptr, errors);
  *static_cast<volatile u64*>(ShmemPtr(word, peer)) = 1234 + static_cast<u64>(peer);
  ShmemBarrierAll();
  Expect(*static_cast<volatile u64*>(word) == 1234 + static_cast<u64>(ShmemMyPe()), errors);
}
