// Small messages between few PEs, by one block of each: a word of 8 bytes brings 4 bytes of data
// and a tag of the exchange, so that who sees the tag has the data. No fence, one way of
// latency, and nobody reaches into another's `source` or `dest`.
#pragma once

#include "mori/shmem/device/collectives.hpp"

namespace mori::shmem::device {

/// By one thread of a block of a kernel of the library, before its block meets others: that a
/// kernel on another stream does so at the same time is a fault, told to the host, and the end of
/// this thread. It is not waited for by the others, which would cost each collective more than what
/// it takes: so this kernel may not end well, and peers wait for it until this PE is gone.
MORI_DEVICE_FN void BeginMeeting(SyncWords* mine, u32 block) {
  if (Swap(&mine->blocks_meeting[block], 1U) != 0)
    FailMeeting(FaultCall::kCollectiveOnStream, block);
}
/// By the same thread, once all of the block have met.
MORI_DEVICE_FN void EndMeeting(SyncWords* mine, u32 block) {
  StoreRelaxed(&mine->blocks_meeting[block], 0U);
}
/// By any thread that has waited in vain: ends it, and the meeting of its block, so that the next
/// kernel's is no second one. The thread that began the meeting may never come to its end.
[[noreturn]] MORI_DEVICE_COLD_FN void FailMet(FaultCall call, u32 block, u32 value) {
  EndMeeting(MyWords(), block);
  FailWaiting(call, value);
}

/// A meeting of all PEs in a kernel of the library, of one scope each, whose block `block` has
/// begun it.
template <typename Scope, typename EpochsOf>
MORI_DEVICE_FN void MeetOnStream(u32 my_pe, u32 n_pes, u32 block, EpochsOf epochs_of) {
  const u64 epoch = NextEpoch<Scope>(my_pe, n_pes, epochs_of(my_pe));
  Scope::Sync();
  const bool has_met = TellAndAwait<Scope>(my_pe, n_pes, epoch, epochs_of);
  if (Scope::SyncAny(!has_met))
    FailMet(FaultCall::kCollectiveOnStream, block, static_cast<u32>(epoch));
}

/// `call(pe)` for the others, neighbours first.
template <typename Call>
MORI_DEVICE_FN void ForOthers(const FewPes& few, Call call) {
  MORI_NO_UNROLL
  for (u32 n = 1; n < few.n_pes; ++n) {
    const u32 pe = few.my_pe + n;
    call(pe < few.n_pes ? pe : pe - few.n_pes);
  }
}

/// One exchange, of which all PEs of the world make the same ones in the same order. In each of
/// them every PE sends at least word 0 to every other, and waits for it. So when a PE begins an
/// exchange, all others have completed the last but one: two inboxes, taken in turn, are enough.
/// Every thread of the block makes each call.
class Exchange {
 public:
  explicit MORI_DEVICE_FN Exchange(const FewPes& few)
      : few_(few), number_(LoadRelaxed(&few.sync[few.my_pe]->exchanges) + 1) {
    if (ThreadInBlock() == 0) BeginMeeting(few.sync[few.my_pe], 0);
    if (number_ % kExchangesOfInbox == 0) Renew();
  }

  /// Word `at` of this PE's message to `pe`, another one; by one thread.
  MORI_DEVICE_FN void Send(u32 pe, u64 at, u32 data) const {
    StoreRelaxed(&InboxOf(pe)[few_.my_pe][at], static_cast<u64>(Tag()) << 32 | data);
  }

  /// Words `at(0)` to `at(kCount - 1)` of what `pe` has sent; waits for them, by one thread. Loads
  /// are under way together.
  template <int kCount, typename At>
  MORI_DEVICE_FN void Receive(u32 pe, At at, u32 (&data)[kCount]) const {
    const u64* message = InboxOf(few_.my_pe)[pe];
    // Relaxed, whatever is asked for: the word itself is the data.
    const bool has_come = Await([&](auto) {
      u64 words[kCount];
      MORI_UNROLL
      for (int k = 0; k < kCount; ++k) words[k] = LoadRelaxed(message + at(k));
      bool is_here = true;
      MORI_UNROLL
      for (int k = 0; k < kCount; ++k) {
        data[k] = static_cast<u32>(words[k]);
        is_here = is_here && words[k] >> 32 == Tag();
      }
      return is_here;
    });
    if (!has_come) FailMet(FaultCall::kCollectiveOnStream, 0, 0);
  }

  /// The calling thread has received what it waits for.
  MORI_DEVICE_FN void End() const {
    BlockSync();  // all have read the number, and received
    if (ThreadInBlock() != 0) return;
    StoreRelaxed(&few_.sync[few_.my_pe]->exchanges, number_);
    EndMeeting(few_.sync[few_.my_pe], 0);
  }

 private:
  using Inbox = u64[kInboxWords];

  /// Not 0, which an emptied inbox has, and no other exchange's until inboxes are emptied again.
  MORI_DEVICE_FN u32 Tag() const { return static_cast<u32>(number_ % kExchangesOfInbox) + 1; }
  MORI_DEVICE_FN Inbox* InboxOf(u32 pe) const { return few_.sync[pe]->inboxes[number_ % 2]; }

  /// Tags come again one day, and what a long message left must not be taken for a word of a later
  /// one: all PEs stop, and each empties its inboxes.
  MORI_DEVICE_FN void Renew() const {
    const auto meet = [&] {
      MeetOnStream<Block>(few_.my_pe, few_.n_pes, 0,
                          [&](u32 pe) { return few_.sync[pe]->stream_epochs; });
    };
    meet();
    u64* words = &few_.sync[few_.my_pe]->inboxes[0][0][0];
    for (u64 i = Block::Rank(); i < sizeof(SyncWords::inboxes) / sizeof(u64); i += Block::Size())
      StoreRelaxed(words + i, u64{0});
    meet();
  }

  const FewPes& few_;
  u64 number_;
};

/// A message of bytes as words of 4, the last filled up; at least one.
struct Message {
  u8* start;
  u64 bytes;

  MORI_DEVICE_FN u64 words() const { return bytes == 0 ? 1 : (bytes + 3) / 4; }
  /// Those in front that are words in memory, too.
  MORI_DEVICE_FN u64 WholeWords() const {
    return reinterpret_cast<u64>(start) % 4 == 0 ? bytes / 4 : 0;
  }
  MORI_DEVICE_FN u32* AsWords() const { return reinterpret_cast<u32*>(start); }
  /// Any other.
  MORI_DEVICE_FN u32 LoadBytes(u64 at) const {
    u32 word = 0;
    MORI_NO_UNROLL
    for (u64 i = 0; i < 4 && 4 * at + i < bytes; ++i)
      word |= static_cast<u32>(LoadBulk(start + 4 * at + i)) << 8 * i;
    return word;
  }
  MORI_DEVICE_FN void StoreBytes(u64 at, u32 word) const {
    MORI_NO_UNROLL
    for (u64 i = 0; i < 4 && 4 * at + i < bytes; ++i)
      StoreBulk(start + 4 * at + i, static_cast<u8>(word >> 8 * i));
  }
};

/// What a thread loads at a time: a message of 16 KiB in one turn of a block.
inline constexpr int kWordsAtATime = 8;

/// Of words [0, count), by the threads of the block: `load(at, words)` gives those at `at(k)`, and
/// `use(at, word)` takes each.
template <typename Load, typename Use>
MORI_DEVICE_FN void ForWords(u64 count, Load load, Use use) {
  const u64 step = Block::Size();
  MORI_NO_UNROLL
  for (u64 first = Block::Rank(); first < count; first += kWordsAtATime * step) {
    // The first again where there is none: no branches between the loads.
    const auto at = [&](int k) { return first + k * step < count ? first + k * step : first; };
    u32 words[kWordsAtATime];
    load(at, words);
    MORI_UNROLL
    for (int k = 0; k < kWordsAtATime; ++k) {
      if (first + k * step < count) use(first + k * step, words[k]);
    }
  }
}
/// `use(at, word)` for each word of `message`, of this PE.
template <typename Use>
MORI_DEVICE_FN void ForWordsOf(const Message& message, Use use) {
  const auto load = [&](auto at, u32(&words)[kWordsAtATime]) {
    MORI_UNROLL
    for (int k = 0; k < kWordsAtATime; ++k) words[k] = LoadBulk(message.AsWords() + at(k));
  };
  ForWords(message.WholeWords(), load, use);
  MORI_NO_UNROLL
  for (u64 at = message.WholeWords() + Block::Rank(); at < message.words(); at += Block::Size())
    use(at, message.LoadBytes(at));
}

MORI_DEVICE_FN void SendMessage(const Exchange& exchange, u32 pe, const Message& message) {
  ForWordsOf(message, [&](u64 at, u32 word) { exchange.Send(pe, at, word); });
}
MORI_DEVICE_FN void ReceiveMessage(const Exchange& exchange, u32 pe, const Message& message) {
  ForWords(
      message.WholeWords(),
      [&](auto at, u32(&words)[kWordsAtATime]) { exchange.Receive(pe, at, words); },
      [&](u64 at, u32 word) { StoreBulk(message.AsWords() + at, word); });
  MORI_NO_UNROLL
  for (u64 at = message.WholeWords() + Block::Rank(); at < message.words(); at += Block::Size()) {
    u32 word[1];
    exchange.Receive(
        pe, [&](int) { return at; }, word);
    message.StoreBytes(at, word[0]);
  }
}
/// From one place of this PE to another.
MORI_DEVICE_FN void CopyMessage(const Message& to, const Message& from) {
  ForWordsOf(from, [&](u64 at, u32 word) {
    if (at < to.WholeWords()) {
      StoreBulk(to.AsWords() + at, word);
    } else {
      to.StoreBytes(at, word);
    }
  });
}
/// Nothing but word 0, so that the PEs are in step.
MORI_DEVICE_FN void SendToken(const Exchange& exchange, u32 pe) {
  if (Block::Rank() == 0) exchange.Send(pe, 0, 0);
}
MORI_DEVICE_FN void AwaitToken(const Exchange& exchange, u32 pe) {
  u32 token[1];
  if (Block::Rank() == 0)
    exchange.Receive(
        pe, [](int) { return u64{0}; }, token);
}

MORI_DEVICE_FN void SmallBroadcast(const FewPes& few, u8* dest, u8* source, u64 bytes, u32 root) {
  const Exchange exchange(few);
  const bool is_root = few.my_pe == root;
  ForOthers(few, [&](u32 pe) {
    if (is_root) {
      SendMessage(exchange, pe, {source, bytes});
    } else {
      SendToken(exchange, pe);
    }
  });
  if (is_root && dest != source) CopyMessage({dest, bytes}, {source, bytes});
  ForOthers(few, [&](u32 pe) {
    if (pe == root) {
      ReceiveMessage(exchange, pe, {dest, bytes});
    } else {
      AwaitToken(exchange, pe);
    }
  });
  exchange.End();
}

/// What is at `source + pe * stride` to `pe`, and what comes from `pe` to `dest + pe * bytes`: with
/// a stride of 0 an all-gather, of `bytes` an all-to-all.
MORI_DEVICE_FN void SmallGather(const FewPes& few, u8* dest, u8* source, u64 bytes, u64 stride) {
  const Exchange exchange(few);
  ForOthers(few, [&](u32 pe) { SendMessage(exchange, pe, {source + pe * stride, bytes}); });
  CopyMessage({dest + few.my_pe * bytes, bytes}, {source + few.my_pe * stride, bytes});
  ForOthers(few, [&](u32 pe) { ReceiveMessage(exchange, pe, {dest + pe * bytes, bytes}); });
  exchange.End();
}

/// Every PE combines all elements by itself, in the order of PEs.
template <typename T, typename Op>
MORI_DEVICE_FN void SmallReduce(const FewPes& few, Op op, T* dest, const T* source, u64 count) {
  constexpr int kWords = CountIn<u32>(sizeof(T));
  constexpr int kElements = kWordsAtATime / kWords;  // that a thread loads at a time
  struct Words {
    u32 of[kWords];
  };
  const Exchange exchange(few);
  const u64 step = Block::Size();
  // The first again where there is none: no branches between the loads.
  const auto place = [&](u64 first, int k) {
    return first + k * step < count ? first + k * step : first;
  };
  const auto load = [&](u64 first, T(&elements)[kElements]) {
    MORI_UNROLL
    for (int k = 0; k < kElements; ++k)
      elements[k] = FromWord<T>(LoadBulk(AsWord(source + place(first, k))));
  };
  for (u64 first = Block::Rank(); first < count; first += kElements * step) {
    T mine[kElements];
    load(first, mine);
    ForOthers(few, [&](u32 pe) {
      MORI_UNROLL
      for (int k = 0; k < kElements; ++k) {
        if (first + k * step >= count) break;
        const Words words = __builtin_bit_cast(Words, mine[k]);
        MORI_UNROLL
        for (int w = 0; w < kWords; ++w)
          exchange.Send(pe, (first + k * step) * kWords + w, words.of[w]);
      }
    });
  }
  if (count == 0) {
    ForOthers(few, [&](u32 pe) { SendToken(exchange, pe); });
    ForOthers(few, [&](u32 pe) { AwaitToken(exchange, pe); });
  }
  for (u64 first = Block::Rank(); first < count; first += kElements * step) {
    T values[kElements]{};
    for (u32 pe = 0; pe < few.n_pes; ++pe) {
      T found[kElements];
      if (pe == few.my_pe) {
        load(first, found);
      } else {
        Words words[kElements];
        u32(&all)[kElements * kWords] = reinterpret_cast<u32(&)[kElements * kWords]>(words);
        exchange.Receive(
            pe, [&](int k) { return place(first, k / kWords) * kWords + k % kWords; }, all);
        MORI_UNROLL
        for (int k = 0; k < kElements; ++k) found[k] = __builtin_bit_cast(T, words[k]);
      }
      MORI_UNROLL
      for (int k = 0; k < kElements; ++k)
        values[k] = pe == 0 ? found[k] : op.Of(values[k], found[k]);
    }
    MORI_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if (first + k * step < count) StoreElement(dest + first + k * step, values[k]);
    }
  }
  exchange.End();
}

}  // namespace mori::shmem::device
