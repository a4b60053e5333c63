// Ways for the threads of a block to copy global memory to global memory on a GPU of NVIDIA: what
// a put and a get on the device copy with is chosen by this.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 benchmarks/gpu/copy_candidates.cu -o copy_candidates -lcuda
//
//   copy_candidates                 from GPU 0 to itself
//   copy_candidates --peer 1        a put: GPU 0 copies to GPU 1
//   copy_candidates --get 1         a get: GPU 0 copies from GPU 1
//   copy_candidates --only bulk     the rows whose name has this in it
//
// A row is a candidate at a number of threads:
//   us_*      microseconds of one copy by one block, with what a blocking put adds: a barrier, the
//             first thread's fence.acq_rel.sys, a barrier. Timed inside the kernel, over many.
//   GBs_*     the same as 10^9 bytes a second; 8 and 132 blocks are timed by events around one
//             kernel of several copies, each block copying its share.
//   spill     bytes of local memory a thread takes: the candidate does not fit the registers that
//             so many threads leave each other.
//   order     whether another kernel, on the destination's GPU, that waits for a flag stored after
//             the fence sees each time the data that all threads stored just before the copy.
// Up to 16 MiB, the data stay in the second level cache of an H200, as those that a kernel just
// computed do.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace mori::bench {
namespace {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u64 kKiB = 1024;
constexpr u64 kMiB = 1024 * kKiB;
constexpr u64 kBuffer = 256 * kMiB;
constexpr u64 kGuard = 64 * kKiB;  // After the destination: no copy may touch it.
constexpr int kCleared = 0xee;
constexpr int kRepeats = 3;
constexpr u64 kInsideTarget = 2'000'000;  // Nanoseconds of one measurement inside a kernel.
constexpr u64 kStuck = 3'000'000'000;     // Nanoseconds after which a wait gives up.
constexpr double kBudget = 36;            // Seconds after which rows are left out.

constexpr u64 kSizes[] = {64, kKiB, 16 * kKiB, 256 * kKiB, 16 * kMiB};
constexpr u64 kOdd = 300 * kKiB + 5 * 16;  // Full of tails.
constexpr u64 kOrderBytes = 128 * kKiB;
constexpr u32 kOrderRounds = 200;

#define DEVICE_FN __device__ __forceinline__

// ---- Instructions

struct alignas(16) Vector16 {
  u32 x, y, z, w;
};

DEVICE_FN u64 Global(const void* p) { return __cvta_generic_to_global(p); }
DEVICE_FN u32 Shared(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

DEVICE_FN u64 Nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}
DEVICE_FN void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEVICE_FN void StoreRelaxed(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEVICE_FN u64 LoadAcquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

#define LOAD_VECTOR(instruction, address)                   \
  Vector16 v;                                               \
  asm volatile(instruction " {%0, %1, %2, %3}, [%4];"       \
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) \
               : "l"(address)                               \
               : "memory");                                 \
  return v
#define STORE_VECTOR(instruction, address)                                                \
  asm volatile(instruction " [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), \
               "r"(v.z), "r"(v.w)                                                         \
               : "memory")

DEVICE_FN Vector16 LoadRelaxed(const Vector16* p) { LOAD_VECTOR("ld.relaxed.sys.v4.b32", p); }
DEVICE_FN void StoreRelaxed(Vector16* p, const Vector16& v) {
  STORE_VECTOR("st.relaxed.sys.v4.b32", p);
}
DEVICE_FN Vector16 LoadWeak(const Vector16* p) {
  LOAD_VECTOR("ld.global.L1::no_allocate.v4.b32", Global(p));
}
DEVICE_FN void StoreWeak(Vector16* p, const Vector16& v) {
  STORE_VECTOR("st.global.v4.b32", Global(p));
}

/// Today's, on generic addresses.
struct Relaxed {
  static DEVICE_FN Vector16 Load(const Vector16* p) { return LoadRelaxed(p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) { StoreRelaxed(p, v); }
};
struct RelaxedGlobal {
  static DEVICE_FN Vector16 Load(const Vector16* p) {
    LOAD_VECTOR("ld.relaxed.sys.global.v4.b32", Global(p));
  }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) {
    STORE_VECTOR("st.relaxed.sys.global.v4.b32", Global(p));
  }
};
struct Weak {
  static DEVICE_FN Vector16 Load(const Vector16* p) { return LoadWeak(p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) { StoreWeak(p, v); }
};
/// What a get would use: its source is what others store to.
struct RelaxedToWeak {
  static DEVICE_FN Vector16 Load(const Vector16* p) { return LoadRelaxed(p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) { StoreWeak(p, v); }
};
struct WeakNoAllocate {
  static DEVICE_FN Vector16 Load(const Vector16* p) { return LoadWeak(p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) {
    STORE_VECTOR("st.global.L1::no_allocate.v4.b32", Global(p));
  }
};

/// Generic addresses, past the L1 cache: what PTX of any version has.
struct CacheGlobal {
  static DEVICE_FN Vector16 Load(const Vector16* p) { LOAD_VECTOR("ld.cg.v4.b32", p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) { StoreWeak(p, v); }
};
struct CacheGlobalBoth {
  static DEVICE_FN Vector16 Load(const Vector16* p) { LOAD_VECTOR("ld.cg.v4.b32", p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) {
    STORE_VECTOR("st.global.cg.v4.b32", Global(p));
  }
};
struct CacheGlobalToRelaxed {
  static DEVICE_FN Vector16 Load(const Vector16* p) { LOAD_VECTOR("ld.cg.v4.b32", p); }
  static DEVICE_FN void Store(Vector16* p, const Vector16& v) { StoreRelaxed(p, v); }
};

// ---- Scopes. A block's carries the most threads it is launched with, hence its registers.

struct Thread {
  static constexpr int kMost = 1;
  static DEVICE_FN u32 Rank() { return 0; }
  static DEVICE_FN u32 Size() { return 1; }
  static DEVICE_FN void Sync() {}
};
struct Warp {
  static constexpr int kMost = 32;
  static DEVICE_FN u32 Rank() { return threadIdx.x; }
  static DEVICE_FN u32 Size() { return 32; }
  static DEVICE_FN void Sync() { __syncwarp(); }
};
template <int kThreads>
struct Block {
  static constexpr int kMost = kThreads;
  static DEVICE_FN u32 Rank() { return threadIdx.x; }
  static DEVICE_FN u32 Size() { return blockDim.x; }
  static DEVICE_FN void Sync() { __syncthreads(); }
};

// ---- Candidates

/// What a row of no copy takes is the barriers' and the fence's.
struct Nothing {
  static constexpr int kDynamic = 0;
  template <typename Scope>
  static DEVICE_FN void Copy(u8*, const u8*, u64) {}
};

/// Every thread takes every `Size()`th 16 bytes, `kUnroll` at a time. Today's tail goes one by one,
/// each load's latency after the other's; a longer `kTail` loads so many before it stores.
template <typename Access, int kUnroll, int kTail = 1>
struct Plain {
  static constexpr int kDynamic = 0;
  template <typename Scope>
  static DEVICE_FN void Copy(u8* to_bytes, const u8* from_bytes, u64 bytes) {
    Vector16* const to = reinterpret_cast<Vector16*>(to_bytes);
    const Vector16* const from = reinterpret_cast<const Vector16*>(from_bytes);
    const u64 count = bytes / 16;
    const u64 size = Scope::Size();
    u64 i = Scope::Rank();
    for (; i + (kUnroll - 1) * size < count; i += kUnroll * size) {
      Vector16 words[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) words[k] = Access::Load(from + i + k * size);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) Access::Store(to + i + k * size, words[k]);
    }
    for (; i < count; i += kTail * size) {
      // In 32 bits, since registers are short: less than `kUnroll * size` words are left.
      const u32 left = static_cast<u32>(count - i);
      const u32 step = Scope::Size();
      Vector16 words[kTail];
#pragma unroll
      for (int k = 0; k < kTail; ++k) {
        if (k * step < left) words[k] = Access::Load(from + i + k * step);
      }
#pragma unroll
      for (int k = 0; k < kTail; ++k) {
        if (k * step < left) Access::Store(to + i + k * step, words[k]);
      }
    }
  }
};

/// One thread has the bulk copy engine move chunks through a ring of stages in shared memory.
///
/// A chunk's stage is loaded again `kLag` chunks after its store was issued, so that up to `kLag`
/// stores read shared memory while the thread goes on. Everything is set up and taken down in each
/// call, as a function that owns its static shared memory would have to.
template <int kStages, int kStageBytes, int kLag, bool kInDynamic, bool kFullFence = false>
struct Bulk {
  static_assert(kLag < kStages);
  static constexpr int kDynamic = kInDynamic ? kStages * kStageBytes : 0;

  static DEVICE_FN u32 Stages() {
    if constexpr (kInDynamic) {
      extern __shared__ __align__(128) u8 dynamic_stages[];
      return Shared(dynamic_stages);
    } else {
      __shared__ __align__(128) u8 static_stages[kStages * kStageBytes];
      return Shared(static_stages);
    }
  }

  static DEVICE_FN u32 SizeOf(u32 chunk, u64 bytes) {
    const u64 left = bytes - u64{chunk} * kStageBytes;
    return left < kStageBytes ? static_cast<u32>(left) : kStageBytes;
  }

  static DEVICE_FN void Load(u32 stage, u32 full, const u8* from, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(stage),
        "l"(Global(from)), "r"(bytes), "r"(full)
        : "memory");
  }
  static DEVICE_FN void Store(u8* to, u32 stage, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(Global(to)),
                 "r"(stage), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  static DEVICE_FN void WaitFull(u32 full, u32 parity) {
    for (u32 tries = 0;; ++tries) {
      u32 done;
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;\n"
          "}"
          : "=r"(done)
          : "r"(full), "r"(parity)
          : "memory");
      if (done != 0) return;
      if (tries == 1 << 24) asm volatile("trap;");
    }
  }

  template <typename Scope>
  static DEVICE_FN void Copy(u8* to, const u8* from, u64 bytes) {
    __shared__ u64 barriers[kStages];
    if (Scope::Rank() != 0) return;
    const u32 stages = Stages();
    const u32 full = Shared(barriers);
    const u32 chunks = static_cast<u32>((bytes + kStageBytes - 1) / kStageBytes);
    const u32 used = chunks < kStages ? chunks : kStages;
    for (u32 stage = 0; stage < used; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + stage * 8) : "memory");
    }
    // Show the engine the barriers, and the source as it was stored before the call: the caller
    // synchronised the scope, and one proxy fence after that serves it. It also orders the
    // destination's earlier generic accesses before the engine's. The fence of all state spaces
    // would do for both, but compiles to a fence of the GPU's scope (MEMBAR) besides.
    if constexpr (kFullFence) {
      asm volatile("fence.proxy.async;" ::: "memory");
    } else {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("fence.proxy.async.global;" ::: "memory");
    }
    for (u32 chunk = 0; chunk < used; ++chunk) {
      Load(stages + chunk * kStageBytes, full + chunk * 8, from + u64{chunk} * kStageBytes,
           SizeOf(chunk, bytes));
    }
    u32 stage = 0;
    u32 parity = 0;
    for (u32 chunk = 0; chunk < chunks; ++chunk) {
      // No proxy fence between load and store: the engine wrote and the engine reads.
      WaitFull(full + stage * 8, parity);
      Store(to + u64{chunk} * kStageBytes, stages + stage * kStageBytes, SizeOf(chunk, bytes));
      const u32 next = chunk + (kStages - kLag);
      if (chunk >= kLag && next < chunks) {
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLag) : "memory");
        const u32 free = stage >= kLag ? stage - kLag : stage + (kStages - kLag);
        Load(stages + free * kStageBytes, full + free * 8, from + u64{next} * kStageBytes,
             SizeOf(next, bytes));
      }
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    // Not .read: the writes are complete, and visible to this thread's generic accesses (completion
    // implies a proxy fence), so that its fence.acq_rel.sys covers them.
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    for (stage = 0; stage < used; ++stage) {
      asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(full + stage * 8) : "memory");
    }
  }
};

// ---- Kernels

struct Task {
  u8* to;
  const u8* from;
  u64 bytes;  // A multiple of 16, of all blocks together.
  u64 to_step;
  u64 from_step;
  u32 iterations;
  u64* nanoseconds;
};

template <typename Copier, typename Scope>
__global__ void __launch_bounds__(Scope::kMost) Run(const Task task) {
  const u64 even = (task.bytes + gridDim.x - 1) / gridDim.x;
  const u64 share = (even + 127) / 128 * 128;
  const u64 begin = min(share * blockIdx.x, task.bytes);
  const u64 bytes = min(share, task.bytes - begin);
  u8* to = task.to + begin;
  const u8* from = task.from + begin;
  Scope::Sync();
  const u64 start = Nanoseconds();
  for (u32 i = 0; i < task.iterations; ++i, to += task.to_step, from += task.from_step) {
    Copier::template Copy<Scope>(to, from, bytes);
    Scope::Sync();
    if (Scope::Rank() == 0) FenceSystem();
    Scope::Sync();
  }
  if (blockIdx.x == 0 && Scope::Rank() == 0) *task.nanoseconds = Nanoseconds() - start;
}

/// The source's `index`th word: no two are the same.
DEVICE_FN u32 Pattern(u64 index) {
  const u32 x = static_cast<u32>(index) * 2654435761u;
  return x ^ (x >> 15);
}

DEVICE_FN Vector16 PatternVector(u64 index) {
  return {Pattern(4 * index), Pattern(4 * index + 1), Pattern(4 * index + 2),
          Pattern(4 * index + 3)};
}

__global__ void Fill(u32* to, u64 words) {
  for (u64 i = blockIdx.x * u64{blockDim.x} + threadIdx.x; i < words;
       i += u64{gridDim.x} * blockDim.x) {
    to[i] = Pattern(i);
  }
}

/// Counts what differs: `words` of the source, and behind them the cleared guard.
__global__ void Compare(const u32* to, u64 words, u64 guard_words, u32* bad) {
  for (u64 i = blockIdx.x * u64{blockDim.x} + threadIdx.x; i < words + guard_words;
       i += u64{gridDim.x} * blockDim.x) {
    const u32 expected = i < words ? Pattern(i) : kCleared * 0x01010101u;
    if (to[i] != expected) atomicAdd(bad, 1);
  }
}

struct Delivery {
  Vector16* to;
  Vector16* from;
  u32 words;
  u32 rounds;
  u64* flag;
  u64* ack;
};

/// Every round, the scope stores other data to the source, copies them, and stores a flag.
template <typename Copier, typename Scope>
__global__ void __launch_bounds__(Scope::kMost) Deliver(const Delivery task) {
  const u64 start = Nanoseconds();
  for (u32 round = 0; round < task.rounds; ++round) {
    for (u32 i = Scope::Rank(); i < task.words; i += Scope::Size()) {
      task.from[i] = PatternVector(u64{round} * task.words + i);
    }
    Scope::Sync();
    Copier::template Copy<Scope>(reinterpret_cast<u8*>(task.to),
                                 reinterpret_cast<const u8*>(task.from), u64{task.words} * 16);
    Scope::Sync();
    if (Scope::Rank() == 0) {
      FenceSystem();
      StoreRelaxed(task.flag, round + 1);
      while (LoadAcquire(task.ack) <= round && Nanoseconds() - start < kStuck) {
      }
    }
    Scope::Sync();
  }
}

struct Watched {
  u32 bad;
  u32 stuck;
};

/// The other side of the flag, another kernel.
__global__ void Watch(const Delivery task, Watched* watched) {
  const u64 start = Nanoseconds();
  for (u32 round = 0; round < task.rounds; ++round) {
    bool stuck = false;
    if (threadIdx.x == 0) {
      while (LoadAcquire(task.flag) <= round && !stuck) stuck = Nanoseconds() - start > kStuck;
    }
    if (__syncthreads_or(stuck) != 0) {
      if (threadIdx.x == 0) watched->stuck = 1;
      return;
    }
    // From the end, which was stored last.
    for (u32 i = threadIdx.x; i < task.words; i += blockDim.x) {
      const u32 at = task.words - 1 - i;
      const Vector16 v = task.to[at];
      const Vector16 expected = PatternVector(u64{round} * task.words + at);
      if (v.x != expected.x || v.y != expected.y || v.z != expected.z || v.w != expected.w) {
        atomicAdd(&watched->bad, 1);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      FenceSystem();
      StoreRelaxed(task.ack, round + 1);
    }
  }
}

// ---- Latencies of single operations. Each returns 0, of what it read: the next address depends on
// it, so that loads and atomics do not overlap.

#define STORE_AND(name, after)                                                             \
  struct name {                                                                            \
    static DEVICE_FN u64 Do(u64* p) {                                                      \
      asm volatile("st.relaxed.sys.b64 [%0], %1;" after ::"l"(p), "l"(u64{1}) : "memory"); \
      return 0;                                                                            \
    }                                                                                      \
  };
STORE_AND(StoreOnly, "")
STORE_AND(StoreFenceSystem, " fence.acq_rel.sys;")
STORE_AND(StoreFenceSequential, " fence.sc.sys;")
STORE_AND(StoreFenceGpu, " fence.acq_rel.gpu;")
struct FenceOnly {
  static DEVICE_FN u64 Do(u64*) {
    FenceSystem();
    return 0;
  }
};
struct StoreRelease {
  static DEVICE_FN u64 Do(u64* p) {
    asm volatile("st.release.sys.b64 [%0], %1;" ::"l"(p), "l"(u64{1}) : "memory");
    return 0;
  }
};
#define ADD(name, instruction)                                                   \
  struct name {                                                                  \
    static DEVICE_FN u64 Do(u64* p) {                                            \
      u64 old;                                                                   \
      asm volatile(instruction " %0, [%1], 1;" : "=l"(old) : "l"(p) : "memory"); \
      return old >> 63;                                                          \
    }                                                                            \
  };
ADD(AddRelaxed, "atom.relaxed.sys.add.u64")
ADD(AddRelaxedGlobal, "atom.relaxed.sys.global.add.u64")
ADD(AddRelaxedGpu, "atom.relaxed.gpu.global.add.u64")
ADD(AddAcquireRelease, "atom.acq_rel.sys.add.u64")
ADD(AddAcquireReleaseGlobal, "atom.acq_rel.sys.global.add.u64")
// Of a word that stays 0, and whole: of one whose bits are not all used, ptxas loads a half.
#define LOAD(name, instruction)                                                  \
  struct name {                                                                  \
    static DEVICE_FN u64 Do(u64* p) {                                            \
      u64 v;                                                                     \
      asm volatile(instruction " %0, [%1 + 64];" : "=l"(v) : "l"(p) : "memory"); \
      return v;                                                                  \
    }                                                                            \
  };
LOAD(LoadRelaxedOnce, "ld.relaxed.sys.b64")
LOAD(LoadAcquireOnce, "ld.acquire.sys.b64")

template <typename Operation>
__global__ void Chain(u64* p, u32 iterations, u64* nanoseconds) {
  const u64 start = Nanoseconds();
  u64* at = p;
  for (u32 i = 0; i < iterations; ++i) at = p + Operation::Do(at);
  *nanoseconds = Nanoseconds() - start + static_cast<u64>(at - p);
}

// ---- Host

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(error));
  std::fflush(stdout);
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

/// The rest of the scope is about this GPU.
class On {
 public:
  explicit On(int device) { CHECK(cudaSetDevice(device)); }
  ~On() { CHECK(cudaSetDevice(0)); }
  On(const On&) = delete;
  On& operator=(const On&) = delete;
};

template <typename T>
T* Allocate(int device, u64 bytes) {
  const On on(device);
  void* p = nullptr;
  CHECK(cudaMalloc(&p, bytes));
  CHECK(cudaMemset(p, 0, bytes));
  CHECK(cudaDeviceSynchronize());
  return static_cast<T*>(p);
}

template <typename T>
T Fetch(const T* from) {
  T value;
  CHECK(cudaMemcpy(&value, from, sizeof(T), cudaMemcpyDefault));
  return value;
}

struct Row {
  std::string name;
  const char* scope;
  void (*run)(Task);
  void (*deliver)(Delivery);
  int threads;
  int dynamic_bytes;
  bool copies;
};

class Rows {
 public:
  template <typename Copier>
  void Block(const std::string& name) {
    Add<Copier, bench::Block<512>>(name, "block", 256);
    Add<Copier, bench::Block<512>>(name, "block", 512);
    Add<Copier, bench::Block<1024>>(name, "block", 1024);
  }
  template <typename Copier>
  void Warp(const std::string& name) {
    Add<Copier, bench::Warp>(name, "warp", 32);
  }
  template <typename Copier>
  void Thread(const std::string& name) {
    Add<Copier, bench::Thread>(name, "thread", 1);
  }
  template <typename Copier>
  void BlockAndWarp(const std::string& name) {
    Block<Copier>(name);
    Warp<Copier>(name);
  }
  template <int kStages, int kStageKiB, int kLag, bool kInDynamic, bool kFullFence = false>
  void Ring() {
    BlockAndWarp<Bulk<kStages, static_cast<int>(kStageKiB * kKiB), kLag, kInDynamic, kFullFence>>(
        "bulk/" + std::to_string(kStages) + "x" + std::to_string(kStageKiB) + "K/" +
        std::to_string(kLag) + (kInDynamic ? "/dyn" : "") + (kFullFence ? "/full" : ""));
  }
  const std::vector<Row>& all() const { return rows_; }

 private:
  template <typename Copier, typename Scope>
  void Add(const std::string& name, const char* scope, int threads) {
    rows_.push_back({name, scope, Run<Copier, Scope>, Deliver<Copier, Scope>, threads,
                     Copier::kDynamic, !std::is_same_v<Copier, Nothing>});
  }
  std::vector<Row> rows_;
};

std::vector<Row> AllRows() {
  Rows rows;
  rows.BlockAndWarp<Nothing>("nothing");
  rows.Thread<Nothing>("nothing");
  rows.BlockAndWarp<Plain<Relaxed, 8>>("relaxed/8");
  rows.BlockAndWarp<Plain<Relaxed, 4>>("relaxed/4");
  rows.BlockAndWarp<Plain<Relaxed, 16>>("relaxed/16");
  rows.BlockAndWarp<Plain<Relaxed, 8, 4>>("relaxed/8t4");
  rows.BlockAndWarp<Plain<Relaxed, 8, 8>>("relaxed/8t8");
  rows.BlockAndWarp<Plain<RelaxedGlobal, 8>>("relaxed.global/8");
  rows.BlockAndWarp<Plain<Weak, 4>>("weak/4");
  rows.BlockAndWarp<Plain<Weak, 8>>("weak/8");
  rows.BlockAndWarp<Plain<Weak, 16>>("weak/16");
  rows.BlockAndWarp<Plain<Weak, 8, 4>>("weak/8t4");
  rows.BlockAndWarp<Plain<Weak, 8, 8>>("weak/8t8");
  rows.BlockAndWarp<Plain<RelaxedToWeak, 8>>("relaxed-weak/8");
  rows.BlockAndWarp<Plain<WeakNoAllocate, 8>>("weak-noalloc/8");
  rows.BlockAndWarp<Plain<CacheGlobal, 8, 4>>("cg-weak/8t4");
  rows.BlockAndWarp<Plain<CacheGlobalBoth, 8, 4>>("cg-cg/8t4");
  rows.BlockAndWarp<Plain<CacheGlobalToRelaxed, 8, 4>>("cg-relaxed/8t4");
  rows.Thread<Plain<Relaxed, 8>>("relaxed/8");
  rows.Thread<Plain<Relaxed, 16>>("relaxed/16");
  rows.Thread<Plain<Weak, 8>>("weak/8");
  rows.Thread<Plain<Weak, 16>>("weak/16");
  rows.Ring<3, 8, 1, false>();
  rows.Ring<4, 8, 1, false>();
  rows.Ring<4, 8, 1, false, true>();
  rows.Ring<4, 8, 2, false>();
  rows.Ring<4, 8, 3, false>();
  rows.Ring<5, 8, 2, false>();
  rows.Ring<8, 4, 2, false>();
  rows.Ring<8, 4, 4, false>();
  rows.Ring<8, 4, 6, false>();
  rows.Ring<16, 2, 4, false>();
  rows.Ring<2, 16, 1, false>();
  rows.Ring<6, 16, 2, true>();
  rows.Ring<6, 16, 4, true>();
  rows.Ring<12, 16, 4, true>();
  rows.Ring<12, 16, 8, true>();
  rows.Ring<6, 32, 2, true>();
  rows.Ring<3, 64, 1, true>();
  return rows.all();
}

/// What one multiprocessor can do by halves: only store, or only load.
template <bool kStores>
__global__ void Half(Vector16* to, const Vector16* from, u64 count) {
  Vector16 v = {1, 2, 3, 4};
  u32 sum = 0;
  for (u64 i = threadIdx.x; i + 7 * blockDim.x < count; i += 8 * blockDim.x) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if constexpr (kStores) {
        StoreWeak(to + i + k * blockDim.x, v);
      } else {
        sum += LoadRelaxed(from + i + k * blockDim.x).x;
      }
    }
  }
  if (sum == 0x12345) to[0] = v;
}

class Bench {
 public:
  void Halves() {
    for (const bool stores : {true, false}) {
      const u64 bytes = u64{64} << 20;
      float milliseconds = 0;
      for (int round = 0; round < 2; ++round) {
        CHECK(cudaEventRecord(start_, stream_));
        auto* const kernel = stores ? Half<true> : Half<false>;
        kernel<<<1, 1024, 0, stream_>>>(reinterpret_cast<Vector16*>(to_),
                                        reinterpret_cast<const Vector16*>(from_), bytes / 16);
        CHECK(cudaEventRecord(stop_, stream_));
        CHECK(cudaEventSynchronize(stop_));
        CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
      }
      std::printf("limit of one block of 1024 threads that only %s: %.1f GB/s\n",
                  stores ? "stores" : "loads", static_cast<double>(bytes) / milliseconds / 1e6);
    }
  }

  Bench(int from_device, int to_device) : to_device_(to_device) {
    from_ = Allocate<u8>(from_device, kBuffer + kOrderBytes);
    to_ = Allocate<u8>(to_device, kBuffer + kGuard);
    flag_ = Allocate<u64>(to_device, 256);
    source_word_ = Allocate<u64>(from_device, 256);
    ack_ = Allocate<u64>(0, 256);
    nanoseconds_ = Allocate<u64>(0, 256);
    bad_ = Allocate<u32>(to_device, 256);
    watched_ = Allocate<Watched>(to_device, 256);
    {
      const On on(from_device);
      Fill<<<1024, 256>>>(reinterpret_cast<u32*>(from_), kBuffer / 4);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
    }
    {
      const On on(to_device);
      CHECK(cudaStreamCreateWithFlags(&watcher_, cudaStreamNonBlocking));
    }
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&start_));
    CHECK(cudaEventCreate(&stop_));
  }

  bool wrong() const { return wrong_; }

  /// Brings the GPU to its clock, and both buffers' pages into its translation caches.
  void WarmUp() {
    const Row row{"", "", Run<Plain<Weak, 8>, Block<1024>>, nullptr, 1024, 0, true};
    Launch(row, 132, Timed(kBuffer, 1000));
    CHECK(cudaStreamSynchronize(stream_));
  }

  void Measure(const Row& row) {
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, row.run));
    CHECK(cudaFuncSetAttribute(row.run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               row.dynamic_bytes));
    CHECK(cudaFuncSetAttribute(row.deliver, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               row.dynamic_bytes));
    std::printf("copy %-18s %-6s %7d %4d %5zu %6zu", row.name.c_str(), row.scope, row.threads,
                attributes.numRegs, attributes.localSizeBytes,
                attributes.sharedSizeBytes + row.dynamic_bytes);
    std::vector<double> rates;
    Verify(row, 1, kOdd, 5);
    for (const u64 bytes : kSizes) {
      const u64 estimate = Verify(row, 1, bytes, bytes < kMiB ? 5 : 2);
      const double each = Inside(row, bytes, estimate);
      std::printf(" %9.3f", each / 1000);
      std::fflush(stdout);
      if (bytes >= 256 * kKiB) rates.push_back(static_cast<double>(bytes) / each);
    }
    if (row.threads > 1) {
      rates.push_back(Spread(row, 8, 16 * kMiB, 20));
      rates.push_back(Spread(row, 132, kBuffer, 10));
    }
    for (int i = 0; i < 4; ++i) {
      if (i < static_cast<int>(rates.size()) && row.copies) {
        std::printf(" %8.2f", rates[i]);
      } else {
        std::printf(" %8s", "-");
      }
    }
    std::printf("  %s\n", row.copies ? Order(row) : "-");
    std::fflush(stdout);
  }

  template <typename Operation>
  void Latency(const char* name) {
    std::printf("latency %-36s %12.1f %12.1f\n", name, LatencyAt<Operation>(flag_),
                LatencyAt<Operation>(source_word_));
    std::fflush(stdout);
  }

 private:
  Task Timed(u64 bytes, u32 iterations) const {
    return {to_, from_, bytes, 0, 0, iterations, nanoseconds_};
  }

  void Launch(const Row& row, int blocks, const Task& task) {
    row.run<<<blocks, row.threads, row.dynamic_bytes, stream_>>>(task);
    Check(cudaGetLastError(), row.name.c_str());
  }

  u64 Finish(const Row& row) {
    Check(cudaStreamSynchronize(stream_), row.name.c_str());
    return Fetch(nanoseconds_);
  }

  void Clear(u64 bytes) {
    const On on(to_device_);
    CHECK(cudaMemset(to_, kCleared, bytes));
    CHECK(cudaMemset(bad_, 0, sizeof(u32)));
    CHECK(cudaMemset(watched_, 0, sizeof(Watched)));
    CHECK(cudaMemset(flag_, 0, sizeof(u64)));
    CHECK(cudaDeviceSynchronize());
  }

  /// Copies `iterations` neighbours, so that what an iteration left in shared memory is not what
  /// the next should bring. Returns nanoseconds of each.
  u64 Verify(const Row& row, int blocks, u64 bytes, u32 iterations) {
    const u64 all = bytes * iterations;
    Clear(all + kGuard);
    Task task = Timed(bytes, iterations);
    task.to_step = task.from_step = bytes;
    Launch(row, blocks, task);
    const u64 each = Finish(row) / iterations;
    if (row.copies) {
      const On on(to_device_);
      Compare<<<1024, 256>>>(reinterpret_cast<const u32*>(to_), all / 4, kGuard / 4, bad_);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      const u32 bad = Fetch(bad_);
      if (bad != 0) {
        std::printf("\nWRONG %s %d threads, %d blocks, %llu bytes: %u words\n", row.name.c_str(),
                    row.threads, blocks, bytes, bad);
        std::fflush(stdout);
        wrong_ = true;
      }
    }
    return each;
  }

  static double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  /// Nanoseconds of one copy by one block.
  double Inside(const Row& row, u64 bytes, u64 estimate) {
    // An estimate from a cold start is too long: small copies have a least number.
    const u64 least = bytes <= 16 * kKiB ? 300 : 1;
    const u64 fitting = kInsideTarget / std::max<u64>(estimate, 1);
    const u32 iterations = static_cast<u32>(std::clamp<u64>(fitting, least, 2000));
    std::vector<double> each;
    for (int i = 0; i < kRepeats; ++i) {
      Launch(row, 1, Timed(bytes, iterations));
      each.push_back(static_cast<double>(Finish(row)) / iterations);
    }
    return Median(each);
  }

  /// Bytes per nanosecond of several blocks.
  double Spread(const Row& row, int blocks, u64 bytes, u32 iterations) {
    Verify(row, blocks, bytes, 1);
    std::vector<double> rates;
    for (int i = 0; i < kRepeats; ++i) {
      CHECK(cudaEventRecord(start_, stream_));
      Launch(row, blocks, Timed(bytes, iterations));
      CHECK(cudaEventRecord(stop_, stream_));
      Finish(row);
      float milliseconds = 0;
      CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
      rates.push_back(static_cast<double>(bytes) * iterations / (milliseconds * 1e6));
    }
    return Median(rates);
  }

  const char* Order(const Row& row) {
    Clear(kOrderBytes);
    CHECK(cudaMemset(ack_, 0, sizeof(u64)));
    CHECK(cudaDeviceSynchronize());
    // Of its own, since the other source is to stay what it is.
    const Delivery task{reinterpret_cast<Vector16*>(to_),
                        reinterpret_cast<Vector16*>(from_ + kBuffer),
                        static_cast<u32>(kOrderBytes / 16),
                        kOrderRounds,
                        flag_,
                        ack_};
    {
      const On on(to_device_);
      Watch<<<1, 1024, 0, watcher_>>>(task, watched_);
      CHECK(cudaGetLastError());
    }
    row.deliver<<<1, row.threads, row.dynamic_bytes, stream_>>>(task);
    Check(cudaGetLastError(), row.name.c_str());
    Check(cudaStreamSynchronize(stream_), row.name.c_str());
    {
      const On on(to_device_);
      CHECK(cudaStreamSynchronize(watcher_));
    }
    const Watched watched = Fetch(watched_);
    if (watched.bad != 0) {
      wrong_ = true;
      return "WRONG";
    }
    return watched.stuck != 0 ? "stuck" : "ok";
  }

  template <typename Operation>
  double LatencyAt(u64* p) {
    constexpr u32 kIterations = 2000;
    std::vector<double> each;
    for (int i = 0; i <= kRepeats; ++i) {
      Chain<Operation><<<1, 1, 0, stream_>>>(p, kIterations, nanoseconds_);
      CHECK(cudaGetLastError());
      CHECK(cudaStreamSynchronize(stream_));
      // The first one is the caches' and the loader's.
      if (i > 0) each.push_back(static_cast<double>(Fetch(nanoseconds_)) / kIterations);
    }
    return Median(each);
  }

  const int to_device_;
  u8* from_ = nullptr;
  u8* to_ = nullptr;
  u64* flag_ = nullptr;         // Beside the destination.
  u64* source_word_ = nullptr;  // Beside the source.
  u64* ack_ = nullptr;
  u64* nanoseconds_ = nullptr;
  u32* bad_ = nullptr;
  Watched* watched_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaStream_t watcher_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  bool wrong_ = false;
};

struct Arguments {
  bool peer = false;
  bool get = false;
  std::string only;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--peer") {
      arguments.peer = value == "1";
    } else if (name == "--get") {
      arguments.get = value == "1";
    } else if (name == "--only") {
      arguments.only = value;
    } else {
      std::fprintf(stderr, "usage: copy_candidates [--peer 1 | --get 1] [--only name]\n");
      std::exit(2);
    }
  }
  return arguments;
}

int Main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  // Loading a kernel can wait for those that run, and one of those for the one that is loaded.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if (arguments.peer || arguments.get) {
    for (const int device : {1, 0}) {
      CHECK(cudaSetDevice(device));
      CHECK(cudaDeviceEnablePeerAccess(1 - device, 0));
    }
  }
  CHECK(cudaSetDevice(0));
  const int from_device = arguments.get ? 1 : 0;
  const int to_device = arguments.peer ? 1 : 0;
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("# %s, %d multiprocessors, GPU %d to GPU %d, run by GPU 0\n", properties.name,
              properties.multiProcessorCount, from_device, to_device);

  Bench bench(from_device, to_device);
  bench.WarmUp();
  bench.Halves();

  std::printf(
      "# latency: nanoseconds of one thread, of a word beside the destination and beside "
      "the source\n");
  std::printf("#       %-36s %12s %12s\n", "operation", "destination", "source");
  bench.Latency<StoreOnly>("st.relaxed.sys");
  bench.Latency<StoreRelease>("st.release.sys");
  bench.Latency<FenceOnly>("fence.acq_rel.sys");
  bench.Latency<StoreFenceSystem>("st.relaxed.sys+fence.acq_rel.sys");
  bench.Latency<StoreFenceSequential>("st.relaxed.sys+fence.sc.sys");
  bench.Latency<StoreFenceGpu>("st.relaxed.sys+fence.acq_rel.gpu");
  bench.Latency<AddRelaxed>("atom.relaxed.sys.add.u64");
  bench.Latency<AddRelaxedGlobal>("atom.relaxed.sys.global.add.u64");
  bench.Latency<AddRelaxedGpu>("atom.relaxed.gpu.global.add.u64");
  bench.Latency<AddAcquireRelease>("atom.acq_rel.sys.add.u64");
  bench.Latency<AddAcquireReleaseGlobal>("atom.acq_rel.sys.global.add.u64");
  bench.Latency<LoadAcquireOnce>("ld.acquire.sys");
  bench.Latency<LoadRelaxedOnce>("ld.relaxed.sys");

  std::printf(
      "# relaxed: ld.relaxed.sys, st.relaxed.sys (/8 is today's); weak: "
      "ld.global.L1::no_allocate, st.global;\n"
      "# /N: 16-byte words of a thread at a time; tT: its tail T at a time; "
      "bulk/SxB/L: S stages of B, loaded again L later;\n"
      "# dyn: in dynamic shared memory; full: fence.proxy.async of all state spaces\n");
  std::printf("#    %-18s %-6s %7s %4s %5s %6s %9s %9s %9s %9s %9s %8s %8s %8s %8s  %s\n",
              "candidate", "scope", "threads", "regs", "spill", "shared", "us_64", "us_1K",
              "us_16K", "us_256K", "us_16M", "GBs_256K", "GBs_16M", "GBs_8x", "GBs_132x", "order");
  int left_out = 0;
  for (const Row& row : AllRows()) {
    if (row.name.find(arguments.only) == std::string::npos) continue;
    if (seconds() > kBudget) {
      ++left_out;
      continue;
    }
    bench.Measure(row);
  }
  if (left_out > 0) std::printf("LEFT OUT %d rows: out of time\n", left_out);
  std::printf("# %.1f seconds%s\n", seconds(), bench.wrong() ? ", WRONG" : ", all copies right");
  return bench.wrong() ? 1 : 0;
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) { return mori::bench::Main(argc, argv); }
