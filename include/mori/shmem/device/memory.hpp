// System-scope loads, stores, fences and atomics, 32 and 64 bit.
//
// NVIDIA: inline PTX for each of them, since compilers drop scope or order of the generic forms
// (docs/device.md). AMD: scoped builtins, and a hard wait after a release fence, which compilers
// drop (written, not compiled). Host: the compiler's atomics.
#pragma once

#include "mori/shmem/device/platform.hpp"

namespace mori::shmem::device {

struct alignas(16) Vector16 {
  u32 x, y, z, w;
};

#if defined(MORI_DEVICE_NVPTX)

// Atomics acquire and release.
#define MORI_PTX_ATOMIC(name, instruction, type, letter)          \
  MORI_DEVICE_FN type name(type* p, type v) {                     \
    type old;                                                     \
    asm volatile("atom.acq_rel.sys." instruction " %0, [%1], %2;" \
                 : "=" letter(old)                                \
                 : "l"(p), letter(v)                              \
                 : "memory");                                     \
    return old;                                                   \
  }
#define MORI_PTX_WORD(type, bits, letter)                                                   \
  MORI_DEVICE_FN type LoadRelaxed(const type* p) {                                          \
    type v;                                                                                 \
    asm volatile("ld.relaxed.sys.b" bits " %0, [%1];" : "=" letter(v) : "l"(p) : "memory"); \
    return v;                                                                               \
  }                                                                                         \
  MORI_DEVICE_FN type LoadAcquire(const type* p) {                                          \
    type v;                                                                                 \
    asm volatile("ld.acquire.sys.b" bits " %0, [%1];" : "=" letter(v) : "l"(p) : "memory"); \
    return v;                                                                               \
  }                                                                                         \
  MORI_DEVICE_FN void StoreRelaxed(type* p, type v) {                                       \
    asm volatile("st.relaxed.sys.b" bits " [%0], %1;" ::"l"(p), letter(v) : "memory");      \
  }                                                                                         \
  MORI_DEVICE_FN void StoreRelease(type* p, type v) {                                       \
    asm volatile("st.release.sys.b" bits " [%0], %1;" ::"l"(p), letter(v) : "memory");      \
  }                                                                                         \
  MORI_DEVICE_FN type CompareSwap(type* p, type expected, type v) {                         \
    type old;                                                                               \
    asm volatile("atom.acq_rel.sys.cas.b" bits " %0, [%1], %2, %3;"                         \
                 : "=" letter(old)                                                          \
                 : "l"(p), letter(expected), letter(v)                                      \
                 : "memory");                                                               \
    return old;                                                                             \
  }                                                                                         \
  MORI_PTX_ATOMIC(FetchAdd, "add.u" bits, type, letter)                                     \
  MORI_PTX_ATOMIC(FetchAnd, "and.b" bits, type, letter)                                     \
  MORI_PTX_ATOMIC(FetchOr, "or.b" bits, type, letter)                                       \
  MORI_PTX_ATOMIC(FetchXor, "xor.b" bits, type, letter)                                     \
  MORI_PTX_ATOMIC(Swap, "exch.b" bits, type, letter)
MORI_PTX_WORD(u32, "32", "r")
MORI_PTX_WORD(u64, "64", "l")
#undef MORI_PTX_WORD
#undef MORI_PTX_ATOMIC

/// What this thread, and who synchronised with it, stored before is visible to all of the system
/// before what it stores after. Cumulative: a barrier of the block and one thread's fence serve the
/// block.
MORI_DEVICE_FN void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/// The same, and in one order with all other such fences.
MORI_DEVICE_FN void FenceSequential() { asm volatile("fence.sc.sys;" ::: "memory"); }

MORI_DEVICE_FN Vector16 LoadVector(const Vector16* p) {
  Vector16 v;
  asm volatile("ld.relaxed.sys.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
MORI_DEVICE_FN void StoreVector(Vector16* p, const Vector16& v) {
  asm volatile("st.relaxed.sys.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
/// A short pause in a loop that waits.
MORI_DEVICE_FN void Relax() { asm volatile("nanosleep.u32 20;" ::: "memory"); }
[[noreturn]] MORI_DEVICE_FN void Trap() {
  asm volatile("trap;");
  __builtin_unreachable();
}

#else

#if defined(MORI_DEVICE_AMDGCN)
MORI_DEVICE_FN void Drain() {
#if defined(__GFX12__)
  asm volatile("s_wait_loadcnt 0x0\n\ts_wait_storecnt 0x0" ::: "memory");
#elif defined(__GFX10__) || defined(__GFX11__)
  asm volatile("s_waitcnt vmcnt(0)\n\ts_waitcnt_vscnt null, 0x0" ::: "memory");
#else
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}
#define MORI_SCOPED(name, ...) __scoped_atomic_##name(__VA_ARGS__, __MEMORY_SCOPE_SYSTEM)
MORI_DEVICE_FN void FenceSystem() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
  Drain();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
}
MORI_DEVICE_FN void FenceSequential() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
  Drain();
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
}
MORI_DEVICE_FN void Relax() { __builtin_amdgcn_s_sleep(1); }
#else
#define MORI_SCOPED(name, ...) __atomic_##name(__VA_ARGS__)
MORI_DEVICE_FN void FenceSystem() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
MORI_DEVICE_FN void FenceSequential() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MORI_DEVICE_FN void Relax() {}
#endif

template <typename T>
MORI_DEVICE_FN T LoadRelaxed(const T* p) {
  return MORI_SCOPED(load_n, const_cast<T*>(p), __ATOMIC_RELAXED);
}
template <typename T>
MORI_DEVICE_FN T LoadAcquire(const T* p) {
  return MORI_SCOPED(load_n, const_cast<T*>(p), __ATOMIC_ACQUIRE);
}
template <typename T>
MORI_DEVICE_FN void StoreRelaxed(T* p, T v) {
  MORI_SCOPED(store_n, p, v, __ATOMIC_RELAXED);
}
template <typename T>
MORI_DEVICE_FN void StoreRelease(T* p, T v) {
  FenceSystem();
  MORI_SCOPED(store_n, p, v, __ATOMIC_RELAXED);
}
template <typename T>
MORI_DEVICE_FN T FetchAdd(T* p, T v) {
  return MORI_SCOPED(fetch_add, p, v, __ATOMIC_ACQ_REL);
}
template <typename T>
MORI_DEVICE_FN T FetchAnd(T* p, T v) {
  return MORI_SCOPED(fetch_and, p, v, __ATOMIC_ACQ_REL);
}
template <typename T>
MORI_DEVICE_FN T FetchOr(T* p, T v) {
  return MORI_SCOPED(fetch_or, p, v, __ATOMIC_ACQ_REL);
}
template <typename T>
MORI_DEVICE_FN T FetchXor(T* p, T v) {
  return MORI_SCOPED(fetch_xor, p, v, __ATOMIC_ACQ_REL);
}
template <typename T>
MORI_DEVICE_FN T Swap(T* p, T v) {
  return MORI_SCOPED(exchange_n, p, v, __ATOMIC_ACQ_REL);
}
template <typename T>
MORI_DEVICE_FN T CompareSwap(T* p, T expected, T v) {
  MORI_SCOPED(compare_exchange_n, p, &expected, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
#undef MORI_SCOPED

MORI_DEVICE_FN Vector16 LoadVector(const Vector16* p) { return *p; }
MORI_DEVICE_FN void StoreVector(Vector16* p, const Vector16& v) { *p = v; }
[[noreturn]] MORI_DEVICE_FN void Trap() { __builtin_trap(); }

#endif

}  // namespace mori::shmem::device
