// The library's own kernels: what the host puts on a stream, and what it cannot do by itself on
// memory of a device. The library finds them by name (src/shmem/library_kernels.cpp).
//
// Those of a grid share the puts of a collective among all blocks. With few blocks and PEs, each
// block meets the blocks of the same number; otherwise the last block to be done meets all PEs.
#include "kernels/exchange.cuh"

#if !defined(__CUDACC__) && !defined(__CUDA__) && !defined(__HIP__)
#define __global__  // for a host's compiler: a kernel is a function of one thread
#elif !defined(__CUDACC__) || defined(__clang__)
#define __global__ __attribute__((global))
#endif
#define MORI_KERNEL extern "C" __global__ void
// An argument that is read where it is: indexed by a PE, it would be copied to the stack otherwise.
#if defined(__CUDACC__) && !defined(__clang__)
#define MORI_ARGUMENT const __grid_constant__
#else
#define MORI_ARGUMENT const
#endif

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

/// For kernels that are launched early: waits for what was on the stream before, then lets the next
/// such kernel be made ready. In the other order more than two of them could be there, and those that only
/// wait could fill the device.
MORI_DEVICE_FN void AwaitStream() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// All threads of the launch. They cannot meet: only what needs no `Sync` is shared by it.
struct Grid {
  static constexpr bool kIsOneThread = false;
  static constexpr int kBatch = 8;
  static MORI_DEVICE_FN u32 Rank() { return BlockInGrid() * ThreadsInBlock() + ThreadInBlock(); }
  static MORI_DEVICE_FN u32 Size() { return BlocksInGrid() * ThreadsInBlock(); }
};

/// By the thread that leads a scope.
MORI_DEVICE_COLD_FN Met LeadRemoteMeetingOnStream() {
  return MeetInRounds(MyWords(), &SyncWords::stream_epochs, FaultCall::kBarrierOnStream, true);
}
/// Where some PEs are remote. What was put to these before is there.
template <typename Scope>
MORI_DEVICE_OUTLINE_FN void MeetAllRemotely() {
  Scope::Sync();
  const Met met = Scope::Rank() == 0 ? LeadRemoteMeetingOnStream() : Met::kAll;
  if (!Scope::SyncAny(met != Met::kAll)) return;
  if (Scope::SyncAny(met == Met::kInVain)) FailMet(FaultCall::kBarrierOnStream, 0, 0);
  EndMeeting(MyWords(), 0);
  FailThread();  // the host is told by who serves the ring
}
/// All PEs, of a world of any size.
template <typename Scope>
MORI_DEVICE_FN void MeetAll() {
  if (HasRemotePes()) return MeetAllRemotely<Scope>();
  MeetOnStream<Scope>(static_cast<u32>(MyPe()), static_cast<u32>(NPes()), 0,
                      [](u32 pe) { return NearSyncWords(static_cast<int>(pe))->stream_epochs; });
}
/// This block and those of the same number.
MORI_DEVICE_FN void MeetBlocks(const FewPes& few) {
  MeetOnStream<Block>(few.my_pe, few.n_pes, BlockInGrid(),
                      [&](u32 pe) { return few.sync[pe]->block_epochs[BlockInGrid()]; });
}

/// The end of a grid's puts, where blocks do not meet: the last to come here meets the other PEs.
MORI_DEVICE_FN void MeetAfterGrid() {
  SyncWords* mine = MyWords();
  if (BlocksInGrid() == 1) {
    MeetAll<Block>();
    if (ThreadInBlock() == 0) EndMeeting(mine, 0);
    return;
  }
  BlockSync();
  if (ThreadInBlock() != 0) return;
  u64* done = &mine->blocks_done;
  FenceRelease();  // pairs with the fence of the last block, behind the same word
  if (FetchAdd(done, u64{1}) + 1 < BlocksInGrid()) return;
  FenceSystem();
  StoreRelaxed(done, u64{0});  // for the next kernel of the stream
  MeetAll<Thread>();
  EndMeeting(mine, 0);
}

/// The start of a grid's work: each block that meets others is in a meeting, or else block 0 for all.
MORI_DEVICE_FN void BeginGrid(const FewPes& few) {
  AwaitStream();
  if (few.n_pes == 0) RequireState();
  if (ThreadInBlock() != 0 || (few.n_pes == 0 && BlockInGrid() != 0)) return;
  BeginMeeting(few.n_pes != 0 ? few.sync[few.my_pe] : MyWords(), BlockInGrid());
}
MORI_DEVICE_FN void EndBlock(const FewPes& few) {
  if (ThreadInBlock() == 0) EndMeeting(few.sync[few.my_pe], BlockInGrid());
}
MORI_DEVICE_FN void EndGrid(const FewPes& few) {
  if (few.n_pes != 0) {
    MeetBlocks(few);
    EndBlock(few);
  } else {
    MeetAfterGrid();
  }
}

/// By its place in `ReduceOp`.
struct AnyOp {
  int op;
  template <typename T>
  MORI_DEVICE_FN T Of(T a, T b) const {
    return op == 0 ? Sum::Of(a, b) : op == 1 ? Min::Of(a, b) : Max::Of(a, b);
  }
};

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

using namespace mori::shmem::device;  // NOLINT(google-global-names-in-headers): a source, which a test includes

MORI_KERNEL MoriShmemMeet() {
  AwaitStream();
  RequireState();
  SyncWords* mine = MyWords();
  const bool leads = Warp::Rank() == 0;
  if (leads) BeginMeeting(mine, 0);
  MeetAll<Warp>();
  if (leads) EndMeeting(mine, 0);
}
/// The same for few PEs, a thread each: none of them waits for another, and nothing but what came
/// before on the stream is to be fenced.
MORI_KERNEL MoriShmemMeetFew(MORI_ARGUMENT FewPes few) {
  AwaitStream();
  const u32 pe = ThreadInBlock();
  SyncWords* mine = few.sync[few.my_pe];
  if (pe == few.my_pe) BeginMeeting(mine, 0);  // it has nobody to meet
  if (pe < few.n_pes && pe != few.my_pe) {
    const u64 meeting = LoadRelaxed(&mine->meetings_sent[pe]) + 1;
    FenceRelease();  // pairs with the acquiring load on `pe`
    StoreRelaxed(&few.sync[pe]->meetings[few.my_pe], meeting);
    StoreRelaxed(&mine->meetings_sent[pe], meeting);
    if (!Await([&](auto order) { return Load(&mine->meetings[pe], order) >= meeting; }))
      FailMet(FaultCall::kBarrierOnStream, 0, 0);
  }
  Warp::Sync();
  if (pe == few.my_pe) EndMeeting(mine, 0);
}

MORI_KERNEL MoriShmemSignal(u64* sig_addr, u64 signal, int op, int pe) {
  PostSignal(sig_addr, signal, static_cast<Signal>(op), pe);
}

// Puts and gets where load and store do not reach, by the ring.
MORI_KERNEL MoriShmemRemotePut(void* dest, const void* source, u64 bytes, int pe) {
  RequireState();
  if (RemotePut(RingOp::kPut, pe, dest, source, bytes)) FailThread();
}
MORI_KERNEL MoriShmemRemoteGet(void* dest, const void* source, u64 bytes, int pe) {
  RequireState();
  if (RemoteGet(RingOp::kGet, pe, dest, source, bytes)) FailThread();
}
MORI_KERNEL MoriShmemRemotePutSignal(void* dest, const void* source, u64 bytes, u64* sig_addr,
                                     u64 signal, int op, int pe) {
  RequireState();
  if (RemotePutSignal(pe, dest, source, bytes, sig_addr, RingAtomicOf(static_cast<Signal>(op)),
                      signal, true))
    FailThread();
}
MORI_KERNEL MoriShmemRemoteQuiet() { Quiet<Thread>(); }

MORI_KERNEL MoriShmemWait(const u64* sig_addr, int compare, u64 value) {
  SignalWaitUntil<Thread>(sig_addr, static_cast<Compare>(compare), value);
}

MORI_KERNEL MoriShmemFence() { FenceSequential(); }

/// On a word that is mapped here, with the order that the host's atomics have.
MORI_KERNEL MoriShmemAtomic(int operation, int bytes, void* word, u64 value, u64 expected,
                            u64* result) {
  FenceSystem();
  *result = bytes == 8 ? DoAtomic(operation, static_cast<u64*>(word), value, expected)
                       : DoAtomic(operation, static_cast<u32*>(word), static_cast<u32>(value),
                                  static_cast<u32>(expected));
  FenceSystem();
}

// `few.n_pes` is 0 where blocks do not meet.

MORI_KERNEL MoriShmemBroadcast(MORI_ARGUMENT FewPes few, void* dest, const void* source, u64 bytes,
                               int root) {
  BeginGrid(few);
  BroadcastPuts<Grid>(dest, source, bytes, root);
  EndGrid(few);
}
MORI_KERNEL MoriShmemFCollect(MORI_ARGUMENT FewPes few, void* dest, const void* source, u64 bytes) {
  BeginGrid(few);
  FCollectPuts<Grid>(dest, source, bytes);
  EndGrid(few);
}
MORI_KERNEL MoriShmemAllToAll(MORI_ARGUMENT FewPes few, void* dest, const void* source, u64 bytes) {
  BeginGrid(few);
  AllToAllPuts<Grid>(dest, source, bytes);
  EndGrid(few);
}

/// Any of the three where some PEs are remote: as `CollectPuts()`.
MORI_KERNEL MoriShmemCollect(void* dest, const void* source, u64 bytes, u64 stride) {
  AwaitStream();
  RequireState();
  if (Grid::Rank() == 0) BeginMeeting(MyWords(), 0);
  CollectPuts<Grid>(dest, source, bytes, stride);
  MeetAfterGrid();
}

MORI_KERNEL MoriShmemSmallBroadcast(MORI_ARGUMENT FewPes few, void* dest, void* source, u64 bytes,
                                    int root) {
  AwaitStream();
  SmallBroadcast(few, static_cast<u8*>(dest), static_cast<u8*>(source), bytes,
                 static_cast<u32>(root));
}
MORI_KERNEL MoriShmemSmallGather(MORI_ARGUMENT FewPes few, void* dest, void* source, u64 bytes,
                                 u64 stride) {
  AwaitStream();
  SmallGather(few, static_cast<u8*>(dest), static_cast<u8*>(source), bytes, stride);
}

/// Each PE combines all elements by itself, 16 bytes a thread; `dest` is written to when all PEs have
/// read `source`, which may be the same. Both are aligned to 16 bytes.
template <typename T>
MORI_DEVICE_FN void ReduceAtOnce(const FewPes& few, AnyOp op, T* dest, const T* source, u64 count) {
  constexpr u64 kWide = sizeof(Vector16) / sizeof(T);
  const u64 vectors = count / kWide;
  const u64 rank = Grid::Rank();
  const u64 element = vectors * kWide + (rank - vectors);  // of those behind the last vector
  Vector16 vector[1]{};
  WordOf<T> word[1]{};
  MeetBlocks(few);  // what others had on their streams before is there
  if (rank < vectors) {
    CombineUnits<Vector16, T, 1>(op, {source + rank * kWide}, vector);
  } else if (element < count) {
    CombineUnits<WordOf<T>, T, 1>(op, {source + element}, word);
  }
  MeetBlocks(few);
  EndBlock(few);
  if (rank < vectors) {
    StoreBulk(reinterpret_cast<Vector16*>(dest) + rank, vector[0]);
  } else if (element < count) {
    StoreBulk(AsWord(dest + element), word[0]);
  }
}

/// Where some PEs are remote, by one block.
template <typename T>
MORI_DEVICE_FN void ReduceRemotelyOnStream(AnyOp op, T* dest, const T* source, u64 count) {
  AwaitStream();
  RequireState();
  if (ThreadInBlock() == 0) BeginMeeting(MyWords(), 0);
  MeetAll<Block>();  // the sources are ready
  ReduceInBatches<Block>(op, dest, source, count, Scratch::kStreams);
  MeetAll<Block>();
  if (ThreadInBlock() == 0) EndMeeting(MyWords(), 0);
}

// Reductions. Where blocks do not meet, a kernel before this one has seen that all sources are
// ready.
#define MORI_REDUCE(name, type)                                                                   \
  MORI_KERNEL MoriShmemReduce_##name(MORI_ARGUMENT FewPes few, void* dest, const void* source, u64 count, \
                                     int op) {                                                    \
    BeginGrid(few);                                                                               \
    if (few.n_pes != 0) MeetBlocks(few);                                                          \
    ReducePuts<Grid>(AnyOp{op}, static_cast<type*>(dest), static_cast<const type*>(source),       \
                     count);                                                                      \
    EndGrid(few);                                                                                 \
  }                                                                                               \
  MORI_KERNEL MoriShmemReduceAtOnce_##name(MORI_ARGUMENT FewPes few, void* dest,                  \
                                           const void* source, u64 count, int op) {               \
    BeginGrid(few);                                                                               \
    ReduceAtOnce(few, AnyOp{op}, static_cast<type*>(dest), static_cast<const type*>(source),      \
                 count);                                                                          \
  }                                                                                               \
  MORI_KERNEL MoriShmemSmallReduce_##name(MORI_ARGUMENT FewPes few, void* dest, const void* source,       \
                                          u64 count, int op) {                                    \
    AwaitStream();                                                                                \
    SmallReduce(few, AnyOp{op}, static_cast<type*>(dest), static_cast<const type*>(source),       \
                count);                                                                           \
  }                                                                                               \
  MORI_KERNEL MoriShmemRemoteReduce_##name(void* dest, const void* source, u64 count, int op) {   \
    ReduceRemotelyOnStream(AnyOp{op}, static_cast<type*>(dest), static_cast<const type*>(source), \
                           count);                                                                \
  }
MORI_REDUCE(i32, i32)
MORI_REDUCE(u32, u32)
MORI_REDUCE(i64, i64)
MORI_REDUCE(u64, u64)
MORI_REDUCE(f32, float)
MORI_REDUCE(f64, double)
