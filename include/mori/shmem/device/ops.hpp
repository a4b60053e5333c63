// Each operation of a kernel, once, for every scope.
//
// `dest`, `source` on the remote side, `target`, `ivar` and `sig_addr` are symmetric addresses of
// this PE. Every thread of the scope makes the call with the same arguments; results come to all of
// them, unless a call says otherwise.
//
// Routes. What load and store reach is done in line; for other PEs one thread of the scope puts a
// command on the PE's ring (device/ring.hpp), which a thread of the host carries out by a network.
// The source of such a put, and the target of such a get, is any memory that the driver copies.
//
// Faults. A PE that is not reached, a number that is no PE's, a PE that is lost while a call waits,
// and a second barrier beside one that is under way end the threads of the call, and are told to
// the host by a `FaultRecord`: the device's context lives, the rest of the kernel goes on, and the
// host's next call returns the error. Calls whose name has `OrLost` return instead of ending where
// a PE is lost. A kernel without the state of its PE ends as by a failed assertion.
//
// Memory model.
//
// - The source of a put, and the destination of a get, are ready for all threads of the scope at
//   the call. `Put` and `Get` are complete for the scope on return: its threads may write to the
//   source, or read the destination. `PutNbi` and `GetNbi` are so after the scope's `Quiet`.
// - Puts and gets move naturally aligned words: an element of up to 16 bytes that is aligned on
//   both sides is moved by one access. What the PTX ISA promises to be whole is each word of that:
//   up to 4 bytes, since the access of 16 is a vector of four; up to 8 of `P`, `G` and atomics.
// - Others see a put after the scope's `Quiet`, after a put-with-signal by its signal, or after a
//   barrier. `Fence` orders the scope's puts and atomics before its later ones, to any PE that load
//   and store reach, and of others to the same PE; and it acquires: behind an atomic that has found
//   what it waited for, it orders later loads.
// - `Quiet` is sequentially consistent: of two PEs that put, call it, and fetch the other's word,
// one at
//   least finds what the other has put.
// - A signal is stored after a fence that is cumulative over the scope; waits, tests and fetches of
//   a signal acquire: who sees the signal sees the data.
// - Atomics are single copies at system scope, for all GPUs of the node, and order nothing
//   but their word: `Fence` before them orders puts, `Quiet` completes.
// - `BarrierAll` does all of it for everybody; `SyncAll` only meets. A PE is in one barrier or
//   collective at a time in its kernels, and in another one on its streams.
// - All of it is for loads and stores by the generic proxy. Copies by the bulk engine (TMA) are
// ordered
//   by the program: before a put or signal of what they brought it waits for them, and calls
//   `fence.proxy.async` between the two. Loads by `ld.global.nc` may bring what was there before
//   any fence: not for words that others store while the kernel runs.
#pragma once

#include "mori/shmem/device/context.hpp"
#include "mori/shmem/device/copy.hpp"
#include "mori/shmem/device/remote.hpp"

namespace mori::shmem::device {

enum class Compare : int { kEq = 0, kNe = 1, kGt = 2, kGe = 3, kLt = 4, kLe = 5 };
enum class Signal : int { kSet = 0, kAdd = 1 };

/// A field of `pe`'s addresses.
MORI_DEVICE_FN u64 AddressOf(int pe, u64 PeAddresses::*field, FaultCall call) {
  RequirePe(pe, call);
  if (static_cast<u32>(pe) < kInlinePes)
    return LoadConstant(&(globalGpuStates.inline_pes[pe].*field));
  return globalGpuStates.pes[pe].*field;
}

/// The route of each operation: where load and store reach `pe`'s heap, and its copy of a symmetric
/// address in it; `kByRing` where they do not, and the ring does. It asks for the heap and not for
/// the address: a compiler can load the heap once before a loop, and tests one number.
inline constexpr u64 kByRing = 0;
MORI_DEVICE_FN u64 RouteTo(int pe, FaultCall call) {
  return AddressOf(pe, &PeAddresses::heap, call);
}
MORI_DEVICE_FN bool IsByRing(u64 heap) { return __builtin_expect(heap == kByRing, 0) != 0; }
template <typename T>
MORI_DEVICE_FN T* In(u64 heap, T* address) {
  return reinterpret_cast<T*>(heap + HeapOffset(address));
}
/// The same in one; null where the ring does it.
template <typename T>
MORI_DEVICE_FN T* NearPtr(T* address, int pe, FaultCall call) {
  const u64 heap = RouteTo(pe, call);
  return IsByRing(heap) ? nullptr : In(heap, address);
}
/// The same for what nothing but load and store can do.
template <typename T>
MORI_DEVICE_FN T* Ptr(T* address, int pe, FaultCall call = FaultCall::kPtr) {
  const u64 heap = RouteTo(pe, call);
  if (IsByRing(heap)) FailOutOfReach(pe, call);
  return In(heap, address);
}
MORI_DEVICE_FN SyncWords* NearSyncWords(int pe) {
  return reinterpret_cast<SyncWords*>(AddressOf(pe, &PeAddresses::sync, FaultCall::kBarrier));
}
MORI_DEVICE_FN SyncWords* SyncWordsOf(int pe) {
  SyncWords* near = NearSyncWords(pe);
  if (near == nullptr) FailOutOfReach(pe, FaultCall::kBarrier);
  return near;
}

// ---- put and get

/// What divides the address and the size of elements of this type, if they are aligned: `Copy`'s
/// `kUnit`.
template <typename T>
inline constexpr u32 kUnitOf = alignof(T) < 8 ? alignof(T) : 8;

/// Of `count` elements; ends a thread that names more of them than there are addresses.
template <typename T>
MORI_DEVICE_FN u64 ElementBytes(u64 count, FaultCall call, int pe) {
  if constexpr (sizeof(T) > 1) {
    if (count > ~u64{0} / sizeof(T))
      FailWith(FaultReason::kTooManyElements, call, pe, sizeof(T), "there are too many elements");
  }
  return count * sizeof(T);
}

// What load and store reach is in line; the rest is a call, by one thread.
template <typename Scope, u32 kUnit = 1>
MORI_DEVICE_FN void PutNbi(void* dest, const void* source, u64 bytes, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kPut);
  if (!IsByRing(heap)) {
    Copy<Scope, Source::kLocal, kUnit>(In(heap, dest), source, bytes);
  } else if (Scope::Rank() == 0) {
    RemotePut(RingOp::kPutNbi, pe, dest, source, bytes);
  }
}
template <typename Scope, u32 kUnit = 1>
MORI_DEVICE_FN void GetNbi(void* dest, const void* source, u64 bytes, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kGet);
  if (!IsByRing(heap)) {
    Copy<Scope, Source::kRemote, kUnit>(dest, In(heap, source), bytes);
  } else if (Scope::Rank() == 0) {
    RemoteGet(RingOp::kGetNbi, pe, dest, source, bytes);
  }
}
/// A put where load and store reach.
template <typename Scope, u32 kUnit>
MORI_DEVICE_FN void CopyAndMeet(void* to, const void* source, u64 bytes) {
  Copy<Scope, Source::kLocal, kUnit>(to, source, bytes);
  Scope::Sync();  // of a put
}
template <typename Scope, u32 kUnit = 1>
MORI_DEVICE_FN void Put(void* dest, const void* source, u64 bytes, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kPut);
  if (IsByRing(heap)) {
    return MeetOrFail<Scope>(Scope::Rank() == 0 &&
                             RemotePut(RingOp::kPut, pe, dest, source, bytes));
  }
  CopyAndMeet<Scope, kUnit>(In(heap, dest), source, bytes);
}
template <typename Scope, u32 kUnit = 1>
MORI_DEVICE_FN void Get(void* dest, const void* source, u64 bytes, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kGet);
  if (IsByRing(heap)) {
    return MeetOrFail<Scope>(Scope::Rank() == 0 &&
                             RemoteGet(RingOp::kGet, pe, dest, source, bytes));
  }
  Copy<Scope, Source::kRemote, kUnit>(dest, In(heap, source), bytes);
  Scope::Sync();
}

/// One element, by the calling thread.
template <typename T>
MORI_DEVICE_FN void P(T* dest, T value, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kPut);
  if (IsByRing(heap)) return RemoteP(dest, value, pe);
  *static_cast<volatile T*>(In(heap, dest)) = value;
}
template <typename T>
MORI_DEVICE_FN T G(const T* source, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kGet);
  if (IsByRing(heap)) return RemoteG(source, pe);
  return *static_cast<const volatile T*>(In(heap, source));
}

// ---- order and completion

/// What the scope put before comes before what it puts afterwards. It acquires, too.
template <typename Scope>
MORI_DEVICE_FN void Fence() {
  Scope::Sync();
  FenceSystem();
  if (!HasRemotePes()) return;
  if (Scope::Rank() == 0) RemoteFence();
  Scope::Sync();  // what others of the scope put from now on is on the ring behind it
}
/// What the scope put before is there, on all PEs. Sequentially consistent: it pairs with the quiet
/// of who stores what this scope loads afterwards.
template <typename Scope>
MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
  FenceSequential();
  if (HasRemotePes()) MeetOrFail<Scope>(Scope::Rank() == 0 && RemoteQuiet(-1, FaultCall::kQuiet));
}
/// The same on `pe`.
template <typename Scope>
MORI_DEVICE_FN void Quiet(int pe) {
  RequirePe(pe, FaultCall::kQuiet);
  Scope::Sync();
  FenceSequential();
  if (HasRemotePes()) MeetOrFail<Scope>(Scope::Rank() == 0 && RemoteQuietOf(pe));
}

// ---- atomics, by the calling thread, on integers of 32 and 64 bits; fetch, set, swap and
// compare-swap on whatever has that size

/// `near(word)` where load and store reach the target, and the same by the ring where they do not.
template <typename T, typename Near>
MORI_DEVICE_FN T FetchingAtomic(RingAtomic code, const T* target, WordOf<T> value,
                                WordOf<T> expected, int pe, Near near) {
  const u64 heap = RouteTo(pe, FaultCall::kAtomic);
  if (!IsByRing(heap)) return FromWord<T>(near(const_cast<WordOf<T>*>(AsWord(In(heap, target)))));
  return FromWord<T>(static_cast<WordOf<T>>(
      RemoteFetch(pe, HeapOffset(target), code, sizeof(T), value, expected)));
}
/// The same without a result.
template <typename T, typename Near>
MORI_DEVICE_FN void PostingAtomic(RingAtomic code, T* target, WordOf<T> value, int pe, Near near) {
  const u64 heap = RouteTo(pe, FaultCall::kAtomic);
  if (!IsByRing(heap)) {
    near(AsWord(In(heap, target)));
  } else {
    RemotePost(RingMemory::kHeap, pe, HeapOffset(target), code, sizeof(T), value,
               FaultCall::kAtomic);
  }
}

template <typename T>
MORI_DEVICE_FN T AtomicFetch(const T* target, int pe) {
  return FetchingAtomic(RingAtomic::kFetch, target, 0, 0, pe,
                        [](WordOf<T>* word) { return LoadRelaxed(word); });
}
template <typename T>
MORI_DEVICE_FN void AtomicSet(T* target, T value, int pe) {
  PostingAtomic(RingAtomic::kSet, target, ToWord(value), pe,
                [&](WordOf<T>* word) { StoreRelaxed(word, ToWord(value)); });
}
/// Add and the operations on bits are for integers.
template <typename T>
MORI_DEVICE_FN void RequireInteger() {
  static_assert(T(1) / T(2) == T(0), "atomic add, and, or and xor are on integers");
}
#define MORI_ATOMIC_OF_INTEGERS(Name)                                                         \
  template <typename T>                                                                       \
  MORI_DEVICE_FN T AtomicFetch##Name(T* target, T value, int pe) {                            \
    RequireInteger<T>();                                                                      \
    return FetchingAtomic(RingAtomic::kFetch##Name, target, ToWord(value), 0, pe,             \
                          [&](WordOf<T>* word) { return Fetch##Name(word, ToWord(value)); }); \
  }                                                                                           \
  template <typename T>                                                                       \
  MORI_DEVICE_FN void Atomic##Name(T* target, T value, int pe) {                              \
    RequireInteger<T>();                                                                      \
    PostingAtomic(RingAtomic::kFetch##Name, target, ToWord(value), pe,                        \
                  [&](WordOf<T>* word) { Fetch##Name(word, ToWord(value)); });                \
  }
MORI_ATOMIC_OF_INTEGERS(Add)
MORI_ATOMIC_OF_INTEGERS(And)
MORI_ATOMIC_OF_INTEGERS(Or)
MORI_ATOMIC_OF_INTEGERS(Xor)
#undef MORI_ATOMIC_OF_INTEGERS
template <typename T>
MORI_DEVICE_FN T AtomicSwap(T* target, T value, int pe) {
  return FetchingAtomic(RingAtomic::kSwap, target, ToWord(value), 0, pe,
                        [&](WordOf<T>* word) { return Swap(word, ToWord(value)); });
}
/// Stores `value` where `expected` was found. @return what was found
template <typename T>
MORI_DEVICE_FN T AtomicCompareSwap(T* target, T expected, T value, int pe) {
  return FetchingAtomic(
      RingAtomic::kCompareSwap, target, ToWord(value), ToWord(expected), pe,
      [&](WordOf<T>* word) { return CompareSwap(word, ToWord(expected), ToWord(value)); });
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

MORI_DEVICE_FN RingAtomic RingAtomicOf(Signal op) {
  return op == Signal::kSet ? RingAtomic::kSet : RingAtomic::kFetchAdd;
}
/// Sets or adds the signal, by the calling thread, where load and store reach it.
MORI_DEVICE_FN void PostNearSignal(u64* word, u64 signal, Signal op) {
  FenceRelease();  // pairs with the acquiring load of who waits for the signal
  if (op == Signal::kSet) {
    StoreRelaxed(word, signal);
  } else {
    FetchAdd(word, signal);
  }
}
/// Sets or adds the signal, by the calling thread; what it put before comes first.
template <typename Word>
MORI_DEVICE_FN void PostSignal(Word* sig_addr, u64 signal, Signal op, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kSignal);
  if (!IsByRing(heap)) {
    PostNearSignal(SignalWord(In(heap, sig_addr)), signal, op);
  } else {
    RemoteSignal(pe, sig_addr, RingAtomicOf(op), signal);
  }
}
/// Puts, then sets or adds the signal there: who sees the signal sees the data.
template <typename Scope, bool kWaits = false, typename Word>
MORI_DEVICE_FN void PutSignalNbi(void* dest, const void* source, u64 bytes, Word* sig_addr,
                                 u64 signal, Signal op, int pe) {
  const u64 heap = RouteTo(pe, FaultCall::kPut);
  if (IsByRing(heap)) {
    const bool has_failed =
        Scope::Rank() == 0 && RemotePutSignal(pe, dest, source, bytes, SignalWord(sig_addr),
                                              RingAtomicOf(op), signal, kWaits);
    if (kWaits) MeetOrFail<Scope>(has_failed);
    return;
  }
  CopyAndMeet<Scope, 1>(In(heap, dest), source, bytes);
  // The leader's fence is cumulative over the scope, whose threads have met.
  if (Scope::Rank() == 0) PostNearSignal(SignalWord(In(heap, sig_addr)), signal, op);
}
template <typename Scope, typename Word>
MORI_DEVICE_FN void PutSignal(void* dest, const void* source, u64 bytes, Word* sig_addr, u64 signal,
                              Signal op, int pe) {
  PutSignalNbi<Scope, true>(dest, source, bytes, sig_addr, signal, op, pe);
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

/// 1 + the PE that was lost first; 0 while there is none.
template <typename Order>
MORI_DEVICE_FN u32 FirstLost(Order order) {
  const u32* first_lost = globalGpuStates.first_lost;
  return first_lost == nullptr ? 0 : Load(first_lost, order);
}
/// This PE's own words; null without its state.
MORI_DEVICE_FN SyncWords* MyWords() {
  const u32 my_pe = globalGpuStates.my_pe;
  return reinterpret_cast<SyncWords*>(my_pe < kInlinePes
                                          ? LoadConstant(&globalGpuStates.inline_pes[my_pe].sync)
                                          : globalGpuStates.pes[my_pe].sync);
}
/// Tells the host of a lost PE, if there is one, and ends the calling thread.
MORI_DEVICE_COLD_FN void FailIfLost(FaultCall call, u32 value) {
  const u32 lost = FirstLost(Relaxed{});
  if (lost == 0) return;
  FailWith(FaultReason::kPeLost, call, static_cast<int>(lost) - 1, value,
           "a PE was lost while this kernel waited; the host's next call names it");
}
/// Tells the host that this PE has begun a meeting beside another one: neither of them knows which
/// of the two the others have come to. From then on none of its waits lasts. Where a PE is lost,
/// that is told: the other meeting may be one that it has left unfinished.
[[noreturn]] MORI_DEVICE_COLD_FN void FailMeeting(FaultCall call, u32 value) {
  FailIfLost(call, value);
  StoreRelaxed(&MyWords()->has_met_twice, 1U);
  FailWith(FaultReason::kTwoMeetings, call, MyPe(), value,
           "this PE is in a barrier or collective of that kind already");
}
/// How many faults of this PE the host has taken.
MORI_DEVICE_FN u32 FaultsTaken() {
  const Faults* faults = globalGpuStates.faults;
  return faults == nullptr ? 0 : LoadRelaxed(&faults->taken);
}
/// Whether nobody may come any more: a PE is lost, a thread of this PE has ended by a fault of
/// which the host has yet to hear, or has heard since it had taken `taken` of them, or its meetings
/// are out of step.
MORI_DEVICE_FN bool MayBeInVain(u32 taken) {
  const Faults* faults = globalGpuStates.faults;
  const SyncWords* words = MyWords();
  return FirstLost(Acquire{}) != 0 ||
         (faults != nullptr && (IsToldOfFault(faults) || FaultsTaken() != taken)) ||
         (words != nullptr && LoadRelaxed(&words->has_met_twice) != 0);
}
/// Ends a thread that has waited in vain: the threads of its scope come here together.
[[noreturn]] MORI_DEVICE_COLD_FN void FailWaiting(FaultCall call, u32 value) {
  FailIfLost(call, value);
  if (LoadRelaxed(&MyWords()->has_met_twice) != 0) FailMeeting(call, value);
  FailThread();  // the host is told of another fault
}

/// Looks without an order until `look` is true. @return whether it is not, and may never be
template <typename Look>
MORI_DEVICE_FN bool PollInVain(Look look) {
  constexpr u32 kLooksBetween = 4096;  // at the host's memory, which is far away
  const u32 taken = FaultsTaken();
  for (u32 looks = 1;; ++looks) {
    Sleep();
    if (look(Relaxed{})) return false;
    if (looks % kLooksBetween == 0 && MayBeInVain(taken)) return true;
  }
}
/// Looks until `look(order)` is true, and acquires. @return whether it was: false if there is no
/// more hope of it.
///
/// A load that acquires empties the L1 cache of all threads beside this one: after some looks,
/// those that find nothing are relaxed, with a pause between them.
template <typename Look>
MORI_DEVICE_FN bool Await(Look look) {
  constexpr u32 kLooksAtOnce = 64;
  bool is_there = false;
  bool is_last = false;
  for (u32 looks = 1;; ++looks) {
    is_there = look(WhileWaiting{});
    if (is_there || is_last) break;
    // What a lost PE had sent before is here by then: one look more.
    if (looks >= kLooksAtOnce) is_last = PollInVain(look);
  }
  AcquireAfterWaiting();
  return is_there;
}

/// A word of this PE, loaded with that order.
template <typename T, typename Order>
MORI_DEVICE_FN T ReadWord(const T* ivar, Order order) {
  return FromWord<T>(Load(AsWord(ivar), order));
}
/// Whether the word compares so now; acquires where it does. By the calling thread.
template <typename T, typename Order = Acquire>
MORI_DEVICE_FN bool Test(const T* ivar, Compare compare, T value, Order order = {}) {
  return Holds(ReadWord(ivar, order), compare, value);
}

/// What to do where a PE is lost while a call waits.
enum class IfLost { kEnd, kReturn };
/// For a scope that has waited in vain, by all of its threads: they return together, or end. One of
/// them may see that a PE is lost before another one does. @return 1 + the PE that was lost first
template <typename Scope, IfLost kIfLost>
MORI_DEVICE_FN u32 LostOrEnd(FaultCall call, u32 value) {
  if (kIfLost == IfLost::kEnd || !Scope::SyncAny(FirstLost(Acquire{}) != 0))
    FailWaiting(call, value);
  return FirstLost(Relaxed{});
}

/// The leader of the scope waits for the word, and the others for it.
template <typename Scope, IfLost kIfLost, typename T>
MORI_DEVICE_FN u32 AwaitWord(const T* ivar, Compare compare, T value, T* seen) {
  bool is_in_vain = false;
  if (Scope::Rank() == 0) {
    is_in_vain =
        !Await([&](auto order) { return Holds(*seen = ReadWord(ivar, order), compare, value); });
  }
  if (!Scope::SyncAny(is_in_vain)) return 0;
  return LostOrEnd<Scope, kIfLost>(FaultCall::kWait, static_cast<u32>(ToWord(value)));
}
/// Waits for it. @return the value seen, to the thread that leads the scope
template <typename Scope, typename T>
MORI_DEVICE_FN T WaitUntil(const T* ivar, Compare compare, T value) {
  T seen{};
  AwaitWord<Scope, IfLost::kEnd>(ivar, compare, value, &seen);
  return seen;
}
/// Waits until it holds, or a PE is lost and it does not. @return 0, or 1 + the PE that was lost
/// first; to all threads of the scope
template <typename Scope, typename T>
MORI_DEVICE_FN u32 WaitUntilOrLost(const T* ivar, Compare compare, T value) {
  T seen{};
  return AwaitWord<Scope, IfLost::kReturn>(ivar, compare, value, &seen);
}
template <typename Scope, typename Word>
MORI_DEVICE_FN u64 SignalWaitUntil(const Word* sig_addr, Compare compare, u64 value) {
  return WaitUntil<Scope>(SignalWord(sig_addr), compare, value);
}
template <typename Scope, typename Word>
MORI_DEVICE_FN u32 SignalWaitUntilOrLost(const Word* sig_addr, Compare compare, u64 value) {
  return WaitUntilOrLost<Scope>(SignalWord(sig_addr), compare, value);
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
template <typename T, typename Order = Acquire>
MORI_DEVICE_FN u64 TestAny(const T* ivars, u64 count, const int* status, Compare compare, T value,
                           u64 start = 0, Order order = {}) {
  for (u64 n = 0; n < count; ++n) {
    const u64 i = (start + n) % count;
    if ((status == nullptr || status[i] == 0) && Test(ivars + i, compare, value, order)) return i;
  }
  return kNoIndex;
}
/// Those that compare so, into `indices`. @return how many
template <typename T, typename Order = Acquire>
MORI_DEVICE_FN u64 TestSome(const T* ivars, u64 count, u64* indices, const int* status,
                            Compare compare, T value, Order order = {}) {
  u64 found = 0;
  for (u64 i = 0; i < count; ++i) {
    if ((status == nullptr || status[i] == 0) && Test(ivars + i, compare, value, order))
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

/// The scope's threads share the words, and meet.
template <typename Scope, IfLost kIfLost, typename T>
MORI_DEVICE_FN u32 AwaitAll(const T* ivars, u64 count, const int* status, Compare compare,
                            T value) {
  bool is_in_vain = false;
  for (u64 i = Scope::Rank(); i < count && !is_in_vain; i += Scope::Size()) {
    if (status == nullptr || status[i] == 0)
      is_in_vain = !Await([&](auto order) { return Test(ivars + i, compare, value, order); });
  }
  if (!Scope::SyncAny(is_in_vain)) return 0;
  return LostOrEnd<Scope, kIfLost>(FaultCall::kWait, static_cast<u32>(ToWord(value)));
}
/// Waits for all; the scope's threads share the words.
template <typename Scope, typename T>
MORI_DEVICE_FN void WaitUntilAll(const T* ivars, u64 count, const int* status, Compare compare,
                                 T value) {
  AwaitAll<Scope, IfLost::kEnd>(ivars, count, status, compare, value);
}
/// Waits for all, or until a PE is lost. @return as `WaitUntilOrLost()`
template <typename Scope, typename T>
MORI_DEVICE_FN u32 WaitUntilAllOrLost(const T* ivars, u64 count, const int* status, Compare compare,
                                      T value) {
  return AwaitAll<Scope, IfLost::kReturn>(ivars, count, status, compare, value);
}
/// Waits for one, or until a PE is lost; by the calling thread. @return its index; `kNoIndex` at
/// once where no word takes part, and where a PE is lost
template <typename T>
MORI_DEVICE_FN u64 WaitUntilAnyOrLost(const T* ivars, u64 count, const int* status, Compare compare,
                                      T value) {
  if (!IsAnyWordIn(count, status)) return kNoIndex;
  u64 found = kNoIndex;
  Await([&](auto order) {
    found = TestAny(ivars, count, status, compare, value, 0, order);
    return found != kNoIndex;
  });
  return found;
}
/// Waits for one, by the calling thread. @return its index; `kNoIndex` at once where no word takes
/// part
template <typename T>
MORI_DEVICE_FN u64 WaitUntilAny(const T* ivars, u64 count, const int* status, Compare compare,
                                T value) {
  if (!IsAnyWordIn(count, status)) return kNoIndex;
  const u64 found = WaitUntilAnyOrLost(ivars, count, status, compare, value);
  if (found == kNoIndex) FailWaiting(FaultCall::kWait, static_cast<u32>(ToWord(value)));
  return found;
}
/// Waits for at least one, or until a PE is lost; by the calling thread. @return how many, their
/// indices in `indices`; 0 at once where no word takes part, and where a PE is lost
template <typename T>
MORI_DEVICE_FN u64 WaitUntilSomeOrLost(const T* ivars, u64 count, u64* indices, const int* status,
                                       Compare compare, T value) {
  if (!IsAnyWordIn(count, status)) return 0;
  u64 found = 0;
  Await([&](auto order) {
    found = TestSome(ivars, count, indices, status, compare, value, order);
    return found > 0;
  });
  return found;
}
/// Waits for at least one, by the calling thread. @return how many, their indices in `indices`; 0
/// at once where no word takes part
template <typename T>
MORI_DEVICE_FN u64 WaitUntilSome(const T* ivars, u64 count, u64* indices, const int* status,
                                 Compare compare, T value) {
  if (!IsAnyWordIn(count, status)) return 0;
  const u64 found = WaitUntilSomeOrLost(ivars, count, indices, status, compare, value);
  if (found == 0) FailWaiting(FaultCall::kWait, static_cast<u32>(ToWord(value)));
  return found;
}

}  // namespace mori::shmem::device
