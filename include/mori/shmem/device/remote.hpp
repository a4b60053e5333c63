// Operations on PEs that load and store do not reach, by commands on the ring: out of the way of
// what reaches them. One thread makes each; of a scope it is the one that leads it.
#pragma once

#include "mori/shmem/device/faults.hpp"
#include "mori/shmem/device/ring.hpp"
#include "mori/shmem/device/scope.hpp"

namespace mori::shmem::device {

/// Constant in a world, and no load from memory.
MORI_DEVICE_FN bool HasRemotePes() { return (globalGpuStates.flags & kHasRemotePes) != 0; }
/// As all PEs count it.
MORI_DEVICE_FN u64 HeapOffset(const void* address) {
  return reinterpret_cast<u64>(address) - globalGpuStates.heap_base;
}

/// This PE's ring. Ends the thread where there is none.
MORI_DEVICE_FN Ring RingTo(int pe, FaultCall call) {
  const DeviceTables* tables = globalGpuStates.tables;
  if (!HasRemotePes() || tables == nullptr || tables->n_rings == 0) FailOutOfReach(pe, call);
  return tables->rings[0];
}
MORI_DEVICE_FN RingCommand CommandTo(int pe, RingOp op, FaultCall call) {
  RingCommand command{};
  command.op = op;
  command.pe = static_cast<u32>(pe);
  command.call = call;
  return command;
}

/// Ends a thread whose memory, `bytes` at `here`, nobody else reaches: the host would be at a loss.
MORI_DEVICE_FN void RequireGlobal(u64 here, u64 bytes, int pe, FaultCall call) {
  if (bytes != 0 && !IsGlobal(here))
    FailWith(FaultReason::kNotGlobal, call, pe, 0, "what goes to another node is in global memory");
}
/// Bytes at `there` of `pe`'s heap, to or from `here`. Waits where `op` is kPut or kGet. @return
/// whether it failed
MORI_DEVICE_COLD_FN bool RemoteCopy(RingOp op, FaultCall call, int pe, u64 there, u64 here,
                                    u64 bytes) {
  RequireGlobal(here, bytes, pe, call);
  const Ring ring = RingTo(pe, call);
  RingCommand command = CommandTo(pe, op, call);
  u64 first = 0;
  u64 last = 0;
  for (u64 done = 0; done < bytes; done += command.bytes) {
    command.bytes = static_cast<u32>(bytes - done < kRingBytes ? bytes - done : kRingBytes);
    command.there = there + done;
    command.here = here + done;
    last = PostCommand(ring, command);
    if (done == 0) first = last;
  }
  if (bytes == 0 || op == RingOp::kPutNbi || op == RingOp::kGetNbi) return false;
  return AwaitCommands(ring, first, last);
}
MORI_DEVICE_FN bool RemotePut(RingOp op, int pe, void* dest, const void* source, u64 bytes) {
  return RemoteCopy(op, FaultCall::kPut, pe, HeapOffset(dest), reinterpret_cast<u64>(source),
                    bytes);
}
MORI_DEVICE_FN bool RemoteGet(RingOp op, int pe, void* dest, const void* source, u64 bytes) {
  return RemoteCopy(op, FaultCall::kGet, pe, HeapOffset(source), reinterpret_cast<u64>(dest),
                    bytes);
}
/// `bytes` at `source + pe * stride` to `dest` of each remote `pe`. Complete after a quiet.
MORI_DEVICE_COLD_FN void RemotePutToAll(void* dest, const void* source, u64 bytes, u64 stride) {
  RequireGlobal(reinterpret_cast<u64>(source), bytes, -1, FaultCall::kCollective);
  const Ring ring = RingTo(-1, FaultCall::kCollective);
  RingCommand command = CommandTo(-1, RingOp::kPutToAll, FaultCall::kCollective);
  command.value = stride;
  for (u64 done = 0; done < bytes; done += command.bytes) {
    command.bytes = static_cast<u32>(bytes - done < kRingBytes ? bytes - done : kRingBytes);
    command.there = HeapOffset(dest) + done;
    command.here = reinterpret_cast<u64>(source) + done;
    PostCommand(ring, command);
  }
}
/// Up to 8 bytes that are the first of `value`. Complete after a quiet.
MORI_DEVICE_COLD_FN void RemotePutValue(int pe, u64 there, u64 value, u32 bytes) {
  RingCommand command = CommandTo(pe, RingOp::kPutValue, FaultCall::kPut);
  command.there = there;
  command.value = value;
  command.bytes = bytes;
  PostCommand(RingTo(pe, FaultCall::kPut), command);
}
MORI_DEVICE_COLD_FN u64 RemoteGetValue(int pe, u64 there, u32 bytes, FaultCall call) {
  RingCommand command = CommandTo(pe, RingOp::kGetValue, call);
  command.there = there;
  command.bytes = bytes;
  u64 found = 0;
  if (FetchByCommand(RingTo(pe, call), command, &found)) FailThread();
  return found;
}
/// An atomic whose result nobody asks for. Complete after a quiet.
MORI_DEVICE_COLD_FN void RemotePost(RingMemory memory, int pe, u64 word, RingAtomic code, u32 width,
                                    u64 value, FaultCall call) {
  RingCommand command = CommandTo(pe, RingOp::kPost, call);
  command.memory = memory;
  command.word = word;
  command.code = static_cast<u32>(code);
  command.width = width;
  command.value = value;
  PostCommand(RingTo(pe, call), command);
}
MORI_DEVICE_COLD_FN u64 RemoteFetch(int pe, u64 word, RingAtomic code, u32 width, u64 value,
                                    u64 expected) {
  RingCommand command = CommandTo(pe, RingOp::kFetch, FaultCall::kAtomic);
  command.word = word;
  command.code = static_cast<u32>(code);
  command.width = width;
  command.value = value;
  command.here = expected;
  u64 found = 0;
  if (FetchByCommand(RingTo(pe, FaultCall::kAtomic), command, &found)) FailThread();
  return found;
}
/// A put whose signal shows behind its data. @return whether it failed, if it `waits`
MORI_DEVICE_COLD_FN bool RemotePutSignal(int pe, void* dest, const void* source, u64 bytes,
                                         u64* sig_addr, RingAtomic code, u64 signal, bool waits) {
  RequireGlobal(reinterpret_cast<u64>(source), bytes, pe, FaultCall::kSignal);
  const Ring ring = RingTo(pe, FaultCall::kSignal);
  u64 there = HeapOffset(dest);
  u64 from = reinterpret_cast<u64>(source);
  u64 first = ~u64{0};
  for (; bytes > kRingBytes; bytes -= kRingBytes) {
    RingCommand part = CommandTo(pe, RingOp::kPutNbi, FaultCall::kPut);
    part.there = there;
    part.here = from;
    part.bytes = static_cast<u32>(kRingBytes);
    const u64 ticket = PostCommand(ring, part);
    if (ticket < first) first = ticket;
    there += kRingBytes;
    from += kRingBytes;
  }
  // Parts that come before: a fence orders them, and a quiet lets go of their source.
  if (first != ~u64{0})
    PostCommand(ring, CommandTo(pe, waits ? RingOp::kQuiet : RingOp::kFence, FaultCall::kSignal));
  RingCommand command = CommandTo(pe, RingOp::kPutSignal, FaultCall::kSignal);
  command.there = there;
  command.here = from;
  command.bytes = static_cast<u32>(bytes);
  command.word = HeapOffset(sig_addr);
  command.code = static_cast<u32>(code);
  command.value = signal;
  const u64 ticket = PostCommand(ring, command);
  return waits && AwaitCommands(ring, ticket < first ? ticket : first, ticket);
}
/// What this thread put to remote PEs before comes before what it puts to the same ones later.
MORI_DEVICE_COLD_FN void RemoteFence() {
  PostCommand(RingTo(-1, FaultCall::kQuiet), CommandTo(-1, RingOp::kFence, FaultCall::kQuiet));
}
/// A signal behind it.
MORI_DEVICE_COLD_FN void RemoteSignal(int pe, const void* sig_addr, RingAtomic code, u64 signal) {
  RingTo(pe, FaultCall::kSignal);  // a fault is this call's
  RemoteFence();
  RemotePost(RingMemory::kHeap, pe, HeapOffset(sig_addr), code, sizeof(u64), signal,
             FaultCall::kSignal);
}
/// Returns once what went to `pe`, of -1 to all, is done. @return whether some of it failed
MORI_DEVICE_COLD_FN bool RemoteQuiet(int pe, FaultCall call) {
  const Ring ring = RingTo(pe, call);
  return AwaitCommand(ring, PostCommand(ring, CommandTo(pe, RingOp::kQuiet, call)));
}

/// The same of a PE, which may be near: then there is nothing to wait for.
MORI_DEVICE_COLD_FN bool RemoteQuietOf(int pe) {
  return globalGpuStates.pes[pe].heap == 0 && RemoteQuiet(pe, FaultCall::kQuiet);
}

/// Ends the thread. Not as a function that never returns: kernels would be laid out around it.
MORI_DEVICE_COLD_FN void FailRemotely() {
  if (HasRemotePes()) FailThread();
}
/// Ends all threads of the scope where one has failed, and lets them meet.
template <typename Scope>
MORI_DEVICE_FN void MeetOrFail(bool has_failed) {
  if (Scope::SyncAny(has_failed)) FailRemotely();
}

/// Values of any size, as the bytes of words.
template <typename T>
struct WordsOf {
  static constexpr u32 kCount = (sizeof(T) + 7) / 8;
  struct Bytes {
    u8 of[sizeof(T)];
  };
  u64 of[kCount];

  static MORI_DEVICE_FN u32 BytesIn(u32 n) {
    return static_cast<u32>(sizeof(T) - 8 * n < 8 ? sizeof(T) - 8 * n : 8);
  }
  MORI_DEVICE_FN void Take(const T& value) {
    const Bytes bytes = __builtin_bit_cast(Bytes, value);
    MORI_UNROLL
    for (u32 i = 0; i < sizeof(T); ++i) of[i / 8] |= static_cast<u64>(bytes.of[i]) << 8 * (i % 8);
  }
  MORI_DEVICE_FN T Value() const {
    Bytes bytes{};
    MORI_UNROLL
    for (u32 i = 0; i < sizeof(T); ++i) bytes.of[i] = static_cast<u8>(of[i / 8] >> 8 * (i % 8));
    return __builtin_bit_cast(T, bytes);
  }
};
template <typename T>
MORI_DEVICE_FN void RemoteP(T* dest, const T& value, int pe) {
  WordsOf<T> words{};
  words.Take(value);
  MORI_UNROLL
  for (u32 n = 0; n < WordsOf<T>::kCount; ++n)
    RemotePutValue(pe, HeapOffset(dest) + 8 * n, words.of[n], WordsOf<T>::BytesIn(n));
}
template <typename T>
MORI_DEVICE_FN T RemoteG(const T* source, int pe, FaultCall call = FaultCall::kGet) {
  WordsOf<T> words{};
  MORI_UNROLL
  for (u32 n = 0; n < WordsOf<T>::kCount; ++n)
    words.of[n] = RemoteGetValue(pe, HeapOffset(source) + 8 * n, WordsOf<T>::BytesIn(n), call);
  return words.Value();
}

}  // namespace mori::shmem::device
