// Kernels beside the host's calls on streams: they make data, look at it, and keep a stream busy.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

#define KERNEL extern "C" __global__ void

namespace {

__device__ u64 ThreadInGrid() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ u64 ThreadsInGrid() { return gridDim.x * static_cast<u64>(blockDim.x); }

__device__ u64 NowNs() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace

/// words[i] = value + i
KERNEL fill(u64* words, u64 count, u64 value) {
  for (u64 i = ThreadInGrid(); i < count; i += ThreadsInGrid()) words[i] = value + i;
}
KERNEL check(const u64* words, u64 count, u64 value, u64* errors) {
  for (u64 i = ThreadInGrid(); i < count; i += ThreadsInGrid()) {
    if (words[i] != value + i) FetchAdd(errors, u64{1});
  }
}
/// Counts the launches of a graph, and fills with what no other launch does.
KERNEL next_fill(u64* words, u64 count, u64* launches) {
  const u64 now = *launches + 1;
  BlockSync();  // one block
  for (u64 i = threadIdx.x; i < count; i += blockDim.x) words[i] = now * 1000 + i;
  if (threadIdx.x == 0) *launches = now;
}
KERNEL next_check(const u64* words, u64 count, const u64* launches, u64* errors) {
  for (u64 i = threadIdx.x; i < count; i += blockDim.x) {
    if (words[i] != *launches * 1000 + i) FetchAdd(errors, u64{1});
  }
}
/// Keeps the stream busy for a while.
KERNEL spin(u64 ns) {
  const u64 end = NowNs() + ns;
  while (NowNs() < end) {
  }
}
KERNEL spin_then_set(u64 ns, u64* word, u64 value, int pe) {
  const u64 end = NowNs() + ns;
  while (NowNs() < end) {
  }
  AtomicSet(word, value, pe);
}
KERNEL spin_then_set_32(u64 ns, u32* word, u32 value, int pe) {
  const u64 end = NowNs() + ns;
  while (NowNs() < end) {
  }
  AtomicSet(word, value, pe);
}

/// Without any order of its own.
KERNEL set_flag(u64* flag, u64 value, int pe) { AtomicSet(flag, value, pe); }
KERNEL await_flag(const u64* flag, u64 value) { ShmemSignalWaitUntil(flag, Compare::kGe, value); }
/// The word of this PE on every PE.
KERNEL tell_all(u64* words, u64 value) {
  const int pe = static_cast<int>(threadIdx.x);
  if (pe < NPes()) P(words + MyPe(), value, pe);
}
KERNEL heard_from_all(const u64* words, u64 value, u64* errors) {
  const int pe = static_cast<int>(threadIdx.x);
  if (pe < NPes() && words[pe] != value) FetchAdd(errors, u64{1});
}

/// What the host puts with a signal, round by round; it is told when it may go on.
KERNEL consume(const u64* data, u64 count, const u64* signal, int rounds, u64* consumed, int peer,
               u64* errors) {
  for (int round = 1; round <= rounds; ++round) {
    const u64 value = static_cast<u64>(round);
    ShmemSignalWaitUntilBlock(signal, Compare::kGe, value);
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) {
      if (data[i] != value * 7 + i) FetchAdd(errors, u64{1});
    }
    Block::Sync();
    if (threadIdx.x == 0) ShmemSignalOp(consumed, value, Signal::kSet, peer);
  }
}

/// Every thread adds, and flips one of the low 16 bits twice, on words of every PE.
KERNEL atomics_everywhere(u64* sum, u32* small_sum, u64* bits, u32* small_bits, int times) {
  const u64 bit = u64{1} << threadIdx.x % 16;
  for (int i = 0; i < times; ++i) {
    for (int pe = 0; pe < NPes(); ++pe) {
      AtomicFetchAdd(sum, u64{1}, pe);
      AtomicFetchAdd(small_sum, u32{3}, pe);
      for (int twice = 0; twice < 2; ++twice) {
        AtomicFetchXor(bits, bit, pe);
        AtomicFetchXor(small_bits, static_cast<u32>(bit), pe);
      }
    }
  }
}

KERNEL put_block(void* dest, const void* source, u64 bytes, int pe) {
  ShmemPutMemBlock(dest, source, bytes, pe);
  ShmemQuietBlock();
}
KERNEL identity(int* pes) {
  pes[0] = ShmemMyPe();
  pes[1] = ShmemNPes();
}
/// Where the library's small messages count on from; the same on all PEs, and none is under way.
/// Waits for what never comes. found[0]: what the call returned, and then one for each thread that came back.
#define WAIT_OR_LOST(scope, Scope)                                                    \
  KERNEL wait_or_lost_##scope(const u64* signal, u32* found) {                        \
    const u32 lost = SignalWaitUntilOrLost<Scope>(signal, Compare::kEq, 1);           \
    if (Scope::Rank() == 0) found[0] = lost;                                          \
    found[1 + Scope::Rank()] = lost;                                                  \
  }                                                                                   \
  KERNEL meet_or_lost_##scope(const u64*, u32* found) {                               \
    const u32 lost = BarrierAllOrLost<Scope>();                                       \
    if (Scope::Rank() == 0) found[0] = lost;                                          \
    found[1 + Scope::Rank()] = lost;                                                  \
  }
WAIT_OR_LOST(thread, Thread)
WAIT_OR_LOST(warp, Warp)
WAIT_OR_LOST(block, Block)

KERNEL set_exchanges(u64 number) { SyncWordsOf(MyPe())->exchanges = number; }
KERNEL barrier() { ShmemBarrierAllBlock(); }
KERNEL quiet_of(int pe) { ShmemQuiet(pe); }
