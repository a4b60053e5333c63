// Device API by the names of the host API: for kernels, in namespace `mori::shmem::device`.
//
// A name without a suffix is a call of one thread; `…Warp` is made by all 32 (AMD: 64) lanes of a
// warp, `…Block` by all threads of a block, with the same arguments. Types, order, completion and
// errors are those of device/ops.hpp and device/collectives.hpp, which have the operations
// themselves, with the scope as a template parameter.
#pragma once

#include "mori/shmem/device/collectives.hpp"
#include "mori/shmem/device/ops.hpp"

namespace mori::shmem::device {

// ---- queries

MORI_DEVICE_FN int ShmemMyPe() { return MyPe(); }
MORI_DEVICE_FN int ShmemNPes() { return NPes(); }
/// The address here of `pe`'s copy; null if it is not reached by load and store.
template <typename T>
MORI_DEVICE_FN T* ShmemPtr(T* address, int pe) {
  if (static_cast<u32>(pe) >= static_cast<u32>(NPes())) return nullptr;
  return AddressOf(pe, &PeAddresses::heap, FaultCall::kPtr) != 0 ? Ptr(address, pe) : nullptr;
}

// ---- one list of what each scope can do

#define MORI_SHMEM_OF_SCOPE(suffix, Scope)                                                         \
  MORI_DEVICE_FN void ShmemPutMem##suffix(void* dest, const void* source, u64 bytes, int pe) {     \
    Put<Scope>(dest, source, bytes, pe);                                                           \
  }                                                                                                \
  MORI_DEVICE_FN void ShmemPutMemNbi##suffix(void* dest, const void* source, u64 bytes, int pe) {  \
    PutNbi<Scope>(dest, source, bytes, pe);                                                        \
  }                                                                                                \
  MORI_DEVICE_FN void ShmemGetMem##suffix(void* dest, const void* source, u64 bytes, int pe) {     \
    Get<Scope>(dest, source, bytes, pe);                                                           \
  }                                                                                                \
  MORI_DEVICE_FN void ShmemGetMemNbi##suffix(void* dest, const void* source, u64 bytes, int pe) {  \
    GetNbi<Scope>(dest, source, bytes, pe);                                                        \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemPut##suffix(T* dest, const T* source, u64 count, int pe) {              \
    Put<Scope, kUnitOf<T>>(dest, source, ElementBytes<T>(count, FaultCall::kPut, pe), pe);         \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemPutNbi##suffix(T* dest, const T* source, u64 count, int pe) {           \
    PutNbi<Scope, kUnitOf<T>>(dest, source, ElementBytes<T>(count, FaultCall::kPut, pe), pe);      \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemGet##suffix(T* dest, const T* source, u64 count, int pe) {              \
    Get<Scope, kUnitOf<T>>(dest, source, ElementBytes<T>(count, FaultCall::kGet, pe), pe);         \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemGetNbi##suffix(T* dest, const T* source, u64 count, int pe) {           \
    GetNbi<Scope, kUnitOf<T>>(dest, source, ElementBytes<T>(count, FaultCall::kGet, pe), pe);      \
  }                                                                                                \
  template <typename Word>                                                                         \
  MORI_DEVICE_FN void ShmemPutMemSignal##suffix(void* dest, const void* source, u64 bytes,         \
                                                Word* sig_addr, u64 signal, Signal op, int pe) {   \
    PutSignal<Scope>(dest, source, bytes, sig_addr, signal, op, pe);                               \
  }                                                                                                \
  template <typename Word>                                                                         \
  MORI_DEVICE_FN void ShmemPutMemSignalNbi##suffix(                                                \
      void* dest, const void* source, u64 bytes, Word* sig_addr, u64 signal, Signal op, int pe) {  \
    PutSignalNbi<Scope>(dest, source, bytes, sig_addr, signal, op, pe);                            \
  }                                                                                                \
  MORI_DEVICE_FN void ShmemFence##suffix() { Fence<Scope>(); }                                     \
  MORI_DEVICE_FN void ShmemQuiet##suffix() { Quiet<Scope>(); }                                     \
  MORI_DEVICE_FN void ShmemQuiet##suffix(int pe) { Quiet<Scope>(pe); }                             \
  template <typename T>                                                                            \
  MORI_DEVICE_FN T ShmemWaitUntil##suffix(const T* ivar, Compare compare, T value) {               \
    return WaitUntil<Scope>(ivar, compare, value);                                                 \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemWaitUntilAll##suffix(const T* ivars, u64 count, const int* status,      \
                                                Compare compare, T value) {                        \
    WaitUntilAll<Scope>(ivars, count, status, compare, value);                                     \
  }                                                                                                \
  template <typename Word>                                                                         \
  MORI_DEVICE_FN u64 ShmemSignalWaitUntil##suffix(const Word* sig_addr, Compare compare,           \
                                                  u64 value) {                                     \
    return SignalWaitUntil<Scope>(sig_addr, compare, value);                                       \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN u32 ShmemWaitUntilOrLost##suffix(const T* ivar, Compare compare, T value) {       \
    return WaitUntilOrLost<Scope>(ivar, compare, value);                                           \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN u32 ShmemWaitUntilAllOrLost##suffix(const T* ivars, u64 count, const int* status, \
                                                     Compare compare, T value) {                   \
    return WaitUntilAllOrLost<Scope>(ivars, count, status, compare, value);                        \
  }                                                                                                \
  template <typename Word>                                                                         \
  MORI_DEVICE_FN u32 ShmemSignalWaitUntilOrLost##suffix(const Word* sig_addr, Compare compare,     \
                                                        u64 value) {                               \
    return SignalWaitUntilOrLost<Scope>(sig_addr, compare, value);                                 \
  }                                                                                                \
  MORI_DEVICE_FN u32 ShmemSyncAllOrLost##suffix() { return SyncAllOrLost<Scope>(); }               \
  MORI_DEVICE_FN u32 ShmemBarrierAllOrLost##suffix() { return BarrierAllOrLost<Scope>(); }         \
  MORI_DEVICE_FN void ShmemSyncAll##suffix() { SyncAll<Scope>(); }                                 \
  MORI_DEVICE_FN void ShmemBarrierAll##suffix() { BarrierAll<Scope>(); }                           \
  MORI_DEVICE_FN void ShmemBroadcastMem##suffix(void* dest, const void* source, u64 bytes,         \
                                                int root) {                                        \
    Broadcast<Scope>(dest, source, bytes, root);                                                   \
  }                                                                                                \
  MORI_DEVICE_FN void ShmemFCollectMem##suffix(void* dest, const void* source, u64 bytes) {        \
    FCollect<Scope>(dest, source, bytes);                                                          \
  }                                                                                                \
  MORI_DEVICE_FN void ShmemAllToAllMem##suffix(void* dest, const void* source, u64 bytes) {        \
    AllToAll<Scope>(dest, source, bytes);                                                          \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemSumReduce##suffix(T* dest, const T* source, u64 count) {                \
    Reduce<Scope, Sum>(dest, source, count);                                                       \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemMinReduce##suffix(T* dest, const T* source, u64 count) {                \
    Reduce<Scope, Min>(dest, source, count);                                                       \
  }                                                                                                \
  template <typename T>                                                                            \
  MORI_DEVICE_FN void ShmemMaxReduce##suffix(T* dest, const T* source, u64 count) {                \
    Reduce<Scope, Max>(dest, source, count);                                                       \
  }
MORI_SHMEM_OF_SCOPE(, Thread)
MORI_SHMEM_OF_SCOPE(Warp, Warp)
MORI_SHMEM_OF_SCOPE(Block, Block)
#undef MORI_SHMEM_OF_SCOPE

// ---- by the calling thread

template <typename T>
MORI_DEVICE_FN void ShmemP(T* dest, T value, int pe) {
  P(dest, value, pe);
}
template <typename T>
MORI_DEVICE_FN T ShmemG(const T* source, int pe) {
  return G(source, pe);
}

template <typename T>
MORI_DEVICE_FN T ShmemAtomicFetch(const T* target, int pe) {
  return AtomicFetch(target, pe);
}
template <typename T>
MORI_DEVICE_FN void ShmemAtomicSet(T* target, T value, int pe) {
  AtomicSet(target, value, pe);
}
template <typename T>
MORI_DEVICE_FN T ShmemAtomicSwap(T* target, T value, int pe) {
  return AtomicSwap(target, value, pe);
}
template <typename T>
MORI_DEVICE_FN T ShmemAtomicCompareSwap(T* target, T expected, T value, int pe) {
  return AtomicCompareSwap(target, expected, value, pe);
}
template <typename T>
MORI_DEVICE_FN T ShmemAtomicFetchInc(T* target, int pe) {
  return AtomicFetchAdd(target, T{1}, pe);
}
template <typename T>
MORI_DEVICE_FN void ShmemAtomicInc(T* target, int pe) {
  AtomicAdd(target, T{1}, pe);
}
#define MORI_SHMEM_OF_ATOMIC(Name)                                      \
  template <typename T>                                                 \
  MORI_DEVICE_FN T ShmemAtomicFetch##Name(T* target, T value, int pe) { \
    return AtomicFetch##Name(target, value, pe);                        \
  }                                                                     \
  template <typename T>                                                 \
  MORI_DEVICE_FN void ShmemAtomic##Name(T* target, T value, int pe) {   \
    Atomic##Name(target, value, pe);                                    \
  }
MORI_SHMEM_OF_ATOMIC(Add)
MORI_SHMEM_OF_ATOMIC(And)
MORI_SHMEM_OF_ATOMIC(Or)
MORI_SHMEM_OF_ATOMIC(Xor)
#undef MORI_SHMEM_OF_ATOMIC

/// Sets or adds a signal without data; what this thread put before comes first.
template <typename Word>
MORI_DEVICE_FN void ShmemSignalOp(Word* sig_addr, u64 signal, Signal op, int pe) {
  PostSignal(sig_addr, signal, op, pe);
}
template <typename Word>
MORI_DEVICE_FN u64 ShmemSignalFetch(const Word* sig_addr) {
  return SignalFetch(sig_addr);
}

template <typename T>
MORI_DEVICE_FN bool ShmemTest(const T* ivar, Compare compare, T value) {
  return Test(ivar, compare, value);
}
template <typename T>
MORI_DEVICE_FN bool ShmemTestAll(const T* ivars, u64 count, const int* status, Compare compare,
                                 T value) {
  return TestAll(ivars, count, status, compare, value);
}
template <typename T>
MORI_DEVICE_FN u64 ShmemTestAny(const T* ivars, u64 count, const int* status, Compare compare,
                                T value) {
  return TestAny(ivars, count, status, compare, value);
}
template <typename T>
MORI_DEVICE_FN u64 ShmemTestSome(const T* ivars, u64 count, u64* indices, const int* status,
                                 Compare compare, T value) {
  return TestSome(ivars, count, indices, status, compare, value);
}
template <typename T>
MORI_DEVICE_FN u64 ShmemWaitUntilAny(const T* ivars, u64 count, const int* status, Compare compare,
                                     T value) {
  return WaitUntilAny(ivars, count, status, compare, value);
}
template <typename T>
MORI_DEVICE_FN u64 ShmemWaitUntilSome(const T* ivars, u64 count, u64* indices, const int* status,
                                      Compare compare, T value) {
  return WaitUntilSome(ivars, count, indices, status, compare, value);
}

template <typename T>
MORI_DEVICE_FN u64 ShmemWaitUntilAnyOrLost(const T* ivars, u64 count, const int* status,
                                           Compare compare, T value) {
  return WaitUntilAnyOrLost(ivars, count, status, compare, value);
}
template <typename T>
MORI_DEVICE_FN u64 ShmemWaitUntilSomeOrLost(const T* ivars, u64 count, u64* indices,
                                            const int* status, Compare compare, T value) {
  return WaitUntilSomeOrLost(ivars, count, indices, status, compare, value);
}

}  // namespace mori::shmem::device
