// Kernels of cuda_all_pairs_test.cpp: every PE sends to every PE, all at once, and looks at every
// byte that comes.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

namespace {

/// What the host fills inboxes with. Nobody writes to what is beside a message.
constexpr u8 kUntouched = 0xee;

/// Symmetric. The inbox has a slot for each PE that sends, the outbox one for each that receives.
struct Messages {
  u8* inbox;
  u8* outbox;
  u64 slot_bytes;
  u64 bytes;  ///< of each message
  u64 to;     ///< where a message begins in its slot of the inbox
  u64 from;   ///< and in that of the outbox
};

__device__ u8* SentTo(const Messages& m, int pe) {
  return m.outbox + static_cast<u64>(pe) * m.slot_bytes + m.from;
}
__device__ u8* SlotOf(const Messages& m, int pe) {
  return m.inbox + static_cast<u64>(pe) * m.slot_bytes;
}

/// Byte `i` of what PE `from` has for PE `to` in a round; the host has the same.
__device__ u8 ByteOf(int from, int to, int round, u64 i) {
  u32 bits = static_cast<u32>((from * 64 + to) * 4096 + round) * 0x27d4eb2fu;
  bits = (bits ^ static_cast<u32>(i)) * 0x9e3779b1u;
  bits = (bits ^ bits >> 15) * 0x85ebca6bu;
  return static_cast<u8>(bits >> 24);
}

/// Calls `act` for every PE. The block is groups of a scope's threads, and PEs are shared out among
/// them: as many are served at a time as there are groups.
template <typename Scope, typename Act>
__device__ void ForEachPe(Act act) {
  const u32 groups = ThreadsInBlock() / Scope::Size();
#pragma unroll 1
  for (u32 n = ThreadInBlock() / Scope::Size(); n < static_cast<u32>(NPes()); n += groups)
    act(NthPe(static_cast<int>(n)));
}

template <typename Scope>
__device__ __noinline__ void Write(const Messages& m, int to, int round) {
  u8* message = SentTo(m, to);
#pragma unroll 1
  for (u64 i = Scope::Rank(); i < m.bytes; i += Scope::Size())
    message[i] = ByteOf(MyPe(), to, round, i);
  Scope::Sync();
}
/// Counts the bytes of PE `from`'s slot that are not what they should be, beside the message too.
/// The scope has read them all on return.
template <typename Scope>
__device__ __noinline__ void Check(const Messages& m, int from, int round, u64* errors) {
  const u8* slot = SlotOf(m, from);
  u64 wrong = 0;
#pragma unroll 1
  for (u64 i = Scope::Rank(); i < m.slot_bytes; i += Scope::Size()) {
    const bool is_message = i >= m.to && i - m.to < m.bytes;
    const u8 expected = is_message ? ByteOf(from, MyPe(), round, i - m.to) : kUntouched;
    wrong += slot[i] != expected ? 1 : 0;
  }
  if (wrong > 0) FetchAdd(errors, wrong);
  Scope::Sync();
}

template <typename Scope>
__device__ void PutToAll(const Messages& m, int rounds, u64* errors) {
  for (int round = 1; round <= rounds; ++round) {
    ForEachPe<Scope>([&](int pe) {
      Write<Scope>(m, pe, round);
      Put<Scope>(SlotOf(m, MyPe()) + m.to, SentTo(m, pe), m.bytes, pe);
    });
    BarrierAll<Block>();
    ForEachPe<Scope>([&](int pe) { Check<Scope>(m, pe, round, errors); });
    BarrierAll<Block>();
  }
}

template <typename Scope>
__device__ void GetFromAll(const Messages& m, int rounds, u64* errors) {
  for (int round = 1; round <= rounds; ++round) {
    ForEachPe<Scope>([&](int pe) { Write<Scope>(m, pe, round); });
    BarrierAll<Block>();
    ForEachPe<Scope>([&](int pe) {
      Get<Scope>(SlotOf(m, pe) + m.to, SentTo(m, MyPe()), m.bytes, pe);
      Check<Scope>(m, pe, round, errors);
    });
    BarrierAll<Block>();
  }
}

/// Without a meeting: a message goes once its receiver has signalled that it has looked at the last
/// one. `arrived` and `taken` have a word for each PE.
template <typename Scope>
__device__ void SignalToAll(const Messages& m, int rounds, u64* errors, u64* arrived, u64* taken) {
  for (int round = 1; round <= rounds; ++round) {
    const u64 value = static_cast<u64>(round);
    const bool adds = round % 2 == 1;
    ForEachPe<Scope>([&](int pe) {
      SignalWaitUntil<Scope>(taken + pe, Compare::kEq, value - 1);
      Write<Scope>(m, pe, round);
      PutSignal<Scope>(SlotOf(m, MyPe()) + m.to, SentTo(m, pe), m.bytes, arrived + MyPe(),
                       adds ? 1 : value, adds ? Signal::kAdd : Signal::kSet, pe);
    });
    ForEachPe<Scope>([&](int pe) {
      SignalWaitUntil<Scope>(arrived + pe, Compare::kEq, value);
      Check<Scope>(m, pe, round, errors);
      if (Scope::Rank() == 0) PostSignal(taken + MyPe(), 1, Signal::kAdd, pe);
    });
  }
}

/// Symmetric, a word for each PE but for the sum.
struct SignalWords {
  u64* put;     ///< before the signal
  u64* own;     ///< of the PE that signals
  u64* of_all;  ///< one, to which all add
};
/// No data but a word. Nobody is more than a round ahead: a PE goes on when all have signalled.
template <typename Scope>
__device__ void SignalAlone(const SignalWords& words, int rounds, u64* errors) {
  const u64 n_pes = static_cast<u64>(NPes());
  for (int round = 1; round <= rounds; ++round) {
    const u64 value = static_cast<u64>(round);
    const bool adds = round % 2 == 1;
    ForEachPe<Scope>([&](int pe) {
      if (Scope::Rank() != 0) return;
      P(words.put + MyPe(), value, pe);
      PostSignal(words.own + MyPe(), adds ? 1 : value, adds ? Signal::kAdd : Signal::kSet, pe);
      PostSignal(words.of_all, static_cast<u64>(MyPe()) + 1, Signal::kAdd, pe);
    });
    ForEachPe<Scope>([&](int pe) {
      SignalWaitUntil<Scope>(words.own + pe, Compare::kGe, value);
      const u64 seen = AtomicFetch(words.put + pe, MyPe());
      if (seen != value && seen != value + 1) FetchAdd(errors, u64{1});
    });
    WaitUntil<Block>(words.of_all, Compare::kGe, value * (n_pes * (n_pes + 1) / 2));
    WaitUntilAll<Block>(words.own, n_pes, nullptr, Compare::kGe, value);
  }
}

/// Symmetric: the words of one type, and for those that hand out numbers, how often each was.
template <typename T>
struct AtomicWords {
  T* tickets;  ///< drawn by adding
  u32* tickets_drawn;
  T* turns;  ///< taken by comparing and swapping
  u32* turns_taken;
  T* token;  ///< passed on by swapping
  u32* tokens_passed;
  T* sum;
  T* bits;  ///< one for each thread of all PEs
};

/// Every thread of all PEs, on the words of every PE.
template <typename T>
__device__ void AtomicsOnAll(const AtomicWords<T>& words, int times, u64* errors) {
  const u32 threads = gridDim.x * blockDim.x;
  const u32 me = static_cast<u32>(MyPe()) * threads + blockIdx.x * blockDim.x + threadIdx.x;
  const u32 all = static_cast<u32>(NPes()) * threads * static_cast<u32>(times);
  constexpr u32 kBits = 8 * sizeof(T);
  const T bit = static_cast<T>(T{1} << me % kBits);
  T* const bits = words.bits + me / kBits;

  const auto expect = [&](bool holds) {
    if (!holds) FetchAdd(errors, u64{1});
  };
  const auto note = [&](u32* counts, u32 numbers, T number, int pe) {
    expect(number < numbers);
    if (number < numbers) ShmemAtomicInc(counts + number, pe);
  };
  for (int time = 0; time < times; ++time) {
    for (int n = 0; n < NPes(); ++n) {
      const int pe = NthPe(n);
      note(words.tickets_drawn, all, AtomicFetchAdd(words.tickets, T{1}, pe), pe);

      T turn = AtomicFetch(words.turns, pe);
      while (true) {
        const T found = AtomicCompareSwap(words.turns, turn, static_cast<T>(turn + 1), pe);
        if (found == turn) break;
        turn = found;
      }
      note(words.turns_taken, all, turn, pe);

      const T token = static_cast<T>(me * static_cast<u32>(times) + static_cast<u32>(time) + 1);
      note(words.tokens_passed, all + 1, AtomicSwap(words.token, token, pe), pe);

      ShmemAtomicAdd(words.sum, static_cast<T>(me + 1), pe);

      expect((AtomicFetchOr(bits, bit, pe) & bit) == 0);
      expect((AtomicFetchAnd(bits, static_cast<T>(~bit), pe) & bit) != 0);
      expect((AtomicFetchXor(bits, bit, pe) & bit) == 0);
      if (time + 1 < times) expect((AtomicFetchXor(bits, bit, pe) & bit) != 0);
    }
  }
}

}  // namespace

#define KERNEL extern "C" __global__ void

#define OF_SCOPE(scope, Scope)                                                           \
  KERNEL put_to_all_##scope(Messages messages, int rounds, u64* errors) {                \
    PutToAll<Scope>(messages, rounds, errors);                                           \
  }                                                                                      \
  KERNEL get_from_all_##scope(Messages messages, int rounds, u64* errors) {              \
    GetFromAll<Scope>(messages, rounds, errors);                                         \
  }                                                                                      \
  KERNEL signal_to_all_##scope(Messages messages, int rounds, u64* errors, u64* arrived, \
                               u64* taken) {                                             \
    SignalToAll<Scope>(messages, rounds, errors, arrived, taken);                        \
  }                                                                                      \
  KERNEL signal_alone_##scope(SignalWords words, int rounds, u64* errors) {              \
    SignalAlone<Scope>(words, rounds, errors);                                           \
  }
OF_SCOPE(thread, Thread)
OF_SCOPE(warp, Warp)
OF_SCOPE(block, Block)

KERNEL atomics_on_all_uint32(AtomicWords<u32> words, int times, u64* errors) {
  AtomicsOnAll(words, times, errors);
}
KERNEL atomics_on_all_uint64(AtomicWords<u64> words, int times, u64* errors) {
  AtomicsOnAll(words, times, errors);
}
