// Kernels of cuda_collectives_test.cpp: each collective and scope behind a C name, and many of them
// back to back, checked where they run.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

namespace {

// Each collective once a scope: out of line, so that it is compiled once, and fast.
template <typename Scope>
__device__ __noinline__ void DoBroadcast(void* dest, const void* source, u64 bytes, int root) {
  Broadcast<Scope>(dest, source, bytes, root);
}
template <typename Scope>
__device__ __noinline__ void DoFCollect(void* dest, const void* source, u64 bytes) {
  FCollect<Scope>(dest, source, bytes);
}
template <typename Scope>
__device__ __noinline__ void DoAllToAll(void* dest, const void* source, u64 bytes) {
  AllToAll<Scope>(dest, source, bytes);
}
template <typename Scope, typename Op, typename T>
__device__ __noinline__ void DoReduce(T* dest, const T* source, u64 count) {
  Reduce<Scope, Op>(dest, source, count);
}

/// What PE `pe` has at place `i` of its source in step `step`.
__device__ u64 ValueOf(u64 step, int pe, u64 i) {
  return step * 1000003 + static_cast<u64>(pe) * 7919 + i * 31;
}

template <typename Scope>
__device__ void Fill(u64* words, u64 count, u64 step) {
#pragma unroll 1
  for (u64 i = Scope::Rank(); i < count; i += Scope::Size()) words[i] = ValueOf(step, MyPe(), i);
  Scope::Sync();
}

/// Counts the words that are not `expected(i)`; the scope has read them all on return.
template <typename Scope, typename Expected>
__device__ void Check(const u64* words, u64 count, u64* errors, Expected expected) {
#pragma unroll 1
  for (u64 i = Scope::Rank(); i < count; i += Scope::Size()) {
    if (words[i] != expected(i)) FetchAdd(errors, u64{1});
  }
  Scope::Sync();
}

/// Symmetric: `source` and what is exchanged have `words` for each PE, the others `words` in all.
struct Buffers {
  u64* source;
  u64* broadcast;
  u64* gathered;
  u64* exchanged;
  u64* reduced;
};

/// All collectives one after another. The source is written to as soon as a call has returned; only
/// before a destination is used again, all PEs meet.
template <typename Scope>
__device__ void Rounds(Buffers b, u64 words, int rounds, u64* errors) {
  const int n_pes = NPes();
  const u64 n = static_cast<u64>(n_pes);
  u64 step = 0;
  for (int round = 0; round < rounds; ++round) {
    const int root = round % n_pes;
    Fill<Scope>(b.source, words, ++step);
    DoBroadcast<Scope>(b.broadcast, b.source, words * 8, root);
    const u64 broadcast_step = step;

    Fill<Scope>(b.source, words, ++step);
    DoFCollect<Scope>(b.gathered, b.source, words * 8);
    const u64 gathered_step = step;

    Fill<Scope>(b.source, words * n, ++step);
    DoAllToAll<Scope>(b.exchanged, b.source, words * 8);
    const u64 exchanged_step = step;

    u64* source = round % 2 == 0 ? b.source : b.reduced;  // in place every other time
    Fill<Scope>(source, words, ++step);
    DoReduce<Scope, Sum>(b.reduced, source, words);
    Fill<Scope>(b.source, words, 0);

    Check<Scope>(b.broadcast, words, errors,
                 [&](u64 i) { return ValueOf(broadcast_step, root, i); });
    Check<Scope>(b.gathered, words * n, errors, [&](u64 i) {
      return ValueOf(gathered_step, static_cast<int>(i / words), i % words);
    });
    Check<Scope>(b.exchanged, words * n, errors, [&](u64 i) {
      return ValueOf(exchanged_step, static_cast<int>(i / words),
                     static_cast<u64>(MyPe()) * words + i % words);
    });
    Check<Scope>(b.reduced, words, errors, [&](u64 i) {
      u64 sum = 0;
      for (int pe = 0; pe < n_pes; ++pe) sum += ValueOf(step, pe, i);
      return sum;
    });
    BarrierAll<Scope>();
  }
}

/// Each PE puts `words` to every PE, then all meet and look: after a barrier all of it is there,
/// after a sync what its writer had completed.
template <typename Scope>
__device__ void Meetings(bool is_sync, u64* source, u64* dest, u64 words, int rounds, u64* errors) {
  for (int round = 1; round <= rounds; ++round) {
    const u64 step = static_cast<u64>(round);
    Fill<Scope>(source, words, step);
    for (int pe = 0; pe < NPes(); ++pe)
      PutNbi<Scope>(dest + static_cast<u64>(MyPe()) * words, source, words * 8, pe);
    if (is_sync) Quiet<Scope>();
    is_sync ? SyncAll<Scope>() : BarrierAll<Scope>();
    Check<Scope>(dest, words * static_cast<u64>(NPes()), errors,
                 [&](u64 i) { return ValueOf(step, static_cast<int>(i / words), i % words); });
    is_sync ? SyncAll<Scope>() : BarrierAll<Scope>();
  }
}

}  // namespace

#define KERNEL extern "C" __global__ void

#define REDUCE(scope, Scope, Op, name, type)                                \
  KERNEL Op##_##name##_##scope(type* dest, const type* source, u64 count) { \
    DoReduce<Scope, Op>(dest, source, count);                               \
  }
#define REDUCE_EACH(scope, Scope, name, type) \
  REDUCE(scope, Scope, Sum, name, type)       \
  REDUCE(scope, Scope, Min, name, type)       \
  REDUCE(scope, Scope, Max, name, type)

#define COLLECTIVES(scope, Scope)                                                     \
  KERNEL broadcast_##scope(void* dest, const void* source, u64 bytes, int root) {     \
    DoBroadcast<Scope>(dest, source, bytes, root);                                    \
  }                                                                                   \
  KERNEL fcollect_##scope(void* dest, const void* source, u64 bytes) {                \
    DoFCollect<Scope>(dest, source, bytes);                                           \
  }                                                                                   \
  KERNEL alltoall_##scope(void* dest, const void* source, u64 bytes) {                \
    DoAllToAll<Scope>(dest, source, bytes);                                           \
  }                                                                                   \
  REDUCE_EACH(scope, Scope, int32, i32)                                               \
  REDUCE_EACH(scope, Scope, uint64, u64)                                              \
  REDUCE_EACH(scope, Scope, float, float)                                             \
  REDUCE_EACH(scope, Scope, double, double)                                           \
  KERNEL rounds_##scope(Buffers buffers, u64 words, int rounds, u64* errors) {        \
    Rounds<Scope>(buffers, words, rounds, errors);                                    \
  }                                                                                   \
  KERNEL meetings_##scope(int is_sync, u64* source, u64* dest, u64 words, int rounds, \
                          u64* errors) {                                              \
    Meetings<Scope>(is_sync != 0, source, dest, words, rounds, errors);               \
  }
COLLECTIVES(thread, Thread)
COLLECTIVES(warp, Warp)
COLLECTIVES(block, Block)
