// Copies that the threads of a scope share.
#pragma once

#include "mori/shmem/device/memory.hpp"
#include "mori/shmem/device/scope.hpp"

namespace mori::shmem::device {

/// Where a copy's source is: in a remote one others may store while this thread reads, as atomics
/// do.
enum class Source { kLocal, kRemote };

template <Source kSource, typename Word>
MORI_DEVICE_FN Word LoadFrom(const Word* from) {
  return kSource == Source::kLocal ? LoadBulk(from) : LoadFresh(from);
}

/// `count` words that `load(i)` gives, to `to`, which is aligned for them: each thread takes every
/// `Scope::Size()`th, `kBatch` at a time, so that as many loads are under way. More than 64
/// registers would keep a block from having 1024 threads.
template <typename Scope, int kBatch, typename Word, typename Load>
MORI_DEVICE_FN void CopyWords(Word* to, u64 count, Load load) {
  const u64 size = Scope::Size();
  u64 i = Scope::Rank();
  if (count <= size) {  // what is short is to be quick
    if (i < count) StoreBulk(to + i, load(i));
    return;
  }
  MORI_NO_UNROLL
  for (; i + (kBatch - 1) * size < count; i += kBatch * size) {
    Word words[kBatch];
    MORI_UNROLL
    for (int k = 0; k < kBatch; ++k) words[k] = load(i + k * size);
    MORI_UNROLL
    for (int k = 0; k < kBatch; ++k) StoreBulk(to + i + k * size, words[k]);
  }
  constexpr int kTail = 4;
  MORI_NO_UNROLL
  for (; i < count; i += kTail * size) {
    Word words[kTail];
    MORI_UNROLL
    for (int k = 0; k < kTail; ++k)  // the first again where there is none: no branches
      words[k] = load(i + k * size < count ? i + k * size : i);
    MORI_UNROLL
    for (int k = 0; k < kTail; ++k) {
      if (i + k * size < count) StoreBulk(to + i + k * size, words[k]);
    }
  }
}
template <typename Scope, int kBatch, Source kSource, typename Word>
MORI_DEVICE_FN void CopyAligned(u8* to, const u8* from, u64 bytes) {
  const Word* words = reinterpret_cast<const Word*>(from);
  CopyWords<Scope, kBatch>(reinterpret_cast<Word*>(to), bytes / sizeof(Word),
                           [words](u64 i) { return LoadFrom<kSource>(words + i); });
}

/// What is before and after the words: less than 16 bytes.
template <typename Scope, Source kSource>
MORI_DEVICE_FN void CopyBytes(u8* to, const u8* from, u64 bytes) {
  constexpr int kBatch = Scope::kIsOneThread ? 8 : 1;
  CopyWords<Scope, kBatch>(to, bytes, [from](u64 i) { return LoadFrom<kSource>(from + i); });
}

/// Copies with the widest words that both sides are aligned for alike, and with words put together
/// of two where they are not aligned alike at all; what is before and after byte by byte. Out of
/// line: it is long, and would cost those registers that only copy aligned words.
template <typename Scope, Source kSource>
MORI_DEVICE_OUTLINE_FN void CopyAny(u8* to, const u8* from, u64 bytes) {
  const u64 apart = (reinterpret_cast<u64>(to) ^ reinterpret_cast<u64>(from)) & 15;
  const u64 width = apart == 0 && bytes >= 16 ? 16 : (apart & 7) == 0 && bytes >= 8 ? 8 : 4;
  u64 head = (width - (reinterpret_cast<u64>(to) & (width - 1))) & (width - 1);
  if (head > bytes) head = bytes;
  CopyBytes<Scope, kSource>(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  u64 done = bytes & ~(width - 1);
  if (width == 16) {
    CopyAligned<Scope, 4, kSource, Vector16>(to, from, bytes);
  } else if (width == 8) {
    CopyAligned<Scope, 4, kSource, u64>(to, from, bytes);
  } else if ((apart & 3) == 0) {
    CopyAligned<Scope, 4, kSource, u32>(to, from, bytes);
  } else {
    const u32 shift_bytes = static_cast<u32>(reinterpret_cast<u64>(from) & 3);
    const u32* words = reinterpret_cast<const u32*>(from - shift_bytes);
    // The last word read must not reach beyond the source.
    const u64 count = bytes / 4 > 0 ? bytes / 4 - 1 : 0;
    CopyWords<Scope, 4>(reinterpret_cast<u32*>(to), count, [words, shift_bytes](u64 i) {
      return Funnel(LoadFrom<kSource>(words + i), LoadFrom<kSource>(words + i + 1),
                    8 * shift_bytes);
    });
    done = count * 4;
  }
  CopyBytes<Scope, kSource>(to + done, from + done, bytes - done);
}

template <typename Scope, Source kSource>
MORI_DEVICE_FN void Copy(void* to_address, const void* from_address, u64 bytes) {
  u8* to = static_cast<u8*>(to_address);
  const u8* from = static_cast<const u8*>(from_address);
  if (((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from) | bytes) & 15) == 0) {
    CopyAligned<Scope, Scope::kBatch, kSource, Vector16>(to, from, bytes);
  } else if (bytes == 8 && ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) & 7) == 0) {
    if (Scope::Rank() == 0)
      StoreBulk(reinterpret_cast<u64*>(to), LoadFrom<kSource>(reinterpret_cast<const u64*>(from)));
  } else {
    CopyAny<Scope, kSource>(to, from, bytes);
  }
}

}  // namespace mori::shmem::device
