// System-scope loads, stores, fences and atomics, 32 and 64 bit. Atomics are relaxed: they order
// nothing but their word.
//
// NVIDIA: inline PTX for each of them, since compilers drop scope or order of the generic forms
// (docs/device.md). AMD: scoped builtins, and a hard wait after a release fence, which compilers
// drop (compiled, not run). Host: the compiler's atomics.
#pragma once

#include "mori/shmem/device/platform.hpp"

#if !defined(MORI_DEVICE_NVPTX) && !defined(MORI_DEVICE_AMDGCN)
extern "C" int sched_yield() noexcept;  // as <sched.h> has it
#endif

namespace mori::shmem::device {

struct alignas(16) Vector16 {
  u32 x, y, z, w;
};

#if defined(MORI_DEVICE_NVPTX)

#define MORI_PTX_ATOMIC(name, instruction, type, letter)                 \
  MORI_DEVICE_FN type name(type* p, type v) {                            \
    type old;                                                            \
    asm volatile("atom.relaxed.sys.global." instruction " %0, [%1], %2;" \
                 : "=" letter(old)                                       \
                 : "l"(p), letter(v)                                     \
                 : "memory");                                            \
    return old;                                                          \
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
    asm volatile("atom.relaxed.sys.global.cas.b" bits " %0, [%1], %2, %3;"                  \
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

/// What this thread, and who synchronised with it, did before is visible to all of the system
/// before what it stores after. Cumulative: a barrier of the block and one thread's fence serve the
/// block. It leaves the L1 cache as it is, so what is loaded after may be older; PTX ISA 8.6,
/// sm_90.
MORI_DEVICE_FN void FenceRelease() {
#if __CUDA_ARCH__ >= 900 && defined(__CUDACC_VER_MAJOR__) && \
    __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
  asm volatile("fence.release.sys;" ::: "memory");
#else
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}
/// The same, and what is loaded after is no older than what was loaded before.
MORI_DEVICE_FN void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/// Both, and it has one place in an order of all such fences: what is loaded after is what the
/// others had stored before theirs, or they load what this thread had stored before its own.
MORI_DEVICE_FN void FenceSequential() { asm volatile("fence.sc.sys;" ::: "memory"); }

/// Lets others have the multiprocessor for a moment, shorter than a word takes from a peer.
MORI_DEVICE_FN void Sleep() { asm volatile("nanosleep.u32 40;"); }

// Bulk data, which fences order. `LoadBulk` is for what this PE has; `LoadFresh` passes by the L1
// cache, which the stores of others do not reach.
#define MORI_PTX_BULK(type, bits, letter)                                          \
  MORI_DEVICE_FN type LoadBulk(const type* p) {                                    \
    type v;                                                                        \
    asm volatile("ld.cg.b" bits " %0, [%1];" : "=" letter(v) : "l"(p) : "memory"); \
    return v;                                                                      \
  }                                                                                \
  MORI_DEVICE_FN type LoadFresh(const type* p) { return LoadRelaxed(p); }          \
  MORI_DEVICE_FN void StoreBulk(type* p, type v) {                                 \
    asm volatile("st.b" bits " [%0], %1;" ::"l"(p), letter(v) : "memory");         \
  }
MORI_PTX_BULK(u32, "32", "r")
MORI_PTX_BULK(u64, "64", "l")
#undef MORI_PTX_BULK
#define MORI_PTX_SMALL(name, instruction, type)                           \
  MORI_DEVICE_FN type name(const type* p) {                               \
    u32 v;                                                                \
    asm volatile(instruction " %0, [%1];" : "=r"(v) : "l"(p) : "memory"); \
    return static_cast<type>(v);                                          \
  }
MORI_PTX_SMALL(LoadBulk, "ld.cg.u8", u8)
MORI_PTX_SMALL(LoadFresh, "ld.relaxed.sys.u8", u8)
MORI_PTX_SMALL(LoadBulk, "ld.cg.u16", u16)
MORI_PTX_SMALL(LoadFresh, "ld.relaxed.sys.u16", u16)
#undef MORI_PTX_SMALL
MORI_DEVICE_FN void StoreBulk(u8* p, u8 v) {
  asm volatile("st.u8 [%0], %1;" ::"l"(p), "r"(static_cast<u32>(v)) : "memory");
}
MORI_DEVICE_FN void StoreBulk(u16* p, u16 v) {
  asm volatile("st.u16 [%0], %1;" ::"l"(p), "r"(static_cast<u32>(v)) : "memory");
}
// The PTX ISA takes a vector access for one of each word, in any order.
#define MORI_PTX_LOAD_VECTOR(name, instruction)               \
  MORI_DEVICE_FN Vector16 name(const Vector16* p) {           \
    Vector16 v;                                               \
    asm volatile(instruction " {%0, %1, %2, %3}, [%4];"       \
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) \
                 : "l"(p)                                     \
                 : "memory");                                 \
    return v;                                                 \
  }
MORI_PTX_LOAD_VECTOR(LoadBulk, "ld.cg.v4.b32")
MORI_PTX_LOAD_VECTOR(LoadFresh, "ld.relaxed.sys.v4.b32")
#undef MORI_PTX_LOAD_VECTOR
MORI_DEVICE_FN void StoreBulk(Vector16* p, const Vector16& v) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
/// Two words at a multiple of 16 bytes, to memory of the host: who acquires the first has the
/// second. One store, which goes over the bus as a whole: `ST.E.128.STRONG.SYS`.
MORI_DEVICE_FN void StorePair(u64* p, u64 first, u64 second) {
  asm volatile("st.relaxed.sys.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(first), "l"(second)
               : "memory");
}
/// The four bytes that begin `bits` bits into [low, high], of 0 to 31.
MORI_DEVICE_FN u32 Funnel(u32 low, u32 high, u32 bits) {
  u32 v;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(bits));
  return v;
}
// Constant memory, which does not change while a kernel runs: not volatile, so that what is read
// of it can be kept, beyond fences and all else that clobbers memory.
#define MORI_PTX_CONSTANT(type, bits, letter)                                   \
  MORI_DEVICE_FN type LoadConstant(const type* p) {                             \
    type v;                                                                     \
    asm("{ .reg .u64 a; cvta.to.const.u64 a, %1; ld.const.b" bits " %0, [a]; }" \
        : "=" letter(v)                                                         \
        : "l"(p));                                                              \
    return v;                                                                   \
  }
MORI_PTX_CONSTANT(u32, "32", "r")
MORI_PTX_CONSTANT(u64, "64", "l")
#undef MORI_PTX_CONSTANT
/// Whether there is memory that not only this thread, or its block, has.
MORI_DEVICE_FN bool IsGlobal(u64 address) {
  u32 is_global;
  asm("{ .reg .pred p; isspacep.global p, %1; selp.u32 %0, 1, 0, p; }"
      : "=r"(is_global)
      : "l"(address));
  return address != 0 && is_global != 0;
}
/// Ends the kernel with a message: cudaErrorAssert, and a line on standard error.
[[noreturn]] MORI_DEVICE_COLD_FN void Fail(const char* message) {
  __assertfail(message, "mori/shmem/device", 0, "MORI Shmem", 1);
  asm volatile("trap;");
  __builtin_unreachable();
}
/// Ends the calling thread alone; who meets its scope later meets without it.
[[noreturn]] MORI_DEVICE_COLD_FN void FailThread() {
  asm volatile("exit;");
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
MORI_DEVICE_FN void FenceRelease() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
  Drain();
}
MORI_DEVICE_FN void FenceSystem() {
  FenceRelease();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
}
MORI_DEVICE_FN void FenceAcquire() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
MORI_DEVICE_FN void FenceSequential() {
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
  Drain();
  FenceAcquire();
}
MORI_DEVICE_FN void Sleep() { __builtin_amdgcn_s_sleep(1); }
MORI_DEVICE_FN bool IsGlobal(u64 address) {
  const void* pointer = reinterpret_cast<const void*>(address);
  return address != 0 && !__builtin_amdgcn_is_shared(pointer) &&
         !__builtin_amdgcn_is_private(pointer);
}
#else
#define MORI_SCOPED(name, ...) __atomic_##name(__VA_ARGS__)
MORI_DEVICE_FN void FenceRelease() { __atomic_thread_fence(__ATOMIC_RELEASE); }
MORI_DEVICE_FN void FenceSystem() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
MORI_DEVICE_FN void FenceAcquire() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
MORI_DEVICE_FN void FenceSequential() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MORI_DEVICE_FN void Sleep() { ::sched_yield(); }
MORI_DEVICE_FN bool IsGlobal(u64 address) { return address != 0; }
#endif

// The thread sanitizer knows no fences: under it each access to a word does by itself what a fence
// beside it would.
#if defined(__SANITIZE_THREAD__)
#define MORI_RELAXED(order_beside_a_fence) order_beside_a_fence
#else
#define MORI_RELAXED(order_beside_a_fence) __ATOMIC_RELAXED
#endif
template <typename T>
MORI_DEVICE_FN T LoadRelaxed(const T* p) {
  return MORI_SCOPED(load_n, const_cast<T*>(p), MORI_RELAXED(__ATOMIC_ACQUIRE));
}
template <typename T>
MORI_DEVICE_FN T LoadAcquire(const T* p) {
  return MORI_SCOPED(load_n, const_cast<T*>(p), __ATOMIC_ACQUIRE);
}
template <typename T>
MORI_DEVICE_FN void StoreRelaxed(T* p, T v) {
  MORI_SCOPED(store_n, p, v, MORI_RELAXED(__ATOMIC_RELEASE));
}
template <typename T>
MORI_DEVICE_FN void StoreRelease(T* p, T v) {
#if defined(MORI_DEVICE_AMDGCN)
  FenceRelease();
  MORI_SCOPED(store_n, p, v, __ATOMIC_RELAXED);
#else
  MORI_SCOPED(store_n, p, v, __ATOMIC_RELEASE);
#endif
}
/// Two words at a multiple of 16 bytes, to memory of the host: who acquires the first has the
/// second.
MORI_DEVICE_FN void StorePair(u64* p, u64 first, u64 second) {
  StoreRelaxed(p + 1, second);
  StoreRelease(p, first);
}
template <typename T>
MORI_DEVICE_FN T FetchAdd(T* p, T v) {
  return MORI_SCOPED(fetch_add, p, v, MORI_RELAXED(__ATOMIC_ACQ_REL));
}
template <typename T>
MORI_DEVICE_FN T FetchAnd(T* p, T v) {
  return MORI_SCOPED(fetch_and, p, v, MORI_RELAXED(__ATOMIC_ACQ_REL));
}
template <typename T>
MORI_DEVICE_FN T FetchOr(T* p, T v) {
  return MORI_SCOPED(fetch_or, p, v, MORI_RELAXED(__ATOMIC_ACQ_REL));
}
template <typename T>
MORI_DEVICE_FN T FetchXor(T* p, T v) {
  return MORI_SCOPED(fetch_xor, p, v, MORI_RELAXED(__ATOMIC_ACQ_REL));
}
template <typename T>
MORI_DEVICE_FN T Swap(T* p, T v) {
  return MORI_SCOPED(exchange_n, p, v, MORI_RELAXED(__ATOMIC_ACQ_REL));
}
template <typename T>
MORI_DEVICE_FN T CompareSwap(T* p, T expected, T v) {
  MORI_SCOPED(compare_exchange_n, p, &expected, v, false, MORI_RELAXED(__ATOMIC_ACQ_REL),
              MORI_RELAXED(__ATOMIC_ACQUIRE));
  return expected;
}
#undef MORI_RELAXED
#undef MORI_SCOPED

template <typename T>
MORI_DEVICE_FN T LoadBulk(const T* p) {
  return *p;
}
template <typename T>
MORI_DEVICE_FN T LoadFresh(const T* p) {
  return LoadRelaxed(p);
}
MORI_DEVICE_FN Vector16 LoadFresh(const Vector16* p) {
  const u64* halves = reinterpret_cast<const u64*>(p);
  const u64 low = LoadRelaxed(halves);
  const u64 high = LoadRelaxed(halves + 1);
  return {static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high),
          static_cast<u32>(high >> 32)};
}
template <typename T>
MORI_DEVICE_FN void StoreBulk(T* p, const T& v) {
  *p = v;
}
template <typename T>
MORI_DEVICE_FN T LoadConstant(const T* p) {
  return *p;
}
MORI_DEVICE_FN u32 Funnel(u32 low, u32 high, u32 bits) {
  return static_cast<u32>(((static_cast<u64>(high) << 32) | low) >> bits);
}
[[noreturn]] MORI_DEVICE_COLD_FN void Fail(const char*) { __builtin_trap(); }
#if defined(MORI_DEVICE_AMDGCN)
/// Ends the calling thread's wave.
[[noreturn]] MORI_DEVICE_COLD_FN void FailThread() { __builtin_amdgcn_endpgm(); }
#else
[[noreturn]] MORI_DEVICE_COLD_FN void FailThread() { __builtin_trap(); }
#endif

#endif

/// How a look at a word orders what is loaded after it.
struct Relaxed {};
struct Acquire {};
template <typename Word>
MORI_DEVICE_FN Word Load(const Word* p, Relaxed) {
  return LoadRelaxed(p);
}
template <typename Word>
MORI_DEVICE_FN Word Load(const Word* p, Acquire) {
  return LoadAcquire(p);
}
/// Of looks that wait. NVIDIA: each acquires by itself, since no fence then follows the last one.
/// Others: the fence behind the last one is what an acquiring load has behind it anyway.
#if defined(MORI_DEVICE_NVPTX)
using WhileWaiting = Acquire;
MORI_DEVICE_FN void AcquireAfterWaiting() {}
#else
using WhileWaiting = Relaxed;
MORI_DEVICE_FN void AcquireAfterWaiting() { FenceAcquire(); }
#endif

/// Values of 4 and 8 bytes, of any type, travel as the word of their size.
template <u64 kBytes>
struct WordOfSize;
template <>
struct WordOfSize<4> {
  using Type = u32;
};
template <>
struct WordOfSize<8> {
  using Type = u64;
};
template <typename T>
using WordOf = typename WordOfSize<sizeof(T)>::Type;

template <typename T>
MORI_DEVICE_FN WordOf<T>* AsWord(T* p) {
  return reinterpret_cast<WordOf<T>*>(p);
}
template <typename T>
MORI_DEVICE_FN const WordOf<T>* AsWord(const T* p) {
  return reinterpret_cast<const WordOf<T>*>(p);
}
template <typename T>
MORI_DEVICE_FN WordOf<T> ToWord(T value) {
  return __builtin_bit_cast(WordOf<T>, value);
}
template <typename T>
MORI_DEVICE_FN T FromWord(WordOf<T> word) {
  return __builtin_bit_cast(T, word);
}

}  // namespace mori::shmem::device
