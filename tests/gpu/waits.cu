// Kernels of cuda_waits_test.cpp: tests and waits on words, and what completes and signals.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

#define KERNEL extern "C" __global__ void
#define FOR_EACH_SCOPE(ROW) ROW(thread, Thread) ROW(warp, Warp) ROW(block, Block)
#define FOR_EACH_TYPE(ROW) ROW(int32, i32) ROW(uint32, u32) ROW(int64, i64) ROW(uint64, u64)

namespace {

__device__ void Expect(bool holds, u64* errors) {
  if (!holds) FetchAdd(errors, u64{1});
}

}  // namespace

// ---- one word

#define ONE_WORD(name, type)                                                           \
  /* Bit c of seen[i]: whether words[i] compares as c says to values[i]. */            \
  KERNEL compare_##name(const type* words, const type* values, u64 count, u32* seen) { \
    for (u64 i = 0; i < count; ++i) {                                                  \
      seen[i] = 0;                                                                     \
      for (int c = 0; c < 6; ++c)                                                      \
        seen[i] |= Test(words + i, static_cast<Compare>(c), values[i]) ? 1u << c : 0u; \
    }                                                                                  \
  }                                                                                    \
  KERNEL set_##name(type* word, type value, int pe) { AtomicSet(word, value, pe); }
FOR_EACH_TYPE(ONE_WORD)

/// Waits, then says what it saw, and that it is done.
#define WAIT(scope, Scope, name, type)                                                \
  KERNEL wait_##name##_##scope(const type* word, int compare, type value, type* seen, \
                               u32* is_done) {                                        \
    const type found = WaitUntil<Scope>(word, static_cast<Compare>(compare), value);  \
    if (Scope::Rank() == 0) *seen = found;                                            \
    Scope::Sync();                                                                    \
    if (Scope::Rank() == Scope::Size() - 1) *is_done = 1;                             \
  }
#define WAIT_EACH_TYPE(scope, Scope) \
  WAIT(scope, Scope, int32, i32)     \
  WAIT(scope, Scope, uint32, u32)    \
  WAIT(scope, Scope, int64, i64)     \
  WAIT(scope, Scope, uint64, u64)
FOR_EACH_SCOPE(WAIT_EACH_TYPE)

// ---- several words

/// Every set of up to five words that hold, with every set that is left out.
KERNEL test_sets(u64* words, int* status, u64* errors) {
  for (u64 count = 0; count <= 5; ++count) {
    for (u32 holding = 0; holding < 1u << count; ++holding) {
      for (u32 left_out = 0; left_out < 1u << count; ++left_out) {
        u32 expected = 0;
        u32 taking_part = 0;
        for (u32 i = 0; i < count; ++i) {
          words[i] = holding >> i & 1 ? 7 : 3;
          status[i] = left_out >> i & 1 ? 2 : 0;
          taking_part |= left_out >> i & 1 ? 0 : 1u << i;
          expected |= (holding & ~left_out) >> i & 1 ? 1u << i : 0;
        }
        const int* any_status = left_out == 0 && holding % 2 == 0 ? nullptr : status;
        Expect(TestAll(words, count, any_status, Compare::kGt, u64{5}) == (expected == taking_part),
               errors);
        const u64 any = TestAny(words, count, any_status, Compare::kGt, u64{5});
        Expect(expected == 0 ? any == kNoIndex : any < count && (expected >> any & 1) != 0, errors);
        u64 indices[5];
        u32 found = 0;
        const u64 some = TestSome(words, count, indices, any_status, Compare::kGt, u64{5});
        for (u64 i = 0; i < some; ++i) found |= 1u << indices[i];
        Expect(found == expected && some == __popc(expected), errors);
        if (taking_part == 0) {  // nothing to wait for
          WaitUntilAll<Thread>(words, count, any_status, Compare::kGt, u64{5});
          Expect(WaitUntilAny(words, count, any_status, Compare::kGt, u64{5}) == kNoIndex, errors);
          Expect(WaitUntilSome(words, count, indices, any_status, Compare::kGt, u64{5}) == 0,
                 errors);
        }
      }
    }
  }
}

/// The place that is set as the `n`th of 64: each once.
__device__ u64 NthPlace(u64 n) { return n * 37 % 64; }

/// Sets 64 words of the peer, but for those left out, each once the peer has asked for it.
KERNEL set_in_turn(u64* words, const int* status, const u64* asked, int peer) {
  u64 turns = 0;
  for (u64 n = 0; n < 64; ++n) {
    if (status[NthPlace(n)] != 0) continue;
    SignalWaitUntil<Thread>(asked, Compare::kGt, turns++);
    AtomicSet(words + NthPlace(n), u64{9}, peer);
  }
}
/// Finds them in the order in which they are set.
KERNEL wait_for_any(const u64* words, int* status, u64* asked, int peer, u64* errors) {
  u64 turns = 0;
  for (u64 n = 0; n < 64; ++n) {
    if (status[NthPlace(n)] != 0) continue;
    PostSignal(asked, ++turns, Signal::kSet, peer);
    const u64 found = ShmemWaitUntilAny(words, 64, status, Compare::kEq, u64{9});
    Expect(found == NthPlace(n), errors);
    if (found < 64) status[found] = 1;
  }
  Expect(ShmemWaitUntilAny(words, 64, status, Compare::kEq, u64{9}) == kNoIndex, errors);
}
/// Asks for all at once, and finds each once.
KERNEL wait_for_some(const u64* words, int* status, u64 taking_part, u64* asked, int peer,
                     u64* errors) {
  PostSignal(asked, 64, Signal::kSet, peer);
  u64 indices[64];
  for (u64 sum = 0; sum < taking_part;) {
    const u64 found = ShmemWaitUntilSome(words, 64, indices, status, Compare::kNe, u64{0});
    Expect(found > 0 && found <= taking_part - sum, errors);
    for (u64 i = 0; i < found; ++i) {
      Expect(status[indices[i]] == 0 && SignalFetch(words + indices[i]) == 9, errors);
      status[indices[i]] = 1;
    }
    sum += found;
  }
  Expect(ShmemWaitUntilSome(words, 64, indices, status, Compare::kNe, u64{0}) == 0, errors);
}
#define WAIT_FOR_ALL(scope, Scope)                                                        \
  KERNEL wait_for_all_##scope(const u64* words, const int* status, u64* asked, int peer,  \
                              u64* errors) {                                              \
    if (Scope::Rank() == 0) PostSignal(asked, 64, Signal::kSet, peer);                    \
    WaitUntilAll<Scope>(words, 64, status, Compare::kGe, u64{9});                         \
    for (u64 i = Scope::Rank(); i < 64; i += Scope::Size()) {                             \
      /* Another place than the one that this thread waited for. */                       \
      const u64 other = (i + 1) % 64;                                                     \
      Expect(AtomicFetch(words + other, MyPe()) == (status[other] == 0 ? 9 : 0), errors); \
    }                                                                                     \
  }
FOR_EACH_SCOPE(WAIT_FOR_ALL)

// ---- completion

#define COMPLETION(scope, Scope)                                                              \
  /* A flag without any order of its own, stored after quiet: who sees it sees the data. */   \
  KERNEL quiet_then_flag_##scope(u64* data, u64* scratch, u64 words, u64* flag, int rounds,   \
                                 int peer, u64* errors) {                                     \
    for (int round = 1; round <= rounds; ++round) {                                           \
      const u64 value = static_cast<u64>(round);                                              \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size()) scratch[i] = value * 3 + i;  \
      Scope::Sync();                                                                          \
      PutNbi<Scope>(data, scratch, words * 8, peer);                                          \
      Quiet<Scope>(peer);                                                                     \
      if (Scope::Rank() == Scope::Size() - 1) AtomicSet(flag, value, peer);                   \
      SignalWaitUntil<Scope>(flag, Compare::kGe, value);                                      \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size())                              \
        Expect(data[i] == value * 3 + i, errors);                                             \
      BarrierAll<Scope>();                                                                    \
    }                                                                                         \
  }                                                                                           \
  /* The peer's data, with a get that quiet completes; the source may then be written to. */  \
  KERNEL get_then_quiet_##scope(u64* data, u64* scratch, u64 words, int rounds, int peer,     \
                                u64* errors) {                                                \
    for (int round = 1; round <= rounds; ++round) {                                           \
      const u64 value = static_cast<u64>(round);                                              \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size())                              \
        data[i] = value * 5 + i + static_cast<u64>(MyPe());                                   \
      BarrierAll<Scope>();                                                                    \
      GetNbi<Scope>(scratch, data, words * 8, peer);                                          \
      Quiet<Scope>();                                                                         \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size()) {                            \
        const u64 other = words - 1 - i;                                                      \
        Expect(scratch[other] == value * 5 + other + static_cast<u64>(peer), errors);         \
      }                                                                                       \
      BarrierAll<Scope>();                                                                    \
    }                                                                                         \
  }                                                                                           \
  /* As many signals as there are rounds, added up; each one's data in a place of its own. */ \
  KERNEL add_signals_##scope(u64* data, u64* scratch, u64 words, u64* signal, int rounds,     \
                             int peer, u64* errors) {                                         \
    for (int round = 0; round < rounds; ++round) {                                            \
      const u64 first = static_cast<u64>(round) * words;                                      \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size())                              \
        scratch[first + i] = first + i + 1;                                                   \
      Scope::Sync();                                                                          \
      PutSignalNbi<Scope>(data + first, scratch + first, words * 8, signal, 2, Signal::kAdd,  \
                          peer);                                                              \
    }                                                                                         \
    for (int round = 0; round < rounds; ++round) {                                            \
      const u64 first = static_cast<u64>(round) * words;                                      \
      SignalWaitUntil<Scope>(signal, Compare::kGe, static_cast<u64>(round) * 2 + 2);          \
      for (u64 i = Scope::Rank(); i < words; i += Scope::Size())                              \
        Expect(data[first + i] == first + i + 1, errors);                                     \
    }                                                                                         \
    SignalWaitUntil<Scope>(signal, Compare::kEq, static_cast<u64>(rounds) * 2);               \
  }
FOR_EACH_SCOPE(COMPLETION)

/// Puts by one thread, then a signal of its own: what came before it is there.
KERNEL put_then_signal(u64* data, u64* signal, int rounds, int peer, u64* errors) {
  for (int round = 1; round <= rounds; ++round) {
    const u64 value = static_cast<u64>(round);
    for (u64 i = 0; i < 8; ++i) P(data + i, value + i, peer);
    const bool is_set = round % 2 == 0;
    PostSignal(signal, is_set ? value : 1, is_set ? Signal::kSet : Signal::kAdd, peer);
    SignalWaitUntil<Thread>(signal, Compare::kGe, value);
    for (u64 i = 0; i < 8; ++i) Expect(data[i] == value + i, errors);
    BarrierAll<Thread>();
  }
}
