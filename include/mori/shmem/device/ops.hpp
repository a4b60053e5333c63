// Each operation of a kernel, once, for every scope.
//
// `dest`, `source` on the remote side, `target`, `ivar` and `sig_addr` are symmetric addresses of
// this PE. Every thread of the scope makes the call with the same arguments; results come to all of
// them, unless a call says otherwise. PEs are in reach of load and store; one that is not, a wrong
// number, or a kernel without the state of its PE ends the kernel with a message.
//
// Memory model.
//
// - The source of a put, and the destination of a get, are ready for all threads of the scope at
//   the call. `Put` and `Get` are complete for the scope on return: its threads may write to the
//   source, or read the destination. `PutNbi` and `GetNbi` are so after the scope's `Quiet`.
// - Others see a put after the scope's `Quiet`, after a put-with-signal by its signal, or after a
//   barrier. `Fence` orders the scope's puts and atomics before its later ones, to any PE; and it
//   acquires: behind an atomic that has found what it waited for, it orders later loads.
// - A signal is stored after a fence that is cumulative over the scope; waits, tests and fetches of
//   a signal acquire: who sees the signal sees the data.
// - Atomics are single copies at system scope, for all GPUs and CPUs of the node, and order nothing
//   but their word: `Fence` before them orders puts, `Quiet` completes.
// - `BarrierAll` does all of it for everybody; `SyncAll` only meets. A PE is in one barrier or
//   collective at a time.
#pragma once

#include "mori/shmem/device/context.hpp"
#include "mori/shmem/device/copy.hpp"

namespace mori::shmem::device {

enum class Compare : int { kEq = 0, kNe = 1, kGt = 2, kGe = 3, kLt = 4, kLe = 5 };
enum class Signal : int { kSet = 0, kAdd = 1 };

[[noreturn]] MORI_DEVICE_COLD_FN void FailWithoutState() {
  Fail("this kernel has no state of its PE: call shmem_module_init(module) after each init");
}
[[noreturn]] MORI_DEVICE_COLD_FN void FailOutOfReach(int pe) {
  if (static_cast<u32>(pe) >= globalGpuStates.n_pes) Fail("a PE is out of range");
  Fail("a PE is not reached by load and store");
}

/// Ends a kernel to whose module the host has not published a state.
MORI_DEVICE_FN void RequireState() {
  if (globalGpuStates.magic != kContextMagic) FailWithoutState();
}
MORI_DEVICE_FN int MyPe() {
  RequireState();
  return static_cast<int>(globalGpuStates.my_pe);
}
MORI_DEVICE_FN int NPes() {
  RequireState();
  return static_cast<int>(globalGpuStates.n_pes);
}

MORI_DEVICE_FN void RequirePe(int pe) {
  if (static_cast<u32>(pe) >= static_cast<u32>(NPes())) FailOutOfReach(pe);
}
/// A field of `pe`'s addresses.
MORI_DEVICE_FN u64 AddressOf(int pe, u64 PeAddresses::*field) {
  RequirePe(pe);
  if (static_cast<u32>(pe) < kNearPes) return LoadConstant(&(globalGpuStates.near_pes[pe].*field));
  return globalGpuStates.pes[pe].*field;
}

/// Where `pe`'s copy of a symmetric address is reached.
template <typename T>
MORI_DEVICE_FN T* Ptr(T* address, int pe) {
  const u64 base = AddressOf(pe, &PeAddresses::heap);
  if (base == 0) FailOutOfReach(pe);
  const u64 offset = reinterpret_cast<u64>(address) - globalGpuStates.heap_base;
  return reinterpret_cast<T*>(base + offset);
}
MORI_DEVICE_FN SyncWords* SyncWordsOf(int pe) {
  return reinterpret_cast<SyncWords*>(AddressOf(pe, &PeAddresses::sync));
}

// ---- put and get

template <typename Scope>
MORI_DEVICE_FN void PutNbi(void* dest, const void* source, u64 bytes, int pe) {
  Copy<Scope, Source::kLocal>(Ptr(static_cast<u8*>(dest), pe), source, bytes);
}
template <typename Scope>
MORI_DEVICE_FN void GetNbi(void* dest, const void* source, u64 bytes, int pe) {
  Copy<Scope, Source::kRemote>(dest, Ptr(static_cast<const u8*>(source), pe), bytes);
}
template <typename Scope>
MORI_DEVICE_FN void Put(void* dest, const void* source, u64 bytes, int pe) {
  PutNbi<Scope>(dest, source, bytes, pe);
  Scope::Sync();
}
template <typename Scope>
MORI_DEVICE_FN void Get(void* dest, const void* source, u64 bytes, int pe) {
  GetNbi<Scope>(dest, source, bytes, pe);
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

// ---- order and completion

/// What the scope put before comes before what it puts afterwards. It acquires, too.
template <typename Scope>
MORI_DEVICE_FN void Fence() {
  Scope::Sync();
  FenceSystem();
}
/// What the scope put before is there, on all PEs. It does not acquire.
template <typename Scope>
MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
  FenceRelease();
}
/// The same on `pe`.
template <typename Scope>
MORI_DEVICE_FN void Quiet(int pe) {
  RequirePe(pe);
  Quiet<Scope>();
}

// ---- atomics, by the calling thread, on integers of 32 and 64 bits; fetch, set, swap and
// compare-swap on whatever has that size

template <typename T>
MORI_DEVICE_FN T AtomicFetch(const T* target, int pe) {
  return FromWord<T>(LoadRelaxed(AsWord(Ptr(target, pe))));
}
template <typename T>
MORI_DEVICE_FN void AtomicSet(T* target, T value, int pe) {
  StoreRelaxed(AsWord(Ptr(target, pe)), ToWord(value));
}
/// Add and the operations on bits are for integers.
template <typename T>
MORI_DEVICE_FN void RequireInteger() {
  static_assert(T(1) / T(2) == T(0), "atomic add, and, or and xor are on integers");
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchAdd(T* target, T value, int pe) {
  RequireInteger<T>();
  return FromWord<T>(FetchAdd(AsWord(Ptr(target, pe)), ToWord(value)));
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchAnd(T* target, T value, int pe) {
  RequireInteger<T>();
  return FromWord<T>(FetchAnd(AsWord(Ptr(target, pe)), ToWord(value)));
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchOr(T* target, T value, int pe) {
  RequireInteger<T>();
  return FromWord<T>(FetchOr(AsWord(Ptr(target, pe)), ToWord(value)));
}
template <typename T>
MORI_DEVICE_FN T AtomicFetchXor(T* target, T value, int pe) {
  RequireInteger<T>();
  return FromWord<T>(FetchXor(AsWord(Ptr(target, pe)), ToWord(value)));
}
template <typename T>
MORI_DEVICE_FN T AtomicSwap(T* target, T value, int pe) {
  return FromWord<T>(Swap(AsWord(Ptr(target, pe)), ToWord(value)));
}
/// Stores `value` where `expected` was found. @return what was found
template <typename T>
MORI_DEVICE_FN T AtomicCompareSwap(T* target, T expected, T value, int pe) {
  return FromWord<T>(CompareSwap(AsWord(Ptr(target, pe)), ToWord(expected), ToWord(value)));
}

// ---- signals

/// Signals are words of 8 bytes, by whatever name the program has for that.
template <typename Word>
MORI_DEVICE_FN u64* SignalWord(Word* sig_addr) {
  static_assert(sizeof(Word) == 8, "signals are words of 8 bytes");
  return reinterpret_cast<u64*>(sig_addr);
}
template <typename Word>
MORI_DEVICE_FN const u64* SignalWord(const Word* sig_addr) {
  static_assert(sizeof(Word) == 8, "signals are words of 8 bytes");
  return reinterpret_cast<const u64*>(sig_addr);
}

/// Sets or adds the signal, by the calling thread; what it put before comes first.
template <typename Word>
MORI_DEVICE_FN void PostSignal(Word* sig_addr, u64 signal, Signal op, int pe) {
  u64* word = SignalWord(Ptr(sig_addr, pe));
  FenceRelease();  // pairs with the acquiring load of who waits for the signal
  if (op == Signal::kSet) {
    StoreRelaxed(word, signal);
  } else {
    FetchAdd(word, signal);
  }
}
/// Puts, then sets or adds the signal there: who sees the signal sees the data.
template <typename Scope, typename Word>
MORI_DEVICE_FN void PutSignalNbi(void* dest, const void* source, u64 bytes, Word* sig_addr,
                                 u64 signal, Signal op, int pe) {
  Put<Scope>(dest, source, bytes, pe);
  // The leader's fence is cumulative over the scope, whose threads have met in Put.
  if (Scope::Rank() == 0) PostSignal(sig_addr, signal, op, pe);
}
template <typename Scope, typename Word>
MORI_DEVICE_FN void PutSignal(void* dest, const void* source, u64 bytes, Word* sig_addr, u64 signal,
                              Signal op, int pe) {
  PutSignalNbi<Scope>(dest, source, bytes, sig_addr, signal, op, pe);
}
/// This PE's signal word; acquires.
template <typename Word>
MORI_DEVICE_FN u64 SignalFetch(const Word* sig_addr) {
  return LoadAcquire(SignalWord(sig_addr));
}

// ---- waits and tests, on words of this PE

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

/// Calls `done` until it holds; ends the kernel if a PE is lost and it still does not.
template <typename Done>
MORI_DEVICE_FN void WaitFor(Done done) {
  constexpr u32 kLooksBetween = 4096;  // at the mark of lost PEs, which is in the host's memory
  for (u32 looks = 1; !done(); ++looks) {
    if (looks % kLooksBetween != 0) continue;
    const u32* first_lost = globalGpuStates.first_lost;
    // What the lost PE had sent before is here by now: one look more.
    if (first_lost != nullptr && LoadAcquire(first_lost) != 0 && !done())
      Fail("a PE was lost while this kernel waited; the host's next call names it");
  }
}

template <typename T>
MORI_DEVICE_FN T ReadWord(const T* ivar) {
  return FromWord<T>(LoadAcquire(AsWord(ivar)));
}
/// Whether the word compares so now; acquires where it does. By the calling thread.
template <typename T>
MORI_DEVICE_FN bool Test(const T* ivar, Compare compare, T value) {
  return Holds(ReadWord(ivar), compare, value);
}
/// Waits for it. @return the value seen, to the thread that leads the scope
template <typename Scope, typename T>
MORI_DEVICE_FN T WaitUntil(const T* ivar, Compare compare, T value) {
  T seen{};
  if (Scope::Rank() == 0) {
    WaitFor([&] { return Holds(seen = ReadWord(ivar), compare, value); });
  }
  Scope::Sync();
  return seen;
}
template <typename Scope, typename Word>
MORI_DEVICE_FN u64 SignalWaitUntil(const Word* sig_addr, Compare compare, u64 value) {
  return WaitUntil<Scope>(SignalWord(sig_addr), compare, value);
}

// Of several words. A `status` that is not 0 leaves its word out, as in OpenSHMEM; null leaves out
// none. Tests are by the calling thread.

/// Whether each word that takes part compares so; true of none.
template <typename T>
MORI_DEVICE_FN bool TestAll(const T* ivars, u64 count, const int* status, Compare compare,
                            T value) {
  for (u64 i = 0; i < count; ++i) {
    if ((status == nullptr || status[i] == 0) && !Test(ivars + i, compare, value)) return false;
  }
  return true;
}
inline constexpr u64 kNoIndex = ~u64{0};
/// The first word from `start` on, around, that compares so; `kNoIndex` if there is none.
template <typename T>
MORI_DEVICE_FN u64 TestAny(const T* ivars, u64 count, const int* status, Compare compare, T value,
                           u64 start = 0) {
  for (u64 n = 0; n < count; ++n) {
    const u64 i = (start + n) % count;
    if ((status == nullptr || status[i] == 0) && Test(ivars + i, compare, value)) return i;
  }
  return kNoIndex;
}
/// Those that compare so, into `indices`. @return how many
template <typename T>
MORI_DEVICE_FN u64 TestSome(const T* ivars, u64 count, u64* indices, const int* status,
                            Compare compare, T value) {
  u64 found = 0;
  for (u64 i = 0; i < count; ++i) {
    if ((status == nullptr || status[i] == 0) && Test(ivars + i, compare, value))
      indices[found++] = i;
  }
  return found;
}
MORI_DEVICE_FN bool IsAnyWordIn(u64 count, const int* status) {
  if (status == nullptr) return count > 0;
  for (u64 i = 0; i < count; ++i) {
    if (status[i] == 0) return true;
  }
  return false;
}

/// Waits for all; the scope's threads share the words.
template <typename Scope, typename T>
MORI_DEVICE_FN void WaitUntilAll(const T* ivars, u64 count, const int* status, Compare compare,
                                 T value) {
  for (u64 i = Scope::Rank(); i < count; i += Scope::Size()) {
    if (status == nullptr || status[i] == 0)
      WaitFor([&] { return Test(ivars + i, compare, value); });
  }
  Scope::Sync();
}
/// Waits for one, by the calling thread. @return its index; `kNoIndex` at once where no word takes
/// part
template <typename T>
MORI_DEVICE_FN u64 WaitUntilAny(const T* ivars, u64 count, const int* status, Compare compare,
                                T value) {
  if (!IsAnyWordIn(count, status)) return kNoIndex;
  u64 found = kNoIndex;
  WaitFor([&] {
    found = TestAny(ivars, count, status, compare, value);
    return found != kNoIndex;
  });
  return found;
}
/// Waits for at least one, by the calling thread. @return how many, their indices in `indices`; 0
/// at once where no word takes part
template <typename T>
MORI_DEVICE_FN u64 WaitUntilSome(const T* ivars, u64 count, u64* indices, const int* status,
                                 Compare compare, T value) {
  if (!IsAnyWordIn(count, status)) return 0;
  u64 found = 0;
  WaitFor([&] {
    found = TestSome(ivars, count, indices, status, compare, value);
    return found > 0;
  });
  return found;
}

}  // namespace mori::shmem::device
