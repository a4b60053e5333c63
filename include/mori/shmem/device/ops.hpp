// Each operation of a kernel, once, for every scope.
//
// `dest`, `source` on the remote side, `target`, `ivar` and `sig_addr` are symmetric addresses of
// this PE. Every thread of the scope makes the call with the same arguments; results come to all of
// them. PEs are in reach of load and store; one that is not, a wrong number, or a kernel without a
// published state traps.
//
// Memory model. Put and get are complete, on return, for the scope that made them: source and
// destination may be used by its threads. Others see a put after the scope's `Quiet()`, after a
// put-with-signal by its signal, or after a barrier. `Fence()` orders the scope's puts before its
// later stores, to any PE. Atomics acquire and release one word, for all GPUs and CPUs of the node.
#pragma once

#include "mori/shmem/device/context.hpp"
#include "mori/shmem/device/copy.hpp"

namespace mori::shmem::device {

enum class Compare : int { kEq = 0, kNe = 1, kGt = 2, kGe = 3, kLt = 4, kLe = 5 };
enum class Signal : int { kSet = 0, kAdd = 1 };

/// The state that the host published for this module.
MORI_DEVICE_FN const DeviceContext& State() {
  if (globalGpuStates.magic != kContextMagic) Trap();
  return globalGpuStates;
}
MORI_DEVICE_FN int MyPe() { return static_cast<int>(State().my_pe); }
MORI_DEVICE_FN int NPes() { return static_cast<int>(State().n_pes); }

/// Where `pe`'s copy of a symmetric address is reached.
template <typename T>
MORI_DEVICE_FN T* Ptr(T* address, int pe) {
  const DeviceContext& state = State();
  if (static_cast<u32>(pe) >= state.n_pes) Trap();
  const u64 base = state.peer_bases[pe];
  if (base == 0) Trap();
  return reinterpret_cast<T*>(base + (reinterpret_cast<u64>(address) - state.heap_base));
}

template <typename Scope>
MORI_DEVICE_FN void Put(void* dest, const void* source, u64 bytes, int pe) {
  Copy<Scope>(Ptr(static_cast<u8*>(dest), pe), source, bytes);
  Scope::Sync();
}
template <typename Scope>
MORI_DEVICE_FN void Get(void* dest, const void* source, u64 bytes, int pe) {
  Copy<Scope>(dest, Ptr(static_cast<const u8*>(source), pe), bytes);
  Scope::Sync();
}

/// One element, by the calling thread.
template <typename T>
MORI_DEVICE_FN void P(T* dest, T value, int pe) {
  *static_cast<volatile T*>(Ptr(dest, pe)) = value;
}
template <typename T>
MORI_DEVICE_FN T G(const T* source, int pe) {
  return *static_cast<const volatile T*>(Ptr(source, pe));
}

template <typename Scope>
MORI_DEVICE_FN void Fence() {
  Scope::Sync();
  FenceSystem();
}
template <typename Scope>
MORI_DEVICE_FN void Quiet() {
  FenceSystem();
  Scope::Sync();
}

/// Puts, then sets or adds the signal there: who sees the signal sees the data.
template <typename Scope>
MORI_DEVICE_FN void PutSignal(void* dest, const void* source, u64 bytes, u64* sig_addr, u64 signal,
                              Signal op, int pe) {
  Put<Scope>(dest, source, bytes, pe);
  if (Scope::Rank() == 0) {
    u64* word = Ptr(sig_addr, pe);
    FenceSystem();  // cumulative over the scope, whose threads have met in Put
    if (op == Signal::kSet) {
      StoreRelease(word, signal);
    } else {
      FetchAdd(word, signal);
    }
  }
  Scope::Sync();
}

template <typename T>
MORI_DEVICE_FN bool Holds(T left, Compare compare, T right) {
  switch (compare) {
    case Compare::kEq: return left == right;
    case Compare::kNe: return left != right;
    case Compare::kGt: return left > right;
    case Compare::kGe: return left >= right;
    case Compare::kLt: return left < right;
    case Compare::kLe: return left <= right;
  }
  return false;
}
/// Whether this PE's word compares so now; acquires where it does.
template <typename T>
MORI_DEVICE_FN bool Test(const T* ivar, Compare compare, T value) {
  return Holds(LoadAcquire(ivar), compare, value);
}
/// Waits for it. @return the value seen, to the thread that leads the scope
template <typename Scope, typename T>
MORI_DEVICE_FN T WaitUntil(const T* ivar, Compare compare, T value) {
  T seen{};
  if (Scope::Rank() == 0) {
    while (!Holds(seen = LoadAcquire(ivar), compare, value)) Relax();
  }
  Scope::Sync();
  return seen;
}

// Atomics, by the calling thread.
template <typename T>
MORI_DEVICE_FN T AtomicFetch(const T* target, int pe) {
  return LoadAcquire(Ptr(target, pe));
}
template <typename T>
MORI_DEVICE_FN void AtomicSet(T* target, T value, int pe) {
  StoreRelease(Ptr(target, pe), value);
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchAdd(T* target, T value, int pe) {
  return FetchAdd(Ptr(target, pe), value);
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchAnd(T* target, T value, int pe) {
  return FetchAnd(Ptr(target, pe), value);
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchOr(T* target, T value, int pe) {
  return FetchOr(Ptr(target, pe), value);
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchXor(T* target, T value, int pe) {
  return FetchXor(Ptr(target, pe), value);
}
template <typename T>
MORI_DEVICE_FN T AtomicSwap(T* target, T value, int pe) {
  return Swap(Ptr(target, pe), value);
}
template <typename T>
MORI_DEVICE_FN T AtomicCompareSwap(T* target, T expected, T value, int pe) {
  return CompareSwap(Ptr(target, pe), expected, value);
}

/// All PEs meet: what the scopes' threads stored before is visible to all after. One barrier of a
/// PE at a time. Each PE writes its epoch to all, and waits for all epochs: one way of latency.
template <typename Scope>
MORI_DEVICE_FN void BarrierAll() {
  const DeviceContext& state = State();
  u64* mine = reinterpret_cast<u64*>(state.sync_bases[state.my_pe]);
  const u64 epoch = LoadRelaxed(mine + state.my_pe) + 1;
  Scope::Sync();
  FenceSystem();
  for (u32 pe = Scope::Rank(); pe < state.n_pes; pe += Scope::Size()) {
    StoreRelease(reinterpret_cast<u64*>(state.sync_bases[pe]) + state.my_pe, epoch);
  }
  for (u32 pe = Scope::Rank(); pe < state.n_pes; pe += Scope::Size()) {
    while (LoadAcquire(mine + pe) < epoch) {
    }
  }
  Scope::Sync();
}

}  // namespace mori::shmem::device
