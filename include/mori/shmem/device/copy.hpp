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
/// `Scope::Size()`th, several at a time, so that as many loads are under way.
template <typename Scope, typename Word, typename Load>
MORI_DEVICE_FN void CopyWords(Word* to, u64 count, Load load) {
  constexpr int kUnroll = 8;
  constexpr int kTail = 4;
  const u64 size = Scope::Size();
  u64 i = Scope::Rank();
  for (; i + (kUnroll - 1) * size < count; i += kUnroll * size) {
    Word words[kUnroll];
    MORI_UNROLL
    for (int k = 0; k < kUnroll; ++k) words[k] = load(i + k * size);
    MORI_UNROLL
    for (int k = 0; k < kUnroll; ++k) StoreBulk(to + i + k * size, words[k]);
  }
  for (; i < count; i += kTail * size) {
    Word words[kTail];
    MORI_UNROLL
    for (int k = 0; k < kTail; ++k) {
      if (i + k * size < count) words[k] = load(i + k * size);
    }
    MORI_UNROLL
    for (int k = 0; k < kTail; ++k) {
      if (i + k * size < count) StoreBulk(to + i + k * size, words[k]);
    }
  }
}

template <typename Scope>
MORI_DEVICE_FN void CopyBytes(u8* to, const u8* from, u64 bytes) {
  for (u64 i = Scope::Rank(); i < bytes; i += Scope::Size()) {
    static_cast<volatile u8*>(to)[i] = static_cast<const volatile u8*>(from)[i];
  }
}

/// Copies with the widest words that both sides are aligned for alike, and with words put together
/// of two where they are not aligned alike at all; what is before and after byte by byte.
template <typename Scope, Source kSource>
MORI_DEVICE_FN void Copy(void* to_address, const void* from_address, u64 bytes) {
  u8* to = static_cast<u8*>(to_address);
  const u8* from = static_cast<const u8*>(from_address);
  const u64 apart = (reinterpret_cast<u64>(to) ^ reinterpret_cast<u64>(from)) & 15;
  const u64 width = apart == 0 ? 16 : (apart & 7) == 0 ? 8 : 4;
  u64 head = (width - (reinterpret_cast<u64>(to) & (width - 1))) & (width - 1);
  if (head > bytes) head = bytes;
  if (head > 0) CopyBytes<Scope>(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  u64 done = bytes & ~(width - 1);
  if (width == 16) {
    const Vector16* words = reinterpret_cast<const Vector16*>(from);
    CopyWords<Scope>(reinterpret_cast<Vector16*>(to), bytes / 16,
                     [words](u64 i) { return LoadFrom<kSource>(words + i); });
  } else if (width == 8) {
    const u64* words = reinterpret_cast<const u64*>(from);
    CopyWords<Scope>(reinterpret_cast<u64*>(to), bytes / 8,
                     [words](u64 i) { return LoadFrom<kSource>(words + i); });
  } else if ((apart & 3) == 0) {
    const u32* words = reinterpret_cast<const u32*>(from);
    CopyWords<Scope>(reinterpret_cast<u32*>(to), bytes / 4,
                     [words](u64 i) { return LoadFrom<kSource>(words + i); });
  } else {
    const u32 shift_bytes = static_cast<u32>(reinterpret_cast<u64>(from) & 3);
    const u32* words = reinterpret_cast<const u32*>(from - shift_bytes);
    // The last word read must not reach beyond the source.
    const u64 count = bytes / 4 > 0 ? bytes / 4 - 1 : 0;
    CopyWords<Scope>(reinterpret_cast<u32*>(to), count, [words, shift_bytes](u64 i) {
      return Funnel(LoadFrom<kSource>(words + i), LoadFrom<kSource>(words + i + 1),
                    8 * shift_bytes);
    });
    done = count * 4;
  }
  if (done < bytes) CopyBytes<Scope>(to + done, from + done, bytes - done);
}

}  // namespace mori::shmem::device
