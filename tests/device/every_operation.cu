// Every operation of the device API, at every scope and of every type, each in a kernel of its own
// that is named after it. Compiled and searched by tests/python/test_device_code.py; never run.
// What they store `before` and access `behind` an operation are bytes, which no operation does.
// FEWER_KERNELS leaves out copies and reductions whose code is that of others.
#include "mori/shmem/shmem_device_api.hpp"

#if defined(__clang__)  // without a vendor's headers
#define __global__ __attribute__((global))
#endif

using namespace mori::shmem::device;

/// uint64_t, which is not u64.
using Long = unsigned long;

extern "C" {
MORI_DEVICE u8 as_large_as_the_state[sizeof(DeviceContext)];
}

#define KERNEL(name) extern "C" __global__ void Call##name

// ---- by scope

#define OPERATIONS_OF(S)                                                                          \
  KERNEL(ShmemGetMem##S)(u8* dest, const u8* source, u64 bytes, int pe) {                         \
    ShmemGetMem##S(dest, source, bytes, pe);                                                      \
  }                                                                                               \
  KERNEL(ShmemPutMemSignal##S)(u8* dest, const u8* source, u64 bytes, u64* signal, int op,        \
                               int pe) {                                                          \
    ShmemPutMemSignal##S(dest, source, bytes, signal, 1, static_cast<Signal>(op), pe);            \
  }                                                                                               \
  KERNEL(ShmemFence##S)(u8* before, u8* behind) {                                                 \
    *before = 1;                                                                                  \
    ShmemFence##S();                                                                              \
    *behind = 1;                                                                                  \
  }                                                                                               \
  KERNEL(ShmemQuiet##S)(u8* before, u8* behind) {                                                 \
    *before = 1;                                                                                  \
    ShmemQuiet##S();                                                                              \
    *behind = 1;                                                                                  \
  }                                                                                               \
  KERNEL(ShmemQuiet##S##_pe)(u8* before, u8* behind, int pe) {                                    \
    *before = 1;                                                                                  \
    ShmemQuiet##S(pe);                                                                            \
    *behind = 1;                                                                                  \
  }                                                                                               \
  KERNEL(ShmemSignalWaitUntil##S)(const u64* signal, int compare, u64* seen) {                    \
    *seen = ShmemSignalWaitUntil##S(signal, static_cast<Compare>(compare), 1);                    \
  }                                                                                               \
  KERNEL(ShmemSignalWaitUntilOrLost##S)(const u64* signal, int compare, u32* lost) {              \
    *lost = ShmemSignalWaitUntilOrLost##S(signal, static_cast<Compare>(compare), 1);              \
  }                                                                                               \
  KERNEL(ShmemSyncAllOrLost##S)(u8* before, const u8* behind, u8* seen, u32* lost) {              \
    *before = 1;                                                                                  \
    *lost = ShmemSyncAllOrLost##S();                                                              \
    *seen = *behind;                                                                              \
  }                                                                                               \
  KERNEL(ShmemBarrierAllOrLost##S)(u8* before, const u8* behind, u8* seen, u32* lost) {           \
    *before = 1;                                                                                  \
    *lost = ShmemBarrierAllOrLost##S();                                                           \
    *seen = *behind;                                                                              \
  }                                                                                               \
  KERNEL(ShmemSyncAll##S)(u8* before, const u8* behind, u8* seen) {                               \
    *before = 1;                                                                                  \
    ShmemSyncAll##S();                                                                            \
    *seen = *behind;                                                                              \
  }                                                                                               \
  KERNEL(ShmemBarrierAll##S)(u8* before, const u8* behind, u8* seen) {                            \
    *before = 1;                                                                                  \
    ShmemBarrierAll##S();                                                                         \
    *seen = *behind;                                                                              \
  }                                                                                               \
  KERNEL(ShmemBroadcastMem##S)(u8* dest, const u8* source, u64 bytes, int root) {                 \
    ShmemBroadcastMem##S(dest, source, bytes, root);                                              \
  }                                                                                               \
  KERNEL(ShmemAllToAllMem##S)(u8* dest, const u8* source, u64 bytes) {                            \
    ShmemAllToAllMem##S(dest, source, bytes);                                                     \
  }
OPERATIONS_OF()
OPERATIONS_OF(Warp)
OPERATIONS_OF(Block)

#define BYTES_OF(S)                                                                               \
  KERNEL(ShmemPutMem##S)(u8* dest, const u8* source, u64 bytes, int pe) {                         \
    ShmemPutMem##S(dest, source, bytes, pe);                                                      \
  }                                                                                               \
  KERNEL(ShmemPutMemNbi##S)(u8* dest, const u8* source, u64 bytes, int pe) {                      \
    ShmemPutMemNbi##S(dest, source, bytes, pe);                                                   \
  }                                                                                               \
  KERNEL(ShmemGetMemNbi##S)(u8* dest, const u8* source, u64 bytes, int pe) {                      \
    ShmemGetMemNbi##S(dest, source, bytes, pe);                                                   \
  }                                                                                               \
  KERNEL(ShmemPutMemSignalNbi##S)(u8* dest, const u8* source, u64 bytes, u64* signal, int op,     \
                                  int pe) {                                                       \
    ShmemPutMemSignalNbi##S(dest, source, bytes, signal, 1, static_cast<Signal>(op), pe);         \
  }                                                                                               \
  KERNEL(ShmemFCollectMem##S)(u8* dest, const u8* source, u64 bytes) {                            \
    ShmemFCollectMem##S(dest, source, bytes);                                                     \
  }

#define COPIES_OF(S, T)                                                                           \
  KERNEL(ShmemPut##S##_##T)(T* dest, const T* source, u64 count, int pe) {                        \
    ShmemPut##S(dest, source, count, pe);                                                         \
  }                                                                                               \
  KERNEL(ShmemPutNbi##S##_##T)(T* dest, const T* source, u64 count, int pe) {                     \
    ShmemPutNbi##S(dest, source, count, pe);                                                      \
  }                                                                                               \
  KERNEL(ShmemGet##S##_##T)(T* dest, const T* source, u64 count, int pe) {                        \
    ShmemGet##S(dest, source, count, pe);                                                         \
  }                                                                                               \
  KERNEL(ShmemGetNbi##S##_##T)(T* dest, const T* source, u64 count, int pe) {                     \
    ShmemGetNbi##S(dest, source, count, pe);                                                      \
  }

#define WAITS_OF(S, T)                                                                            \
  KERNEL(ShmemWaitUntil##S##_##T)(const T* ivar, int compare, T* seen) {                          \
    *seen = ShmemWaitUntil##S(ivar, static_cast<Compare>(compare), T{1});                         \
  }                                                                                               \
  KERNEL(ShmemWaitUntilOrLost##S##_##T)(const T* ivar, int compare, u32* lost) {                  \
    *lost = ShmemWaitUntilOrLost##S(ivar, static_cast<Compare>(compare), T{1});                   \
  }                                                                                               \
  KERNEL(ShmemWaitUntilAllOrLost##S##_##T)(const T* ivars, u64 count, const int* status,          \
                                           int compare, u32* lost) {                              \
    *lost = ShmemWaitUntilAllOrLost##S(ivars, count, status, static_cast<Compare>(compare), T{1});\
  }                                                                                               \
  KERNEL(ShmemWaitUntilAll##S##_##T)(const T* ivars, u64 count, const int* status, int compare) { \
    ShmemWaitUntilAll##S(ivars, count, status, static_cast<Compare>(compare), T{1});              \
  }
WAITS_OF(, u32)
WAITS_OF(, u64)
WAITS_OF(, i32)
WAITS_OF(, Long)
WAITS_OF(Warp, u32)
WAITS_OF(Warp, u64)
WAITS_OF(Block, u32)
WAITS_OF(Block, u64)

#define REDUCTIONS_OF(S, T)                                                                       \
  KERNEL(ShmemSumReduce##S##_##T)(T* dest, const T* source, u64 count) {                          \
    ShmemSumReduce##S(dest, source, count);                                                       \
  }                                                                                               \
  KERNEL(ShmemMinReduce##S##_##T)(T* dest, const T* source, u64 count) {                          \
    ShmemMinReduce##S(dest, source, count);                                                       \
  }                                                                                               \
  KERNEL(ShmemMaxReduce##S##_##T)(T* dest, const T* source, u64 count) {                          \
    ShmemMaxReduce##S(dest, source, count);                                                       \
  }

COPIES_OF(, u32)
COPIES_OF(Block, u64)
#if !defined(FEWER_KERNELS)
BYTES_OF()
BYTES_OF(Warp)
BYTES_OF(Block)
COPIES_OF(, u64)
COPIES_OF(Warp, u32)
COPIES_OF(Warp, u64)
COPIES_OF(Block, u32)
REDUCTIONS_OF(, u32)
REDUCTIONS_OF(, u64)
REDUCTIONS_OF(Warp, u32)
REDUCTIONS_OF(Warp, u64)
REDUCTIONS_OF(Block, u32)
REDUCTIONS_OF(Block, u64)
REDUCTIONS_OF(Block, float)
#endif
REDUCTIONS_OF(Block, double)

// ---- by the calling thread

KERNEL(ShmemMyPe)(int* pe) { *pe = ShmemMyPe(); }
KERNEL(ShmemNPes)(int* n_pes) { *n_pes = ShmemNPes(); }
KERNEL(ShmemSignalOp)(u8* before, u64* signal, int op, int pe) {
  *before = 1;
  ShmemSignalOp(signal, 1, static_cast<Signal>(op), pe);
}
KERNEL(ShmemSignalFetch)(const u64* signal, u64* seen) { *seen = ShmemSignalFetch(signal); }

#define ELEMENT_OF(T)                                                                              \
  KERNEL(ShmemPtr_##T)(T* address, int pe, T** there) { *there = ShmemPtr(address, pe); }         \
  KERNEL(ShmemP_##T)(T* dest, T value, int pe) { ShmemP(dest, value, pe); }                       \
  KERNEL(ShmemG_##T)(const T* source, int pe, T* value) { *value = ShmemG(source, pe); }

#define ATOMIC_OF(Name, T)                                                                        \
  KERNEL(ShmemAtomicFetch##Name##_##T)(T* target, T value, int pe, T* old) {                      \
    *old = ShmemAtomicFetch##Name(target, value, pe);                                             \
  }                                                                                               \
  KERNEL(ShmemAtomic##Name##_##T)(T* target, T value, int pe) {                                   \
    ShmemAtomic##Name(target, value, pe);                                                         \
  }

#define WORDS_OF(T)                                                                               \
  ELEMENT_OF(T)                                                                                    \
  ATOMIC_OF(Add, T)                                                                               \
  ATOMIC_OF(And, T)                                                                               \
  ATOMIC_OF(Or, T)                                                                                \
  ATOMIC_OF(Xor, T)                                                                               \
  KERNEL(ShmemAtomicFetch_##T)(const T* target, int pe, T* value) {                               \
    *value = ShmemAtomicFetch(target, pe);                                                        \
  }                                                                                               \
  KERNEL(ShmemAtomicSet_##T)(T* target, T value, int pe) { ShmemAtomicSet(target, value, pe); }   \
  KERNEL(ShmemAtomicSwap_##T)(T* target, T value, int pe, T* old) {                               \
    *old = ShmemAtomicSwap(target, value, pe);                                                    \
  }                                                                                               \
  KERNEL(ShmemAtomicCompareSwap_##T)(T* target, T expected, T value, int pe, T* old) {            \
    *old = ShmemAtomicCompareSwap(target, expected, value, pe);                                   \
  }                                                                                               \
  KERNEL(ShmemAtomicFetchInc_##T)(T* target, int pe, T* old) {                                    \
    *old = ShmemAtomicFetchInc(target, pe);                                                       \
  }                                                                                               \
  KERNEL(ShmemAtomicInc_##T)(T* target, int pe) { ShmemAtomicInc(target, pe); }                   \
  KERNEL(ShmemTest_##T)(const T* ivar, int compare, bool* holds) {                                \
    *holds = ShmemTest(ivar, static_cast<Compare>(compare), T{1});                                \
  }                                                                                               \
  KERNEL(ShmemTestAll_##T)(const T* ivars, u64 count, const int* status, int compare,             \
                           bool* holds) {                                                         \
    *holds = ShmemTestAll(ivars, count, status, static_cast<Compare>(compare), T{1});             \
  }                                                                                               \
  KERNEL(ShmemTestAny_##T)(const T* ivars, u64 count, const int* status, int compare,             \
                           u64* index) {                                                          \
    *index = ShmemTestAny(ivars, count, status, static_cast<Compare>(compare), T{1});             \
  }                                                                                               \
  KERNEL(ShmemTestSome_##T)(const T* ivars, u64 count, u64* indices, const int* status,           \
                            int compare, u64* found) {                                            \
    *found = ShmemTestSome(ivars, count, indices, status, static_cast<Compare>(compare), T{1});   \
  }                                                                                               \
  KERNEL(ShmemWaitUntilAny_##T)(const T* ivars, u64 count, const int* status, int compare,        \
                                u64* index) {                                                     \
    *index = ShmemWaitUntilAny(ivars, count, status, static_cast<Compare>(compare), T{1});        \
  }                                                                                               \
  KERNEL(ShmemWaitUntilAnyOrLost_##T)(const T* ivars, u64 count, const int* status, int compare,  \
                                      u64* index) {                                               \
    *index = ShmemWaitUntilAnyOrLost(ivars, count, status, static_cast<Compare>(compare), T{1});  \
  }                                                                                               \
  KERNEL(ShmemWaitUntilSomeOrLost_##T)(const T* ivars, u64 count, u64* indices,                   \
                                       const int* status, int compare, u64* found) {              \
    *found = ShmemWaitUntilSomeOrLost(ivars, count, indices, status,                              \
                                      static_cast<Compare>(compare), T{1});                       \
  }                                                                                               \
  KERNEL(ShmemWaitUntilSome_##T)(const T* ivars, u64 count, u64* indices, const int* status,      \
                                 int compare, u64* found) {                                       \
    *found =                                                                                      \
        ShmemWaitUntilSome(ivars, count, indices, status, static_cast<Compare>(compare), T{1});   \
  }
WORDS_OF(u32)
WORDS_OF(u64)
WORDS_OF(i32)
WORDS_OF(Long)
ELEMENT_OF(float)
ELEMENT_OF(double)
