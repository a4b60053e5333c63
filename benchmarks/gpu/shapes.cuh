// The kernels that are timed, once: each takes a library as a policy, so that ours, NVSHMEM and the
// bare machine run the same shape.
//
// A library `L` has, for kernels (`pe` is who is reached; addresses are as the library takes them):
//   P(u64*, u64, pe)  G(const u64*, pe)  FetchAdd(u64*, u64, pe)  Quiet()          of one thread
//   Put<Scope>(dest, source, bytes, pe)  Get<Scope>(dest, source, bytes, pe)       blocking
//   PutNbiBlock(dest, source, bytes, pe)  GetNbiBlock(dest, source, bytes, pe)
//   PutSignalBlock(dest, source, bytes, u64* signal, u64 value, pe)  WaitSignalBlock(signal, value)
//   BarrierBlock()  and the collectives, by a block
#pragma once

#include <cuda_runtime.h>

namespace mori::bench {

using u32 = unsigned int;
using u64 = unsigned long long;

enum class Scope { kThread, kWarp, kBlock };
template <Scope S>
inline constexpr int kThreadsOf = S == Scope::kBlock  ? 1024
                                  : S == Scope::kWarp ? 32
                                                      : 1;

/// When a block began and ended, by the clock of the whole GPU.
struct Span {
  u64 start_ns;
  u64 end_ns;
};

__device__ inline u64 NowNs() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

/// Times what a block does between its construction and `Stop()`.
class Stopwatch {
 public:
  __device__ Stopwatch() {
    __syncthreads();
    start_ns_ = NowNs();
  }
  __device__ void Stop(Span* spans) const {
    __syncthreads();
    if (threadIdx.x == 0) spans[blockIdx.x] = Span{start_ns_, NowNs()};
  }

 private:
  u64 start_ns_;
};

template <Scope S>
__device__ void Sync() {
  if constexpr (S == Scope::kBlock) __syncthreads();
  if constexpr (S == Scope::kWarp) __syncwarp();
}

// ---- words, by one thread

template <class L>
__global__ void PutWords(u64* dest, u64 first, int rounds, int pe, Span* spans) {
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) {
    L::P(dest, first + static_cast<u64>(i), pe);
    L::Quiet();
  }
  stopwatch.Stop(spans);
}

/// Counters far apart: how long an atomic takes depends on the part of the L2 cache that has its
/// word.
constexpr int kCounters = 64;
constexpr int kCounterWords = 33 * 16;

/// What is added depends on what was found: one atomic is under way at a time.
template <class L>
__global__ void FetchAddWords(u64* target, int rounds, int pe, Span* spans, u64* result) {
  const Stopwatch stopwatch;
  u64 found = 0;
  for (int i = 0; i < rounds; ++i)
    found = L::FetchAdd(target + i % kCounters * kCounterWords, 1 + (found >> 63), pe);
  stopwatch.Stop(spans);
  *result = found;
}

/// Follows a chain of indices from `*cursor`: one load is under way at a time, each of another
/// line.
template <class L>
__global__ void GetWords(const u64* chain, int rounds, int pe, Span* spans, u64* cursor) {
  u64 at = *cursor;
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) at = L::G(chain + at, pe);
  stopwatch.Stop(spans);
  *cursor = at;
}

// ---- blocks of memory

template <class L, Scope S>
__global__ void __launch_bounds__(kThreadsOf<S>)
    PutAndQuiet(char* dest, const char* source, u64 bytes, int rounds, int pe, Span* spans) {
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) {
    L::template Put<S>(dest, source, bytes, pe);
    if (threadIdx.x == 0) L::Quiet();
    Sync<S>();
  }
  stopwatch.Stop(spans);
}

/// Each round reads the next of `slots` parts of the source: caches of the SM do not have it.
template <class L, Scope S>
__global__ void __launch_bounds__(kThreadsOf<S>)
    GetBlocking(char* dest, const char* source, u64 bytes, u64 slots, int rounds, int pe,
                Span* spans) {
  u64 slot = 0;
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) {
    L::template Get<S>(dest, source + slot * bytes, bytes, pe);
    Sync<S>();
    slot = slot + 1 < slots ? slot + 1 : 0;
  }
  stopwatch.Stop(spans);
}

/// Each block puts its part, again and again, and completes at the end.
template <class L>
__global__ void __launch_bounds__(1024)
    PutParts(char* dest, const char* source, u64 part, int rounds, int pe, Span* spans) {
  const u64 offset = blockIdx.x * part;
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) L::PutNbiBlock(dest + offset, source + offset, part, pe);
  __syncthreads();
  if (threadIdx.x == 0) L::Quiet();
  stopwatch.Stop(spans);
}

// ---- two PEs

/// One side of a round trip: data with a signal there, and back.
struct Exchange {
  char* dest;
  const char* source;
  u64 bytes;
  u64* signal_there;
  const u64* signal_here;
  int pe;
  bool leads;
};

template <class L>
__device__ void RoundTrips(const Exchange& exchange, u64 first, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const u64 value = first + static_cast<u64>(i);
    if (!exchange.leads) L::WaitSignalBlock(exchange.signal_here, value);
    L::PutSignalBlock(exchange.dest, exchange.source, exchange.bytes, exchange.signal_there, value,
                      exchange.pe);
    if (exchange.leads) L::WaitSignalBlock(exchange.signal_here, value);
  }
}

inline constexpr int kRoundTripsBefore = 16;  // untimed: both kernels run by then

template <class L>
__global__ void __launch_bounds__(1024)
    PingPong(Exchange exchange, u64 first, int rounds, Span* spans) {
  RoundTrips<L>(exchange, first, kRoundTripsBefore);
  const Stopwatch stopwatch;
  RoundTrips<L>(exchange, first + kRoundTripsBefore, rounds);
  stopwatch.Stop(spans);
}

// ---- all PEs, by one block

/// Afterwards each PE finds in `*result` what the PE before it has put to its `word`.
template <class L>
__global__ void __launch_bounds__(1024)
    Barriers(int rounds, u64* word, u64 value, int next_pe, Span* spans, u64* result) {
  for (int i = 0; i < 3; ++i) L::BarrierBlock();
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) L::BarrierBlock();
  stopwatch.Stop(spans);
  if (threadIdx.x == 0) L::P(word, value, next_pe);
  L::BarrierBlock();
  if (threadIdx.x == 0) *result = *static_cast<volatile u64*>(word);
}

enum class Collective { kBroadcast, kFCollect, kAllToAll, kSumReduce };

template <class L, Collective C>
__device__ void Call(void* dest, const void* source, u64 bytes) {
  if constexpr (C == Collective::kBroadcast) L::BroadcastBlock(dest, source, bytes, 0);
  if constexpr (C == Collective::kFCollect) L::FCollectBlock(dest, source, bytes);
  if constexpr (C == Collective::kAllToAll) L::AllToAllBlock(dest, source, bytes);
  if constexpr (C == Collective::kSumReduce)
    L::SumReduceBlock(static_cast<float*>(dest), static_cast<const float*>(source),
                      bytes / sizeof(float));
}

/// `bytes` of each PE, or to each.
template <class L, Collective C>
__global__ void __launch_bounds__(1024)
    Collectives(void* dest, const void* source, u64 bytes, int rounds, Span* spans) {
  for (int i = 0; i < 3; ++i) Call<L, C>(dest, source, bytes);
  const Stopwatch stopwatch;
  for (int i = 0; i < rounds; ++i) Call<L, C>(dest, source, bytes);
  stopwatch.Stop(spans);
  L::BarrierBlock();
}

// ---- untimed: data, and what of it is wrong

template <class L>
__global__ void PutWord(u64* word, u64 value, int pe) {
  L::P(word, value, pe);
}

/// Word `i` of what PE `salt` (or test `salt`) sends.
__host__ __device__ inline u32 Pattern(u64 i, u32 salt) {
  return static_cast<u32>(i) * 2654435761u ^ salt * 0x9e3779b9u;
}
/// As numbers whose sums over some PEs are exact.
__host__ __device__ inline float PatternNumber(u64 i, u32 salt) {
  return static_cast<float>(Pattern(i, salt) % 1024);
}

/// A chain through all of `count` words, a power of two: `chain[i]` is the index after `i`.
__host__ __device__ inline u64 NextInChain(u64 i, u64 count) {
  return (i * 1664525 + 1013904223) % count;
}

template <class F>
__device__ void ForEach(u64 count, F f) {
  for (u64 i = blockIdx.x * u64{blockDim.x} + threadIdx.x; i < count;
       i += u64{gridDim.x} * blockDim.x) {
    f(i);
  }
}
static __global__ void Fill(u32* words, u64 count, u32 salt) {
  ForEach(count, [=](u64 i) { words[i] = Pattern(i, salt); });
}
static __global__ void FillNumbers(float* numbers, u64 count, u32 salt) {
  ForEach(count, [=](u64 i) { numbers[i] = PatternNumber(i, salt); });
}
static __global__ void FillChain(u64* chain, u64 count) {
  ForEach(count, [=](u64 i) { chain[i] = NextInChain(i, count); });
}
/// The pattern from its word `first` on.
static __global__ void CountWrong(const u32* words, u64 count, u64 first, u32 salt, u64* wrong) {
  ForEach(count, [=](u64 i) {
    if (words[i] != Pattern(first + i, salt)) atomicAdd(wrong, 1);
  });
}
static __global__ void CountOther(const u32* words, u64 count, u32 expected, u64* wrong) {
  ForEach(count, [=](u64 i) {
    if (words[i] != expected) atomicAdd(wrong, 1);
  });
}
/// What a collective leaves at PE `my_pe` of `n_pes`; PE p's source was filled with `salt + p`.
template <Collective C>
__global__ void CountWrongOf(const u32* words, u64 per_pe, u32 salt, u32 my_pe, u32 n_pes,
                             u64* wrong) {
  const bool is_of_all = C == Collective::kFCollect || C == Collective::kAllToAll;
  ForEach(is_of_all ? per_pe * n_pes : per_pe, [=](u64 i) {
    u32 expected = 0;
    const u32 from = static_cast<u32>(i / per_pe);
    if (C == Collective::kBroadcast) expected = Pattern(i, salt);
    if (C == Collective::kFCollect) expected = Pattern(i % per_pe, salt + from);
    if (C == Collective::kAllToAll) expected = Pattern(my_pe * per_pe + i % per_pe, salt + from);
    if (C == Collective::kSumReduce) {
      float sum = 0;
      for (u32 pe = 0; pe < n_pes; ++pe) sum += PatternNumber(i, salt + pe);
      expected = __float_as_uint(sum);
    }
    if (words[i] != expected) atomicAdd(wrong, 1);
  });
}
/// Keeps the GPU busy, so that its clock is up.
static __global__ void Spin(u64 ns) {
  const u64 end = NowNs() + ns;
  while (NowNs() < end) {
  }
}

}  // namespace mori::bench
