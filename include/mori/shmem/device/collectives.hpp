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

/// A meeting of all PEs by `epochs`, of one scope each. Ends a scope that meets while another one
/// of this PE does: neither would know which of the two the others have come to.
template <typename Scope, IfLost kIfLost = IfLost::kEnd>
MORI_DEVICE_FN u32 Meet(FaultCall call) {
  const u32 my_pe = static_cast<u32>(MyPe());
  const u32 n_pes = static_cast<u32>(NPes());
  const auto epochs_of = [](u32 pe) { return SyncWordsOf(static_cast<int>(pe))->epochs; };
  u32* is_meeting = &SyncWordsOf(static_cast<int>(my_pe))->is_meeting;
  const bool leads = Scope::Rank() == 0;
  // Of each thread that tells others; on its way beside the epoch.
  const u32 n_telling = Scope::Size() < n_pes ? Scope::Size() : n_pes;
  const bool is_second = leads && Swap(is_meeting, n_telling) != 0;
  const u64 epoch = NextEpoch<Scope>(my_pe, n_pes, epochs_of(my_pe));
  if (Scope::SyncAny(is_second)) FailMeeting(call, static_cast<u32>(epoch));
  const bool has_met = TellAndAwait<Scope>(my_pe, n_pes, epoch, epochs_of);
  // Before the scope meets: whichever of its threads lets another scope go on, that one finds 0.
  if (Scope::Rank() < n_pes) FetchAdd(is_meeting, ~0U);
  if (!Scope::SyncAny(!has_met)) return 0;
  if (leads) StoreRelaxed(is_meeting, 0U);  // threads that had ended before it took no part
  return LostOrEnd<Scope, kIfLost>(call, static_cast<u32>(epoch));
}

/// Returns once all PEs have called it. What others had put before is visible where they had
/// completed it.
template <typename Scope>
MORI_DEVICE_FN void SyncAll() {
  Meet<Scope>(FaultCall::kBarrier);
}
/// Returns once all PEs have called it, and what the scopes of all had put before is visible to
/// all.
template <typename Scope>
MORI_DEVICE_FN void BarrierAll() {
  Meet<Scope>(FaultCall::kBarrier);
}
/// The same, or until a PE is lost: then some PEs may have met and others not, and there is no
/// other barrier or collective in this world. @return 0, or 1 + the PE that was lost first; to all
/// threads of the scope
template <typename Scope>
MORI_DEVICE_FN u32 SyncAllOrLost() {
  return Meet<Scope, IfLost::kReturn>(FaultCall::kBarrier);
}
template <typename Scope>
MORI_DEVICE_FN u32 BarrierAllOrLost() {
  return Meet<Scope, IfLost::kReturn>(FaultCall::kBarrier);
}

// The puts of each collective, without the meeting that completes it, so that a grid can share
// them.

/// The `n`th PE to send to: neighbours first, so that not all send to one at a time.
MORI_DEVICE_FN int NthPe(int n) {
  const int pe = MyPe() + 1 + n;
  return pe >= NPes() ? pe - NPes() : pe;
}
template <typename Scope>
MORI_DEVICE_FN void BroadcastPuts(void* dest, const void* source, u64 bytes, int root) {
  RequirePe(root, FaultCall::kCollective);
  if (MyPe() != root) return;
  for (int n = 0; n < NPes(); ++n) {
    if (NthPe(n) != root || dest != source) PutNbi<Scope>(dest, source, bytes, NthPe(n));
  }
}
template <typename Scope>
MORI_DEVICE_FN void FCollectPuts(void* dest, const void* source, u64 bytes) {
  u8* part = static_cast<u8*>(dest) + static_cast<u64>(MyPe()) * bytes;
  for (int n = 0; n < NPes(); ++n) PutNbi<Scope>(part, source, bytes, NthPe(n));
}
template <typename Scope>
MORI_DEVICE_FN void AllToAllPuts(void* dest, const void* source, u64 bytes) {
  u8* part = static_cast<u8*>(dest) + static_cast<u64>(MyPe()) * bytes;
  for (int n = 0; n < NPes(); ++n) {
    const int pe = NthPe(n);
    PutNbi<Scope>(part, static_cast<const u8*>(source) + static_cast<u64>(pe) * bytes, bytes, pe);
  }
}

/// `root`'s `bytes` at `source`, to `dest` of all PEs; root's own `dest` may be its `source`.
template <typename Scope>
MORI_DEVICE_FN void Broadcast(void* dest, const void* source, u64 bytes, int root) {
  BroadcastPuts<Scope>(dest, source, bytes, root);
  Meet<Scope>(FaultCall::kCollective);
}
/// All-gather: each PE's `bytes` at `source`, to `dest + pe * bytes` of all.
template <typename Scope>
MORI_DEVICE_FN void FCollect(void* dest, const void* source, u64 bytes) {
  FCollectPuts<Scope>(dest, source, bytes);
  Meet<Scope>(FaultCall::kCollective);
}
/// Each PE's `bytes` at `source + pe * bytes`, to `dest + my_pe * bytes` of `pe`.
template <typename Scope>
MORI_DEVICE_FN void AllToAll(void* dest, const void* source, u64 bytes) {
  AllToAllPuts<Scope>(dest, source, bytes);
  Meet<Scope>(FaultCall::kCollective);
}

struct Sum {
  template <typename T>
  static MORI_DEVICE_FN T Of(T a, T b) {
    return static_cast<T>(a + b);
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

/// `op` on each element of type `T` in what is loaded at a time.
template <typename T, typename Op, typename Unit>
MORI_DEVICE_FN Unit Combine(Op op, const Unit& a, const Unit& b) {
  struct Elements {
    T of[sizeof(Unit) / sizeof(T)];
  };
  Elements left = __builtin_bit_cast(Elements, a);
  const Elements right = __builtin_bit_cast(Elements, b);
  MORI_UNROLL
  for (u64 i = 0; i < sizeof(Unit) / sizeof(T); ++i) left.of[i] = op.Of(left.of[i], right.of[i]);
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
  constexpr u64 kElements = sizeof(Unit) / sizeof(T);
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

/// Combines `count` elements of 4 or 8 bytes of all PEs with `Op` (`Sum`, `Min` or `Max`), in the
/// order of PEs: the same result, to the bit, on all. `dest` may be `source`.
template <typename Scope, typename Op, typename T>
MORI_DEVICE_FN void Reduce(T* dest, const T* source, u64 count) {
  ElementBytes<T>(count, FaultCall::kCollective, MyPe());
  Meet<Scope>(FaultCall::kCollective);
  ReducePuts<Scope>(Op{}, dest, source, count);
  Meet<Scope>(FaultCall::kCollective);
}

}  // namespace mori::shmem::device
