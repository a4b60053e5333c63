// The library's own kernels: what the host puts on a stream, and what it cannot do by itself on
// memory of a device. The library finds them by name (src/shmem/library_kernels.cpp).
//
// Those of a grid share the puts of a collective among all blocks; the last block to be done meets
// the other PEs.
#include "mori/shmem/device/collectives.hpp"

#if !defined(__CUDACC__) || defined(__clang__)
#define __global__ __attribute__((global))
#endif
#define MORI_KERNEL extern "C" __global__ void

namespace mori::shmem::device {

#if defined(MORI_DEVICE_NVPTX)
MORI_DEVICE_FN u32 BlockInGrid() {
  u32 v;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(v));
  return v;
}
MORI_DEVICE_FN u32 BlocksInGrid() {
  u32 v;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(v));
  return v;
}
#elif defined(MORI_DEVICE_AMDGCN)
MORI_DEVICE_FN u32 BlockInGrid() { return __builtin_amdgcn_workgroup_id_x(); }
MORI_DEVICE_FN u32 BlocksInGrid() {
  return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
#else
MORI_DEVICE_FN u32 BlockInGrid() { return 0; }
MORI_DEVICE_FN u32 BlocksInGrid() { return 1; }
#endif

/// For kernels that are launched early: lets the next such kernel be made ready, then waits for what
/// was on the stream before.
MORI_DEVICE_FN void AwaitStream() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// All threads of the launch. They cannot meet: only what needs no `Sync` is shared by it.
struct Grid {
  static constexpr bool kIsOneThread = false;
  static constexpr int kBatch = 8;
  static MORI_DEVICE_FN u32 Rank() { return BlockInGrid() * ThreadsInBlock() + ThreadInBlock(); }
  static MORI_DEVICE_FN u32 Size() { return BlocksInGrid() * ThreadsInBlock(); }
};

/// The end of a grid's puts: the last block to come here meets the other PEs.
MORI_DEVICE_FN void MeetAfterGrid() {
  if (BlocksInGrid() == 1) return Meet<Block>();
  BlockSync();
  if (ThreadInBlock() != 0) return;
  u64* done = &SyncWordsOf(MyPe())->blocks_done;
  FenceRelease();  // pairs with the fence of the last block, behind the same word
  if (FetchAdd(done, u64{1}) + 1 < BlocksInGrid()) return;
  FenceSystem();
  StoreRelaxed(done, u64{0});  // for the next kernel of the stream
  Meet<Thread>();
}

/// One atomic, by its place in `detail::AtomicOp`. Words of 32 bits travel in the low half.
template <typename T>
MORI_DEVICE_FN T DoAtomic(int operation, T* word, T value, T expected) {
  switch (operation) {
    case 0: return LoadAcquire(word);
    case 1: StoreRelease(word, value); return 0;
    case 2: return FetchAdd(word, value);
    case 3: return FetchAnd(word, value);
    case 4: return FetchOr(word, value);
    case 5: return FetchXor(word, value);
    case 6: return Swap(word, value);
    default: return CompareSwap(word, expected, value);
  }
}

}  // namespace mori::shmem::device

using namespace mori::shmem::device;

MORI_KERNEL MoriShmemMeet() {
  AwaitStream();
  Meet<Warp>();
}
/// The same for few PEs.
MORI_KERNEL MoriShmemMeetFew(const MeetArguments few) {
  AwaitStream();
  MeetBy<Warp>(few.my_pe, few.n_pes, [&](u32 pe) { return few.sync[pe]; });
}

MORI_KERNEL MoriShmemSignal(u64* sig_addr, u64 signal, int op, int pe) {
  PostSignal(sig_addr, signal, static_cast<Signal>(op), pe);
}

MORI_KERNEL MoriShmemWait(const u64* sig_addr, int compare, u64 value) {
  SignalWaitUntil<Thread>(sig_addr, static_cast<Compare>(compare), value);
}

MORI_KERNEL MoriShmemFence() { FenceRelease(); }

/// On a word that is mapped here, with the order that the host's atomics have.
MORI_KERNEL MoriShmemAtomic(int operation, int bytes, void* word, u64 value, u64 expected,
                            u64* result) {
  FenceSystem();
  *result = bytes == 8 ? DoAtomic(operation, static_cast<u64*>(word), value, expected)
                       : DoAtomic(operation, static_cast<u32*>(word), static_cast<u32>(value),
                                  static_cast<u32>(expected));
  FenceSystem();
}

MORI_KERNEL MoriShmemBroadcast(void* dest, const void* source, u64 bytes, int root) {
  AwaitStream();
  BroadcastPuts<Grid>(dest, source, bytes, root);
  MeetAfterGrid();
}
MORI_KERNEL MoriShmemFCollect(void* dest, const void* source, u64 bytes) {
  AwaitStream();
  FCollectPuts<Grid>(dest, source, bytes);
  MeetAfterGrid();
}
MORI_KERNEL MoriShmemAllToAll(void* dest, const void* source, u64 bytes) {
  AwaitStream();
  AllToAllPuts<Grid>(dest, source, bytes);
  MeetAfterGrid();
}

// Reductions. One block sees by itself that all sources are ready; before more, a kernel has.
#define MORI_REDUCE(name, Op, type)                                           \
  MORI_KERNEL MoriShmem##Op##_##name(void* dest, const void* source, u64 n) { \
    AwaitStream();                                                            \
    if (BlocksInGrid() == 1) Meet<Block>();                                   \
    ReducePuts<Grid, Op>(static_cast<type*>(dest), static_cast<const type*>(source), n); \
    MeetAfterGrid();                                                          \
  }
#define MORI_REDUCE_EACH(name, type) \
  MORI_REDUCE(name, Sum, type)       \
  MORI_REDUCE(name, Min, type)       \
  MORI_REDUCE(name, Max, type)
MORI_REDUCE_EACH(i32, i32)
MORI_REDUCE_EACH(u32, u32)
MORI_REDUCE_EACH(i64, i64)
MORI_REDUCE_EACH(u64, u64)
MORI_REDUCE_EACH(f32, float)
MORI_REDUCE_EACH(f64, double)
