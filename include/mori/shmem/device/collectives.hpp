// Collectives of all PEs, in a kernel. Every PE makes the call, with one scope each, and one call
// at a time; `dest` and `source` are symmetric, do not overlap unless a call says so, and `dest` is
// not in use on any PE when the first of them makes the call. On return `dest` is complete, and
// `source` may be written to.
#pragma once

#include "mori/shmem/device/ops.hpp"

namespace mori::shmem::device {

/// What all meetings have in common: each PE writes its epoch to all, and waits for all epochs. One
/// way of latency. `epochs_of(pe)` is where a PE's epochs are reached, by PE. The scope's threads
/// have met since they stored what the meeting is to bring, and meet behind it. @return whether all
/// came that the calling thread has waited for
///
/// The fence is by the threads that write, after the scope has met: cumulative, it covers what all
/// of the scope have stored. It pairs with the acquiring loads of who waits for the epoch.
template <typename Scope, typename EpochsOf>
MORI_DEVICE_FN bool TellAndAwait(u32 my_pe, u32 n_pes, u64 epoch, EpochsOf epochs_of) {
  const u32 rank = Scope::Rank();
  if (rank >= n_pes) return true;
  FenceRelease();
  u32 pe = rank;
  do {
    StoreRelaxed(epochs_of(pe) + my_pe, epoch);
    pe += Scope::Size();
  } while (pe < n_pes);
  const u64* mine = epochs_of(my_pe);
  pe = rank;
  do {
    if (!Await([&](auto order) { return Load(mine + pe, order) >= epoch; })) return false;
    pe += Scope::Size();
  } while (pe < n_pes);
  return true;
}
/// The epoch of the next meeting, for the threads that write it.
template <typename Scope>
MORI_DEVICE_FN u64 NextEpoch(u32 my_pe, u32 n_pes, const u64* mine) {
  return Scope::Rank() < n_pes ? LoadRelaxed(mine + my_pe) + 1 : 0;
}

/// A meeting by rounds, of one thread of each PE, where some PEs are remote: in each round it tells
/// one PE at twice the distance, and waits for one. Who tells brings all that it knows of by then,
/// so that after the last round every PE has come. @return whether all came
///
/// The words are the epochs. By a network they are set behind a fence: of two meetings the later
/// message might come first. They are not added to, since a device may have no room for a kernel
/// that adds while one waits here.
using Epochs = u64 (SyncWords::*)[kMaxKernelPes];
MORI_DEVICE_FN bool TellAndAwaitInRounds(SyncWords* mine, Epochs epochs, u64 epoch,
                                         FaultCall call) {
  const u32 my_pe = globalGpuStates.my_pe;
  const u32 n_pes = globalGpuStates.n_pes;
  StoreRelaxed(&(mine->*epochs)[my_pe], epoch);
  for (u32 distance = 1; distance < n_pes; distance *= 2) {
    const u32 to = (my_pe + distance) % n_pes;
    const u32 from = (my_pe + n_pes - distance) % n_pes;
    FenceRelease();  // cumulative; pairs with the acquiring load of who waits for the epoch
    if (const u64 near = globalGpuStates.pes[to].sync; near != 0) {
      StoreRelaxed(&(reinterpret_cast<SyncWords*>(near)->*epochs)[my_pe], epoch);
    } else {
      RemoteFence();
      RemotePost(RingMemory::kSyncWords, static_cast<int>(to),
                 reinterpret_cast<u64>(&(mine->*epochs)[my_pe]) - reinterpret_cast<u64>(mine),
                 RingAtomic::kSet, sizeof(u64), epoch, call);
    }
    if (!Await([&](auto order) { return Load(&(mine->*epochs)[from], order) >= epoch; }))
      return false;
  }
  return true;
}
/// How a meeting ended, in the eyes of the thread that led it.
enum class Met : u32 { kAll = 0, kIsSecond = 1, kHasFailed = 2, kInVain = 3 };
MORI_DEVICE_FN Met MeetInRounds(SyncWords* mine, Epochs epochs, FaultCall call, bool completes) {
  // What failed ends this scope, but keeps nobody waiting.
  const bool has_failed = completes && RemoteQuiet(-1, call);
  const u64 epoch = LoadRelaxed(&(mine->*epochs)[globalGpuStates.my_pe]) + 1;
  const bool has_met = TellAndAwaitInRounds(mine, epochs, epoch, call);
  return has_failed ? Met::kHasFailed : has_met ? Met::kAll : Met::kInVain;
}
/// A meeting where some PEs are remote, by one thread of each PE, which has met its scope. What was
/// put to remote ones before is done then if it `completes`.
MORI_DEVICE_COLD_FN Met LeadRemoteMeeting(FaultCall call, bool completes) {
  SyncWords* mine = MyWords();
  if (Swap(&mine->is_meeting, 1U) != 0) return Met::kIsSecond;
  const Met met = MeetInRounds(mine, &SyncWords::epochs, call, completes);
  StoreRelaxed(&mine->is_meeting, 0U);
  return met;
}
/// For all threads of a scope whose leader tells what came of it.
template <typename Scope, IfLost kIfLost>
MORI_DEVICE_COLD_FN u32 EndRemoteMeeting(FaultCall call, Met met) {
  if (Scope::SyncAny(met == Met::kIsSecond)) FailMeeting(call, 0);
  // What failed may have done so for that: it is told behind the mark of the loss.
  if (kIfLost == IfLost::kReturn && Scope::SyncAny(FirstLost(Acquire{}) != 0))
    return FirstLost(Relaxed{});
  MeetOrFail<Scope>(met == Met::kHasFailed);
  return LostOrEnd<Scope, kIfLost>(call, 0);
}
template <typename Scope, IfLost kIfLost>
MORI_DEVICE_FN u32 MeetRemotely(FaultCall call, bool completes) {
  RequireState();
  Scope::Sync();
  const Met met = Scope::Rank() == 0 ? LeadRemoteMeeting(call, completes) : Met::kAll;
  if (!Scope::SyncAny(met != Met::kAll)) return 0;
  return EndRemoteMeeting<Scope, kIfLost>(call, met);
}

/// A meeting of all PEs by `epochs`, of one scope each. Ends a scope that meets while another one
/// of this PE does: neither would know which of the two the others have come to.
template <typename Scope, IfLost kIfLost>
MORI_DEVICE_FN u32 MeetNear(FaultCall call) {
  const u32 my_pe = static_cast<u32>(MyPe());
  const u32 n_pes = static_cast<u32>(NPes());
  const auto epochs_of = [](u32 pe) { return SyncWordsOf(static_cast<int>(pe))->epochs; };
  u32* is_meeting = &SyncWordsOf(static_cast<int>(my_pe))->is_meeting;
  const bool leads = Scope::Rank() == 0;
  // Of each thread that tells others; on its way beside the epoch.
  const u32 n_telling = Scope::Size() < n_pes ? Scope::Size() : n_pes;
  // Both at once: what the swap found is asked for when the epoch has come.
  const u64 epoch = NextEpoch<Scope>(my_pe, n_pes, epochs_of(my_pe));
  const u32 others = leads ? Swap(is_meeting, n_telling) : 0;
  if (Scope::SyncAny(others != 0)) FailMeeting(call, static_cast<u32>(epoch));
  const bool has_met = TellAndAwait<Scope>(my_pe, n_pes, epoch, epochs_of);
  // Before the scope meets: whichever of its threads lets another scope go on, that one finds 0.
  if (Scope::Rank() < n_pes) FetchAdd(is_meeting, ~0U);
  if (!Scope::SyncAny(!has_met)) return 0;
  if (leads) StoreRelaxed(is_meeting, 0U);  // threads that had ended before it took no part
  return LostOrEnd<Scope, kIfLost>(call, static_cast<u32>(epoch));
}

/// A meeting of all PEs, wherever they are. What was put to remote ones before is done then if it
/// `completes`.
template <typename Scope, IfLost kIfLost = IfLost::kEnd>
MORI_DEVICE_FN u32 Meet(FaultCall call, bool completes) {
  if (HasRemotePes()) return MeetRemotely<Scope, kIfLost>(call, completes);
  return MeetNear<Scope, kIfLost>(call);
}

/// Returns once all PEs have called it. What others had put before is visible where they had
/// completed it.
template <typename Scope>
MORI_DEVICE_FN void SyncAll() {
  Meet<Scope>(FaultCall::kBarrier, false);
}
/// Returns once all PEs have called it, and what the scopes of all had put before is visible to
/// all.
template <typename Scope>
MORI_DEVICE_FN void BarrierAll() {
  Meet<Scope>(FaultCall::kBarrier, true);
}
/// The same, or until a PE is lost: then some PEs may have met and others not, and there is no
/// other barrier or collective in this world. @return 0, or 1 + the PE that was lost first; to all
/// threads of the scope
template <typename Scope>
MORI_DEVICE_FN u32 SyncAllOrLost() {
  return Meet<Scope, IfLost::kReturn>(FaultCall::kBarrier, false);
}
template <typename Scope>
MORI_DEVICE_FN u32 BarrierAllOrLost() {
  return Meet<Scope, IfLost::kReturn>(FaultCall::kBarrier, true);
}

// The puts of each collective, without the meeting that completes it, so that a grid can share
// them.

/// The `n`th PE to send to: neighbours first, so that not all send to one at a time.
MORI_DEVICE_FN int NthPe(int n) {
  const int pe = MyPe() + 1 + n;
  return pe >= NPes() ? pe - NPes() : pe;
}
/// This PE's of parts of so many bytes.
MORI_DEVICE_FN u8* PartOfMine(void* dest, u64 bytes) {
  return static_cast<u8*>(dest) + static_cast<u64>(MyPe()) * bytes;
}
/// Who copies: a warp has fewer vectors under way than in a put, since the call for remote PEs
/// beside the copy takes registers.
template <typename Scope>
struct Copier : Scope {};
template <>
struct Copier<Warp> : Warp {
  static constexpr int kBatch = 6;
};
template <typename Scope>
MORI_DEVICE_FN void NearPut(void* dest, const void* source, u64 bytes, int pe) {
  Copy<Copier<Scope>, Source::kLocal>(Ptr(static_cast<u8*>(dest), pe, FaultCall::kPut), source,
                                      bytes);
}
template <typename Scope>
MORI_DEVICE_FN void BroadcastPuts(void* dest, const void* source, u64 bytes, int root) {
  RequirePe(root, FaultCall::kCollective);
  if (MyPe() != root) return;
  for (int n = 0; n < NPes(); ++n) {
    if (NthPe(n) != root || dest != source) NearPut<Scope>(dest, source, bytes, NthPe(n));
  }
}
template <typename Scope>
MORI_DEVICE_FN void FCollectPuts(void* dest, const void* source, u64 bytes) {
  u8* part = PartOfMine(dest, bytes);
  for (int n = 0; n < NPes(); ++n) NearPut<Scope>(part, source, bytes, NthPe(n));
}
template <typename Scope>
MORI_DEVICE_FN void AllToAllPuts(void* dest, const void* source, u64 bytes) {
  u8* part = PartOfMine(dest, bytes);
  for (int n = 0; n < NPes(); ++n) {
    const int pe = NthPe(n);
    NearPut<Scope>(part, static_cast<const u8*>(source) + static_cast<u64>(pe) * bytes, bytes, pe);
  }
}

/// The puts of a collective where some PEs are remote: `bytes` at `source + pe * stride` to `dest`
/// of each `pe`.
template <typename Scope>
MORI_DEVICE_FN void CollectPuts(void* dest, const void* source, u64 bytes, u64 stride) {
  if (Scope::Rank() == 0) RemotePutToAll(dest, source, bytes, stride);
  const int n_pes = NPes();
  MORI_NO_UNROLL
  for (int n = 0; n < n_pes; ++n) {
    const int pe = NthPe(n);
    const u8* from = static_cast<const u8*>(source) + static_cast<u64>(pe) * stride;
    u8* near = NearPtr(static_cast<u8*>(dest), pe, FaultCall::kPut);
    if (near != nullptr && near != from) CopyAny<Scope, Source::kLocal, 1>(near, from, bytes);
  }
}
/// And the meeting that completes it. Out of line, with the copy that is out of line, too: what
/// kernels over load and store alone need in registers stays what it is.
template <typename Scope>
MORI_DEVICE_OUTLINE_FN void CollectRemotely(void* dest, const void* source, u64 bytes, u64 stride) {
  CollectPuts<Scope>(dest, source, bytes, stride);
  MeetRemotely<Scope, IfLost::kEnd>(FaultCall::kCollective, true);
}

/// `root`'s `bytes` at `source`, to `dest` of all PEs; root's own `dest` may be its `source`.
template <typename Scope>
MORI_DEVICE_FN void Broadcast(void* dest, const void* source, u64 bytes, int root) {
  RequirePe(root, FaultCall::kCollective);
  if (HasRemotePes()) return CollectRemotely<Scope>(dest, source, MyPe() == root ? bytes : 0, 0);
  BroadcastPuts<Scope>(dest, source, bytes, root);
  MeetNear<Scope, IfLost::kEnd>(FaultCall::kCollective);
}
/// All-gather: each PE's `bytes` at `source`, to `dest + pe * bytes` of all.
template <typename Scope>
MORI_DEVICE_FN void FCollect(void* dest, const void* source, u64 bytes) {
  if (HasRemotePes()) return CollectRemotely<Scope>(PartOfMine(dest, bytes), source, bytes, 0);
  FCollectPuts<Scope>(dest, source, bytes);
  MeetNear<Scope, IfLost::kEnd>(FaultCall::kCollective);
}
/// Each PE's `bytes` at `source + pe * bytes`, to `dest + my_pe * bytes` of `pe`.
template <typename Scope>
MORI_DEVICE_FN void AllToAll(void* dest, const void* source, u64 bytes) {
  if (HasRemotePes()) return CollectRemotely<Scope>(PartOfMine(dest, bytes), source, bytes, bytes);
  AllToAllPuts<Scope>(dest, source, bytes);
  MeetNear<Scope, IfLost::kEnd>(FaultCall::kCollective);
}

/// Whole numbers wrap.
struct Sum {
  template <typename T>
  static MORI_DEVICE_FN T Of(T a, T b) {
    return static_cast<T>(a + b);
  }
  static MORI_DEVICE_FN int Of(int a, int b) { return Wrapped<int, unsigned>(a, b); }
  static MORI_DEVICE_FN long Of(long a, long b) { return Wrapped<long, unsigned long>(a, b); }
  static MORI_DEVICE_FN long long Of(long long a, long long b) {
    return Wrapped<long long, unsigned long long>(a, b);
  }

 private:
  template <typename Signed, typename Unsigned>
  static MORI_DEVICE_FN Signed Wrapped(Signed a, Signed b) {
    return static_cast<Signed>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  }
};
struct Min {
  template <typename T>
  static MORI_DEVICE_FN T Of(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <typename T>
  static MORI_DEVICE_FN T Of(T a, T b) {
    return a < b ? b : a;
  }
};

template <typename T>
MORI_DEVICE_FN void StoreElement(T* p, T element) {
  StoreBulk(AsWord(p), ToWord(element));
}

/// How many elements are in so many bytes.
template <typename T>
MORI_DEVICE_FN constexpr u64 CountIn(u64 bytes) {
  return bytes / sizeof(T);
}

/// `op` on each element of type `T` in what is loaded at a time.
template <typename T, typename Op, typename Unit>
MORI_DEVICE_FN Unit Combine(Op op, const Unit& a, const Unit& b) {
  struct Elements {
    T of[CountIn<T>(sizeof(Unit))];
  };
  Elements left = __builtin_bit_cast(Elements, a);
  const Elements right = __builtin_bit_cast(Elements, b);
  MORI_UNROLL
  for (u64 i = 0; i < CountIn<T>(sizeof(Unit)); ++i) left.of[i] = op.Of(left.of[i], right.of[i]);
  return __builtin_bit_cast(Unit, left);
}

/// The unit of all PEs' `source[k]` for each of `kUnits`, combined in the order of PEs.
template <typename Unit, typename T, int kUnits, typename Op>
MORI_DEVICE_FN void CombineUnits(Op op, const T* const (&source)[kUnits], Unit (&values)[kUnits]) {
  constexpr int kPesAtATime = 4;  // their loads are under way together
  const int n_pes = NPes();
  MORI_NO_UNROLL
  for (int first = 0; first < n_pes; first += kPesAtATime) {
    Unit found[kPesAtATime][kUnits]{};
    MORI_UNROLL
    for (int n = 0; n < kPesAtATime; ++n) {
      if (first + n >= n_pes) break;
      MORI_UNROLL
      for (int k = 0; k < kUnits; ++k)
        found[n][k] = LoadFresh(reinterpret_cast<const Unit*>(Ptr(source[k], first + n)));
    }
    MORI_UNROLL
    for (int n = 0; n < kPesAtATime; ++n) {
      if (first + n >= n_pes) break;
      MORI_UNROLL
      for (int k = 0; k < kUnits; ++k)
        values[k] = first + n == 0 ? found[n][k] : Combine<T>(op, values[k], found[n][k]);
    }
  }
}

/// Combines elements [start, end) of all PEs, whole units, and puts the result to all.
template <typename Scope, typename Unit, typename Op, typename T>
MORI_DEVICE_FN void ReduceUnits(Op op, T* dest, const T* source, u64 start, u64 end) {
  constexpr u64 kElements = CountIn<T>(sizeof(Unit));
  const u64 step = kElements * Scope::Size();
  MORI_NO_UNROLL
  for (u64 i = start + kElements * Scope::Rank(); i < end; i += 2 * step) {
    // The first again where there is no second: no branches between the loads.
    const bool has_second = i + step < end;
    Unit values[2]{};
    CombineUnits<Unit, T, 2>(op, {source + i, source + (has_second ? i + step : i)}, values);
    for (int n = 0; n < NPes(); ++n) {
      StoreBulk(reinterpret_cast<Unit*>(Ptr(dest + i, NthPe(n))), values[0]);
      if (has_second) StoreBulk(reinterpret_cast<Unit*>(Ptr(dest + i + step, NthPe(n))), values[1]);
    }
  }
}

/// The stores of a reduction whose sources are ready on all PEs: this PE combines its part of the
/// elements, in the order of PEs, and puts the result to all. Who reads a part writes it, so that
/// `dest` may be `source`.
template <typename Scope, typename Op, typename T>
MORI_DEVICE_FN void ReducePuts(Op op, T* dest, const T* source, u64 count) {
  constexpr u64 kWide = sizeof(Vector16) / sizeof(T);
  const u64 n_pes = static_cast<u64>(NPes());
  const u64 part = (count + n_pes * kWide - 1) / (n_pes * kWide) * kWide;
  const u64 before = part * static_cast<u64>(MyPe());
  const u64 start = before < count ? before : count;
  const u64 end = start + part < count ? start + part : count;
  const bool is_wide =
      (reinterpret_cast<u64>(dest) | reinterpret_cast<u64>(source)) % sizeof(Vector16) == 0;
  const u64 wide_end = is_wide ? start + (end - start) / kWide * kWide : start;
  ReduceUnits<Scope, Vector16>(op, dest, source, start, wide_end);
  ReduceUnits<Scope, WordOf<T>>(op, dest, source, wide_end, end);
}

/// What small messages between near PEs would need, and where PEs are remote nobody does: one for
/// kernels of programs, and one for those on streams.
enum class Scratch : u32 { kKernels = 0, kStreams = 1 };
inline constexpr u64 kScratchBytes = sizeof(SyncWords::inboxes) / 2;

/// The stores of a reduction where some PEs are remote, and sources are ready on all: as much at a
/// time as fits into memory of this PE, into which what is remote is fetched, and from which the
/// result goes there. Complete after a quiet of the thread that leads.
template <typename Scope, typename Op, typename T>
MORI_DEVICE_FN void ReduceInBatches(Op op, T* dest, const T* source, u64 count, Scratch scratch) {
  const int n_pes = NPes();
  const u64 part = (count + static_cast<u64>(n_pes) - 1) / static_cast<u64>(n_pes);
  const u64 start = part * static_cast<u64>(MyPe());
  const u64 end = start + part < count ? start + part : count;
  // A place for each PE, and one for the result.
  const u64 batch = kScratchBytes / (sizeof(T) * (static_cast<u64>(n_pes) + 1));
  T* fetched = reinterpret_cast<T*>(MyWords()->inboxes[static_cast<u32>(scratch)]);
  T* result = fetched + static_cast<u64>(n_pes) * batch;
  MORI_NO_UNROLL
  for (u64 first = start; first < end; first += batch) {
    const u64 length = end - first < batch ? end - first : batch;
    bool has_failed = false;
    if (Scope::Rank() == 0) {
      MORI_NO_UNROLL
      for (int n = 0; n < n_pes; ++n) {
        const int pe = NthPe(n);
        if (NearPtr(source, pe, FaultCall::kCollective) == nullptr)
          RemoteGet(RingOp::kGetNbi, pe, fetched + static_cast<u64>(pe) * batch, source + first,
                    length * sizeof(T));
      }
      has_failed = RemoteQuiet(-1, FaultCall::kCollective);  // of the results before, too
    }
    MeetOrFail<Scope>(has_failed);
    MORI_NO_UNROLL
    for (u64 i = Scope::Rank(); i < length; i += Scope::Size()) {
      T value{};
      MORI_NO_UNROLL
      for (int pe = 0; pe < n_pes; ++pe) {
        const T* near = NearPtr(source + first + i, pe, FaultCall::kCollective);
        if (near == nullptr) near = fetched + static_cast<u64>(pe) * batch + i;
        const T found = FromWord<T>(LoadFresh(AsWord(near)));
        value = pe == 0 ? found : op.Of(value, found);
      }
      StoreElement(result + i, value);
      MORI_NO_UNROLL
      for (int n = 0; n < n_pes; ++n) {
        T* near = NearPtr(dest + first + i, NthPe(n), FaultCall::kCollective);
        if (near != nullptr) StoreElement(near, value);
      }
    }
    Scope::Sync();
    if (Scope::Rank() == 0) RemotePutToAll(dest + first, result, length * sizeof(T), 0);
  }
}
template <typename Scope, typename Op, typename T>
MORI_DEVICE_OUTLINE_FN void ReduceRemotely(T* dest, const T* source, u64 count) {
  MeetRemotely<Scope, IfLost::kEnd>(FaultCall::kCollective, true);
  ReduceInBatches<Scope>(Op{}, dest, source, count, Scratch::kKernels);
  MeetRemotely<Scope, IfLost::kEnd>(FaultCall::kCollective, true);
}
/// Combines `count` elements of 4 or 8 bytes of all PEs with `Op` (`Sum`, `Min` or `Max`), in the
/// order of PEs: the same result, to the bit, on all. `dest` may be `source`.
template <typename Scope, typename Op, typename T>
MORI_DEVICE_FN void Reduce(T* dest, const T* source, u64 count) {
  ElementBytes<T>(count, FaultCall::kCollective, MyPe());
  if (HasRemotePes()) return ReduceRemotely<Scope, Op>(dest, source, count);
  MeetNear<Scope, IfLost::kEnd>(FaultCall::kCollective);
  ReducePuts<Scope>(Op{}, dest, source, count);
  MeetNear<Scope, IfLost::kEnd>(FaultCall::kCollective);
}

}  // namespace mori::shmem::device
