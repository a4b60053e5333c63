// Commands of kernels to a thread of the host: what load and store cannot do, since the PE is
// reached by a network. And what a kernel waits for of them.
//
// A ring lies in memory of the host that the device has mapped. Any thread of any kernel of the PE
// takes the next number, its *ticket*, and writes the entry of that number, by stores of 16 bytes.
// Each has the lap of the ring in it, so that the host knows a whole entry from one that is on its
// way, and no fence or doorbell follows. The host carries entries out in the order of tickets and
// counts them. What a command puts is read before it counts, what it gets is there, and so is what
// an atomic has found, in the ring's result of that number.
#pragma once

#include "mori/shmem/device/context.hpp"
#include "mori/shmem/device/memory.hpp"

namespace mori::shmem::device {

enum class RingOp : u32 {
  kPut = 1,        ///< `bytes` at `here` to `there`; counts when the source may be changed
  kPutNbi = 2,     ///< the same; the source stays until a quiet
  kPutValue = 3,   ///< the first `bytes`, at most 8, of `value` to `there`
  kGet = 4,        ///< `bytes` at `there` to `here`; counts when they are there
  kGetNbi = 5,     ///< the same; they are there after a quiet
  kGetValue = 6,   ///< `bytes`, at most 8, at `there` into the result
  kPutSignal = 7,  ///< as kPut, and `word` changes by `code` and `value` behind the data
  kPost = 8,       ///< an atomic `code` with `value` on `word`
  kFetch = 9,      ///< the same with what was there in the result; expects what is in `here`
  kFence = 10,     ///< what was put and posted to a PE comes before what comes to it later
  kQuiet = 11,     ///< counts when everything to `pe` is done, or, of `kAllPes`, to all
  kPutToAll = 12,  ///< kPutNbi of `bytes` at `here + pe * value` to each remote `pe`
};
/// By number those of `detail::AtomicOp`.
enum class RingAtomic : u32 {
  kFetch = 0,
  kSet = 1,
  kFetchAdd = 2,
  kFetchAnd = 3,
  kFetchOr = 4,
  kFetchXor = 5,
  kSwap = 6,
  kCompareSwap = 7,
};
/// What an offset counts in.
enum class RingMemory : u32 { kHeap = 0, kSyncWords = 1 };
inline constexpr u32 kAllPes = ~u32{0};
/// Of one entry.
inline constexpr u64 kRingBytes = u64{1} << 30;

struct alignas(16) RingPiece {
  u64 head;  ///< the lap in the low half, and a field
  u64 value;
};
/// Fields: [0] what to do, [1] the PE, [2] bytes, [3] the call of the program. Values: `there`,
/// `here`, `word`, `value`.
struct alignas(64) RingEntry {
  RingPiece pieces[4];
};
/// The count, and what failed, of a ring that nobody serves any more: more than there are tickets.
inline constexpr u64 kRingIsOver = u64{1} << 62;
struct alignas(16) RingDone {
  u64 count;   ///< commands that were carried out
  u64 failed;  ///< 1 + the ticket of the last that failed; written before the count
};

/// Pointers are addresses of the device. In memory of the device but for the first three.
struct Ring {
  RingEntry* entries;
  const RingDone* done;
  const u64* results;  ///< by entry
  u64* next;           ///< the next ticket
  u64* seen;           ///< of `done->count`, what somebody has seen
  u32* taken;          ///< by entry: 1 while the result of that entry is somebody's
  u32 mask;            ///< entries - 1, of a power of two
  u32 reserved0;
};

struct RingCommand {
  RingOp op;
  u32 code;  ///< a `RingAtomic`
  u32 width;
  RingMemory memory;
  u32 pe;
  u32 bytes;
  FaultCall call;
  u64 there;  ///< as `word`, an offset in `memory` of `pe`
  u64 here;
  u64 word;
  u64 value;
};

MORI_DEVICE_FN u32 LapOf(u64 ticket, u32 mask) { return static_cast<u32>(ticket / (mask + 1)) + 1; }
MORI_DEVICE_FN RingPiece PieceOf(u32 lap, u32 field, u64 value) {
  return {static_cast<u64>(field) << 32 | lap, value};
}
MORI_DEVICE_FN RingEntry EntryOf(const RingCommand& command, u32 lap) {
  const u32 what = static_cast<u32>(command.op) | command.code << 8 | command.width << 16 |
                   static_cast<u32>(command.memory) << 24;
  return {{PieceOf(lap, what, command.there), PieceOf(lap, command.pe, command.here),
           PieceOf(lap, command.bytes, command.word),
           PieceOf(lap, static_cast<u32>(command.call), command.value)}};
}
MORI_DEVICE_FN RingCommand CommandOf(const RingEntry& entry) {
  const auto field = [&](int n) { return static_cast<u32>(entry.pieces[n].head >> 32); };
  RingCommand command{};
  command.op = static_cast<RingOp>(field(0) & 0xff);
  command.code = field(0) >> 8 & 0xff;
  command.width = field(0) >> 16 & 0xff;
  command.memory = static_cast<RingMemory>(field(0) >> 24);
  command.pe = field(1);
  command.bytes = field(2);
  command.call = static_cast<FaultCall>(field(3));
  command.there = entry.pieces[0].value;
  command.here = entry.pieces[1].value;
  command.word = entry.pieces[2].value;
  command.value = entry.pieces[3].value;
  return command;
}

/// By whoever serves a ring: whether the entry has come as a whole, and then the entry. Acquires
/// what the thread that wrote it had released.
MORI_DEVICE_FN bool TakeEntry(const RingEntry* entry, u32 lap, RingEntry* taken) {
  for (int n = 0; n < 4; ++n) {
    // The lap first: what is loaded after it is of the same store, or of a later one.
    taken->pieces[n].head = LoadAcquire(&entry->pieces[n].head);
    if (static_cast<u32>(taken->pieces[n].head) != lap) return false;
    taken->pieces[n].value = LoadRelaxed(&entry->pieces[n].value);
  }
  return true;
}

/// The number of the next entry, which is free, and this thread's to write.
MORI_DEVICE_FN u64 TakeTicket(const Ring& ring) {
  const u64 ticket = FetchAdd(ring.next, u64{1});
  const u64 size = static_cast<u64>(ring.mask) + 1;
  if (ticket < LoadRelaxed(ring.seen) + size) return ticket;
  u64 count = LoadAcquire(&ring.done->count);
  while (ticket >= count + size) {
    Sleep();
    count = LoadAcquire(&ring.done->count);
  }
  StoreRelaxed(ring.seen, count);  // an older one of another thread does no harm
  return ticket;
}

/// Returns when the last of these commands was carried out. @return whether one from the first on
/// failed: one that is another thread's, too, or comes behind the last
MORI_DEVICE_FN bool AwaitCommands(const Ring& ring, u64 first, u64 last) {
  while (LoadAcquire(&ring.done->count) <= last) Sleep();
  return LoadRelaxed(&ring.done->failed) > first;
}
MORI_DEVICE_FN bool AwaitCommand(const Ring& ring, u64 ticket) {
  return AwaitCommands(ring, ticket, ticket);
}

/// What this thread, and who synchronised with it, did before is there for who takes the entry.
MORI_DEVICE_FN void StoreEntry(RingEntry* to, const RingEntry& entry) {
  FenceRelease();
  MORI_UNROLL
  for (int n = 0; n < 4; ++n)
    StorePair(&to->pieces[n].head, entry.pieces[n].head, entry.pieces[n].value);
}

/// Hands a command over. What this thread, and who synchronised with it, did before is done before
/// the command. @return its ticket
MORI_DEVICE_FN u64 PostCommand(const Ring& ring, const RingCommand& command) {
  const u64 ticket = TakeTicket(ring);
  StoreEntry(&ring.entries[ticket & ring.mask], EntryOf(command, LapOf(ticket, ring.mask)));
  return ticket;
}

/// The same of a command with a result, for which it waits. @return whether it, or one behind it,
/// failed
MORI_DEVICE_FN bool FetchByCommand(const Ring& ring, const RingCommand& command, u64* result) {
  const u64 ticket = TakeTicket(ring);
  const u64 slot = ticket & ring.mask;
  // Another thread's, of an earlier lap, which has yet to read what it waited for.
  while (Swap(&ring.taken[slot], 1U) != 0) Sleep();
  StoreEntry(&ring.entries[slot], EntryOf(command, LapOf(ticket, ring.mask)));
  const bool has_failed = AwaitCommand(ring, ticket);
  *result = LoadRelaxed(&ring.results[slot]);
  StoreRelease(&ring.taken[slot], 0U);
  return has_failed;
}

}  // namespace mori::shmem::device
