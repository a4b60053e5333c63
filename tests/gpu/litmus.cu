// Kernels of cuda_litmus_test.cpp: what comes in order between two PEs, tried many times, and in a
// crowd. tools/gpu_litmus.sh runs them with headers from which a fence was taken.
#include "mori/shmem/shmem_device_api.hpp"

using namespace mori::shmem::device;

namespace {

constexpr u64 kLineWords = 16;  // of a cache line of 128 bytes

/// Symmetric. A channel is what one group of a scope's threads sends to one group of the peer.
struct Channels {
  u64* inbox;    ///< a message each, with half a line behind it, in which `Crowd` is at work
  u64* outbox;   ///< the same
  u64* arrived;  ///< the round of the last message, a line each
  u64* taken;    ///< of the last one that the receiver has looked at
  u64* done;     ///< one: the blocks of this PE that have sent or received everything
  u64 words;     ///< of a message: half a line more than whole lines
};
__device__ u64 Stride(const Channels& c) { return c.words + kLineWords / 2; }

__device__ void Expect(bool holds, u64* errors) {
  if (!holds) FetchAdd(errors, u64{1});
}
/// Word `i` of a message. Nothing is round 0.
__device__ u64 MessageWord(u64 round, u32 channel, u64 i) {
  return round * (channel * 8191 + 2 * i + 1);
}

/// Beside the messages' last words: their lines are busy, so that they are not there before others.
__device__ void Crowd(const Channels& c, u64 blocks, int peer) {
  u64* const word = c.inbox + threadIdx.x % 4 * Stride(c) + c.words + 4;
  while (AtomicFetch(c.done, MyPe()) < blocks) {
    for (int i = 0; i < 4; ++i) AtomicFetchAdd(word, u64{1}, peer);
  }
}

/// How a message is made known.
struct BySignal {
  template <typename Scope>
  static __device__ void Send(u64* dest, const u64* source, u64 words, u64* arrived, u64 round,
                              u32, int peer) {
    PutSignal<Scope>(dest, source, words * 8, arrived, round, Signal::kSet, peer);
  }
};
/// By a signal that counts messages: one is added for each.
struct ByAddedSignal {
  template <typename Scope>
  static __device__ void Send(u64* dest, const u64* source, u64 words, u64* arrived, u64,
                              u32, int peer) {
    PutSignal<Scope>(dest, source, words * 8, arrived, 1, Signal::kAdd, peer);
  }
};
/// By a flag without any order of its own, put or set.
template <typename Scope>
__device__ void SendFlag(u64* arrived, u64 round, int peer) {
  if (Scope::Rank() != Scope::Size() - 1) return;
  round % 2 == 0 ? P(arrived, round, peer) : AtomicSet(arrived, round, peer);
}
struct ByFlagBehindFence {
  template <typename Scope>
  static __device__ void Send(u64* dest, const u64* source, u64 words, u64* arrived, u64 round,
                              u32, int peer) {
    Put<Scope>(dest, source, words * 8, peer);
    Fence<Scope>();
    SendFlag<Scope>(arrived, round, peer);
  }
};
struct ByFlagAfterQuiet {
  template <typename Scope>
  static __device__ void Send(u64* dest, const u64* source, u64 words, u64* arrived, u64 round,
                              u32, int peer) {
    PutNbi<Scope>(dest, source, words * 8, peer);
    Quiet<Scope>();
    SendFlag<Scope>(arrived, round, peer);
  }
};
/// Some threads are late: a warp of a block, or a lane of a warp, but not who leads.
template <typename Scope>
__device__ void BeLate(u64 round) {
  constexpr long long kLateCycles = 10'000;
  const u32 parts = Scope::Size() > 32 ? Scope::Size() / 32 : Scope::Size();
  const u32 part = Scope::Rank() / (Scope::Size() / parts);
  if (part != 1 + round % (parts - 1)) return;
  const long long start = clock64();
  while (clock64() - start < kLateCycles) {
  }
}
/// Half a line by all, the rest word by word by each thread itself. The one signal stands for all.
struct ByThreadsThatAreLate {
  template <typename Scope>
  static __device__ void Send(u64* dest, const u64* source, u64 words, u64* arrived, u64 round,
                              u32 channel, int peer) {
    constexpr u64 kByAll = kLineWords / 2;
    BeLate<Scope>(round);
    for (u64 i = kByAll + Scope::Rank(); i < words; i += Scope::Size())
      P(dest + i, MessageWord(round, channel, i), peer);
    PutSignal<Scope>(dest, source, kByAll * 8, arrived, round, Signal::kSet, peer);
  }
};

template <typename Scope, typename How>
__device__ void Send(const Channels& c, u32 channel, int rounds, int peer) {
  u64* const source = c.outbox + channel * Stride(c);
  for (int i = 1; i <= rounds; ++i) {
    const u64 round = static_cast<u64>(i);
    SignalWaitUntil<Scope>(c.taken + channel * kLineWords, Compare::kGe, round - 1);
    for (u64 word = Scope::Rank(); word < c.words; word += Scope::Size())
      source[word] = MessageWord(round, channel, word);
    Scope::Sync();
    How::template Send<Scope>(c.inbox + channel * Stride(c), source, c.words,
                              c.arrived + channel * kLineWords, round, channel, peer);
  }
}

/// How the threads that receive learn of a message.
enum class Awaiting {
  kByItself,       ///< each thread waits, and looks at the last words at once
  kLooksBefore,    ///< looks, and then the scope waits
  kPollsAndFences  ///< looks, polls an atomic, and calls Fence
};

/// Who looks before brings lines into the cache next to the thread, which must not be what it finds
/// behind the wait. That look is a race, and either value is right: it reads words as large as those
/// that the put writes, of which a race may not be.
template <typename Scope>
__device__ void LookAndAwait(const Channels& c, const u64* message, const u64* arrived, u32 channel,
                             u64 round, Awaiting awaiting, u64* errors) {
  const u32* const halves = reinterpret_cast<const u32*>(message);
  for (u64 i = Scope::Rank(); i < 2 * c.words; i += Scope::Size()) {
    const auto half = [&](u64 of_round) {
      return static_cast<u32>(MessageWord(of_round, channel, i / 2) >> 32 * (i % 2));
    };
    const u32 seen = halves[i];
    Expect(seen == half(round) || seen == half(round - 1), errors);
  }
  if (awaiting == Awaiting::kLooksBefore) {
    SignalWaitUntil<Scope>(arrived, Compare::kGe, round);
    return;
  }
  while (AtomicFetch(arrived, MyPe()) < round) {
  }
  Fence<Scope>();
}

template <typename Scope>
__device__ __noinline__ void Receive(const Channels& c, u32 channel, int rounds, int peer,
                                     Awaiting awaiting, u64* errors) {
  const u64* const message = c.inbox + channel * Stride(c);
  const u64* const arrived = c.arrived + channel * kLineWords;
  for (int i = 1; i <= rounds; ++i) {
    const u64 round = static_cast<u64>(i);
    if (awaiting == Awaiting::kByItself) {
      SignalWaitUntil<Thread>(arrived, Compare::kGe, round);
    } else {
      LookAndAwait<Scope>(c, message, arrived, channel, round, awaiting, errors);
    }
    for (u64 n = Scope::Rank(); n < c.words; n += Scope::Size()) {
      const u64 word = c.words - 1 - n;
      Expect(message[word] == MessageWord(round, channel, word), errors);
    }
    Scope::Sync();
    if (Scope::Rank() == 0)
      PostSignal(c.taken + channel * kLineWords, round, Signal::kSet, peer);
  }
}

/// The first `pairs` blocks send, as many receive, and the rest is the crowd.
template <typename Scope, typename How>
__device__ void SendAndReceive(const Channels& c, u32 pairs, int rounds, int peer,
                               Awaiting awaiting, u64* errors) {
  if (blockIdx.x >= 2 * pairs) return Crowd(c, 2 * pairs, peer);
  const u32 groups = ThreadsInBlock() / Scope::Size();
  const u32 channel = blockIdx.x % pairs * groups + ThreadInBlock() / Scope::Size();
  if (blockIdx.x < pairs) {
    Send<Scope, How>(c, channel, rounds, peer);
  } else {
    Receive<Scope>(c, channel, rounds, peer, awaiting, errors);
  }
  BlockSync();
  if (ThreadInBlock() == 0) AtomicFetchAdd(c.done, u64{1}, MyPe());
}

/// Messages on the first channel that nothing but the barrier makes known, by one group.
template <typename Scope>
__device__ void PutAndMeet(const Channels& c, int rounds, int peer, u64* errors) {
  if (blockIdx.x > 0) return Crowd(c, 1, peer);
  if (ThreadInBlock() >= Scope::Size()) return;
  for (int i = 1; i <= rounds; ++i) {
    const u64 round = static_cast<u64>(i);
    for (u64 word = Scope::Rank(); word < c.words; word += Scope::Size())
      c.outbox[word] = MessageWord(round, 0, word);
    Scope::Sync();
    PutNbi<Scope>(c.inbox, c.outbox, c.words * 8, peer);
    BarrierAll<Scope>();
    for (u64 n = Scope::Rank(); n < c.words; n += Scope::Size()) {
      const u64 word = c.words - 1 - n;
      Expect(c.inbox[word] == MessageWord(round, 0, word), errors);
    }
    BarrierAll<Scope>();
  }
  if (Scope::Rank() == 0) AtomicFetchAdd(c.done, u64{1}, MyPe());
}

/// A word by each thread, before the barrier. The PEs take turns in having threads that are late: those
/// of the other are through it at once, if its leaders do not wait.
template <typename Scope>
__device__ void PutLateAndMeet(u64* inbox, int rounds, int peer, u64* errors) {
  for (int i = 1; i <= rounds; ++i) {
    const u64 word = MessageWord(static_cast<u64>(i), 0, Scope::Rank());
    if (i % 2 == MyPe() % 2) BeLate<Scope>(static_cast<u64>(i));
    P(inbox + Scope::Rank(), word, peer);
    BarrierAll<Scope>();
    Expect(inbox[Scope::Rank()] == word, errors);
    BarrierAll<Scope>();
  }
}

/// Store buffering: both PEs put a word to the other at the same time, complete it, and look at
/// their own, each thread at words of its own. missed[round][thread]: whether it found nothing; that
/// both find nothing is what quiet forbids. `turns` bring them together, and order nothing.
template <typename Scope>
__device__ void PutAndLook(u64* words, u64* turns, u8* missed, int rounds, int peer) {
  u64* const word = words + ThreadInBlock() * kLineWords;
  u64* const turn = turns + ThreadInBlock() / Scope::Size() * kLineWords;
  for (int i = 1; i <= rounds; ++i) {
    const u64 round = static_cast<u64>(i);
    if (Scope::Rank() == 0) {
      AtomicSet(turn, round, peer);
      while (AtomicFetch(turn, MyPe()) < round) {
      }
    }
    Scope::Sync();
    P(word, round, peer);
    Quiet<Scope>();
    const u64 seen = AtomicFetch(word, MyPe());
    missed[static_cast<u64>(i - 1) * ThreadsInBlock() + ThreadInBlock()] = seen < round ? 1 : 0;
  }
}

}  // namespace

#define KERNEL extern "C" __global__ void

#define MESSAGES(name, How, scope, Scope)                                                    \
  KERNEL name##_##scope(Channels channels, u32 pairs, int rounds, int peer,                  \
                        Awaiting awaiting, u64* errors) {                                    \
    SendAndReceive<Scope, How>(channels, pairs, rounds, peer, awaiting, errors);             \
  }
#define OF_SCOPE(scope, Scope)                                                               \
  MESSAGES(signal, BySignal, scope, Scope)                                                   \
  MESSAGES(added, ByAddedSignal, scope, Scope)                                               \
  MESSAGES(fence, ByFlagBehindFence, scope, Scope)                                           \
  MESSAGES(quiet, ByFlagAfterQuiet, scope, Scope)                                            \
  KERNEL barrier_##scope(Channels channels, int rounds, int peer, u64* errors) {             \
    PutAndMeet<Scope>(channels, rounds, peer, errors);                                       \
  }                                                                                          \
  KERNEL put_and_look_##scope(u64* words, u64* turns, u8* missed, int rounds, int peer) {    \
    PutAndLook<Scope>(words, turns, missed, rounds, peer);                                   \
  }
OF_SCOPE(thread, Thread)
OF_SCOPE(warp, Warp)
OF_SCOPE(block, Block)
MESSAGES(late, ByThreadsThatAreLate, warp, Warp)
MESSAGES(late, ByThreadsThatAreLate, block, Block)

/// Words of a round, by every thread of the grid: for collectives on a stream.
KERNEL fill_round(u64* words, u64 count, u64 round, u32 channel) {
  const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads)
    words[i] = MessageWord(round, channel, i);
}
/// Puts them to the peer and completes nothing: the barrier on the stream does.
KERNEL put_round(u64* dest, const u64* words, u64 count, int peer) {
  const u64 part = count / gridDim.x;  // a whole number
  PutNbi<Block>(dest + blockIdx.x * part, words + blockIdx.x * part, part * 8, peer);
}
/// The last ones first: they are those that are late.
KERNEL check_round(const u64* words, u64 count, u64 round, u32 channel, u64* errors) {
  const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads)
    Expect(words[count - 1 - i] == MessageWord(round, channel, count - 1 - i), errors);
}

KERNEL late_barrier_warp(u64* inbox, int rounds, int peer, u64* errors) {
  PutLateAndMeet<Warp>(inbox, rounds, peer, errors);
}
KERNEL late_barrier_block(u64* inbox, int rounds, int peer, u64* errors) {
  PutLateAndMeet<Block>(inbox, rounds, peer, errors);
}
