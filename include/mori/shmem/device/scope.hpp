// Who takes part in an operation: one thread, a warp, or a block. Every thread of the scope makes
// the call, with the same arguments.
#pragma once

#include "mori/shmem/device/platform.hpp"

namespace mori::shmem::device {

#if defined(MORI_DEVICE_NVPTX)
MORI_DEVICE_FN u32 SpecialRegister(int which) {
  u32 v = 0;
  switch (which) {
    case 0: asm("mov.u32 %0, %%tid.x;" : "=r"(v)); break;
    case 1: asm("mov.u32 %0, %%tid.y;" : "=r"(v)); break;
    case 2: asm("mov.u32 %0, %%tid.z;" : "=r"(v)); break;
    case 3: asm("mov.u32 %0, %%ntid.x;" : "=r"(v)); break;
    case 4: asm("mov.u32 %0, %%ntid.y;" : "=r"(v)); break;
    case 5: asm("mov.u32 %0, %%ntid.z;" : "=r"(v)); break;
    default: asm("mov.u32 %0, %%laneid;" : "=r"(v)); break;
  }
  return v;
}
MORI_DEVICE_FN u32 ThreadInBlock() {
  return SpecialRegister(0) +
         SpecialRegister(3) * (SpecialRegister(1) + SpecialRegister(4) * SpecialRegister(2));
}
MORI_DEVICE_FN u32 ThreadsInBlock() {
  return SpecialRegister(3) * SpecialRegister(4) * SpecialRegister(5);
}
MORI_DEVICE_FN u32 LaneId() { return SpecialRegister(6); }
MORI_DEVICE_FN u32 WarpSize() { return 32; }
MORI_DEVICE_FN void BlockSync() { asm volatile("barrier.sync.aligned 0;" ::: "memory"); }
MORI_DEVICE_FN bool BlockSyncAny(bool mine) {
  u32 any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; "
      "barrier.red.or.aligned.pred q, 0, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(static_cast<u32>(mine))
      : "memory");
  return any != 0;
}
MORI_DEVICE_FN void WarpSync(u32 lanes) {
  const u32 mask = ~u32{0} >> (32 - lanes);
  asm volatile("bar.warp.sync %0;" ::"r"(mask) : "memory");
}
MORI_DEVICE_FN bool WarpSyncAny(u32 lanes, bool mine) {
  WarpSync(lanes);
  const u32 mask = ~u32{0} >> (32 - lanes);
  u32 any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, %2; selp.u32 %0, 1, 0, q; "
      "}"
      : "=r"(any)
      : "r"(static_cast<u32>(mine)), "r"(mask)
      : "memory");
  return any != 0;
}
#elif defined(MORI_DEVICE_AMDGCN)
MORI_DEVICE_FN u32 ThreadInBlock() {
  return __builtin_amdgcn_workitem_id_x() +
         __builtin_amdgcn_workgroup_size_x() *
             (__builtin_amdgcn_workitem_id_y() +
              __builtin_amdgcn_workgroup_size_y() * __builtin_amdgcn_workitem_id_z());
}
MORI_DEVICE_FN u32 ThreadsInBlock() {
  return static_cast<u32>(__builtin_amdgcn_workgroup_size_x()) *
         __builtin_amdgcn_workgroup_size_y() * __builtin_amdgcn_workgroup_size_z();
}
MORI_DEVICE_FN u32 WarpSize() { return __builtin_amdgcn_wavefrontsize(); }
MORI_DEVICE_FN u32 LaneId() {
  const u32 low = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
  return WarpSize() == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, low) : low;
}
// Every thread drains its own stores first: a barrier of the block does not wait for them.
MORI_DEVICE_FN void BlockSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  Drain();
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
MORI_DEVICE_FN bool BlockSyncAny(bool mine) {
  static __attribute__((shared)) u32 any;
  any = 0;  // by all: the wave of thread 0 may have ended by a fault
  BlockSync();
  if (mine) any = 1;
  BlockSync();
  const bool is_any = any != 0;
  BlockSync();  // all have seen it before it is used again
  return is_any;
}
MORI_DEVICE_FN void WarpSync(u32) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  Drain();
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
MORI_DEVICE_FN bool WarpSyncAny(u32 lanes, bool mine) {
  WarpSync(lanes);
#if defined(__GFX9__)
  return __builtin_amdgcn_ballot_w64(mine) != 0;
#else
  return __builtin_amdgcn_ballot_w32(mine) != 0;
#endif
}
#else
MORI_DEVICE_FN u32 ThreadInBlock() { return 0; }
MORI_DEVICE_FN u32 ThreadsInBlock() { return 1; }
MORI_DEVICE_FN u32 LaneId() { return 0; }
MORI_DEVICE_FN u32 WarpSize() { return 1; }
MORI_DEVICE_FN void BlockSync() {}
MORI_DEVICE_FN bool BlockSyncAny(bool mine) { return mine; }
MORI_DEVICE_FN void WarpSync(u32) {}
MORI_DEVICE_FN bool WarpSyncAny(u32, bool mine) { return mine; }
#endif

/// How many lanes this thread's warp has: of the last one of a block that is no whole number of
/// warps, fewer. `WarpSync()` and `WarpSyncAny()` are of that many.
MORI_DEVICE_FN u32 LanesInWarp() {
  const u32 behind = ThreadsInBlock() - (ThreadInBlock() - LaneId());
  return behind < WarpSize() ? behind : WarpSize();
}

// `Sync`: all threads meet, and what each had done before is visible to all; `SyncAny` also says
// whether one of them gave true. Threads that have ended are not waited for.
// `kBatch`: vectors that a thread copies at a time. Measured: more do not help a block.
struct Thread {
  static constexpr bool kIsOneThread = true;
  static constexpr int kBatch = 8;
  static MORI_DEVICE_FN u32 Rank() { return 0; }
  static MORI_DEVICE_FN u32 Size() { return 1; }
  static MORI_DEVICE_FN void Sync() {}
  static MORI_DEVICE_FN bool SyncAny(bool mine) { return mine; }
};
/// All lanes of the warp that the block has are active.
struct Warp {
  static constexpr bool kIsOneThread = false;
  static constexpr int kBatch = 8;
  static MORI_DEVICE_FN u32 Rank() { return LaneId(); }
  static MORI_DEVICE_FN u32 Size() { return LanesInWarp(); }
  static MORI_DEVICE_FN void Sync() { WarpSync(LanesInWarp()); }
  static MORI_DEVICE_FN bool SyncAny(bool mine) { return WarpSyncAny(LanesInWarp(), mine); }
};
/// The lanes of a warp make the call at one place of the program, as `__syncthreads()` demands.
/// Barriers that let lanes come one by one would need more code, and synccheck reports them as
/// threads that do not come.
struct Block {
  static constexpr bool kIsOneThread = false;
  static constexpr int kBatch = 8;
  static MORI_DEVICE_FN u32 Rank() { return ThreadInBlock(); }
  static MORI_DEVICE_FN u32 Size() { return ThreadsInBlock(); }
  static MORI_DEVICE_FN void Sync() { BlockSync(); }
  static MORI_DEVICE_FN bool SyncAny(bool mine) { return BlockSyncAny(mine); }
};

}  // namespace mori::shmem::device
