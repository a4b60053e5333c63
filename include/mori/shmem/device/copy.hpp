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

/// A word of `bytes`, 1 to 8: of one load if `unit` is no less, else of loads of `unit` bytes.
template <Source kSource, u32 kUnit>
MORI_DEVICE_FN u64 LoadPiece(const u8* from, u32 bytes, u32 unit) {
  if (unit > bytes) unit = bytes;
  u64 piece = 0;
  MORI_NO_UNROLL
  for (u32 at = 0; at < bytes; at += unit) {
    u64 part = 0;
    if (unit == 8) {
      part = LoadFrom<kSource>(reinterpret_cast<const u64*>(from + at));
    } else if (kUnit <= 4 && unit == 4) {
      part = LoadFrom<kSource>(reinterpret_cast<const u32*>(from + at));
    } else if (kUnit <= 2 && unit == 2) {
      part = LoadFrom<kSource>(reinterpret_cast<const u16*>(from + at));
    } else if (kUnit == 1) {
      part = LoadFrom<kSource>(from + at);
    }
    piece |= part << 8 * at;
  }
  return piece;
}
/// Stores it by one store: it is aligned.
template <typename Scope, u32 kUnit>
MORI_DEVICE_FN void StorePiece(u8* to, u32 bytes, u64 piece) {
  if (bytes == 8) {
    StoreBulk(reinterpret_cast<u64*>(to), piece);
  } else if (kUnit <= 4 && bytes == 4) {
    StoreBulk(reinterpret_cast<u32*>(to), static_cast<u32>(piece));
  } else if (kUnit <= 2 && bytes == 2) {
    StoreBulk(reinterpret_cast<u16*>(to), static_cast<u16>(piece));
  } else if (kUnit == 1) {
    StoreBulk(to, static_cast<u8>(piece));
  }
}

/// `head` bytes at the start and `tail` bytes from `tail_at` on, less than 16 each: their bits are
/// the sizes of their pieces, from the smallest up to where words begin, and down from where they
/// end. Sources are aligned as their pieces are, up to `alike` bytes.
template <typename Scope, Source kSource, u32 kUnit>
MORI_DEVICE_FN void CopyPieces(u8* to, const u8* from, u32 head, u64 tail_at, u32 tail, u32 alike) {
  constexpr u32 kSmallest = kUnit == 8 ? 3 : kUnit == 4 ? 2 : kUnit == 2 ? 1 : 0;
  constexpr u32 kSizes = 4 - kSmallest;
  const auto size = [](u32 n) { return u32{1} << (kSmallest + n % kSizes); };
  const auto is_there = [&](u32 n) { return ((n < kSizes ? head : tail) & size(n)) != 0; };
  const auto place = [&](u32 n) {
    return n < kSizes ? head & (size(n) - 1) : tail_at + (tail & ~(2 * size(n) - 1));
  };
  if constexpr (Scope::kIsOneThread) {  // all loads are under way together
    u64 pieces[2 * kSizes]{};
    MORI_UNROLL
    for (u32 n = 0; n < 2 * kSizes; ++n) {
      if (is_there(n)) pieces[n] = LoadPiece<kSource, kUnit>(from + place(n), size(n), alike);
    }
    MORI_UNROLL
    for (u32 n = 0; n < 2 * kSizes; ++n) {
      if (is_there(n)) StorePiece<Scope, kUnit>(to + place(n), size(n), pieces[n]);
    }
  } else {
    MORI_NO_UNROLL
    for (u32 n = Scope::Rank(); n < 2 * kSizes; n += Scope::Size()) {
      if (is_there(n))
        StorePiece<Scope, kUnit>(to + place(n), size(n),
                                 LoadPiece<kSource, kUnit>(from + place(n), size(n), alike));
    }
  }
}

/// Copies by naturally aligned words: no element of 1, 2, 4, 8 or 16 bytes that is aligned on both
/// sides is stored, or loaded, in parts. The widest words that both sides are aligned for alike, or
/// words put together of two where that is less than 4 bytes; before and after them smaller ones.
/// `kUnit` divides both addresses and `bytes`. Out of line: it is long, and would cost those
/// registers that only copy aligned words.
template <typename Scope, Source kSource, u32 kUnit>
MORI_DEVICE_OUTLINE_FN void CopyAny(u8* to, const u8* from, u64 bytes) {
  const auto start = static_cast<u32>(reinterpret_cast<u64>(to));
  const u32 apart = (start ^ static_cast<u32>(reinterpret_cast<u64>(from))) & 15;
  const u32 alike = apart == 0 ? 16 : apart & (0 - apart);
  u32 width = alike < 4 ? 4 : alike;
  u32 head = (0 - start) & (width - 1);
  u64 count = 0;
  if (head <= bytes) {
    count = (bytes - head) / width;
    // The last of two words that are put together must not reach beyond the source.
    if (alike < 4 && count > 0) --count;
  } else {  // words do not begin before the end
    while (head > bytes) {
      width >>= 1;
      head &= width - 1;
    }
  }
  const u64 end = head + count * width;
  if (kUnit <= 8 && width == 16) {
    CopyAligned<Scope, 4, kSource, Vector16>(to + head, from + head, count * 16);
  } else if (width == 8) {
    CopyAligned<Scope, 4, kSource, u64>(to + head, from + head, count * 8);
  } else if (kUnit <= 4 && alike >= 4) {
    CopyAligned<Scope, 4, kSource, u32>(to + head, from + head, count * 4);
  } else if (kUnit <= 2) {
    const auto shift_bytes = static_cast<u32>(reinterpret_cast<u64>(from + head) & 3);
    const u32* words = reinterpret_cast<const u32*>(from + head - shift_bytes);
    CopyWords<Scope, 4>(reinterpret_cast<u32*>(to + head), count, [words, shift_bytes](u64 i) {
      return Funnel(LoadFrom<kSource>(words + i), LoadFrom<kSource>(words + i + 1),
                    8 * shift_bytes);
    });
  }
  CopyPieces<Scope, kSource, kUnit>(to, from, head, end, static_cast<u32>(bytes - end), alike);
}

/// `kUnit`, 1, 2, 4 or 8, is what divides both addresses and `bytes` as a rule: copies of elements
/// need no smaller words. Addresses that it does not divide cost a test, and a copy by bytes.
template <typename Scope, Source kSource, u32 kUnit = 1>
MORI_DEVICE_FN void Copy(void* to_address, const void* from_address, u64 bytes) {
  u8* to = static_cast<u8*>(to_address);
  const u8* from = static_cast<const u8*>(from_address);
  if (((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from) | bytes) & 15) == 0) {
    CopyAligned<Scope, Scope::kBatch, kSource, Vector16>(to, from, bytes);
  } else if (bytes == 8 && ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) & 7) == 0) {
    if (Scope::Rank() == 0)
      StoreBulk(reinterpret_cast<u64*>(to), LoadFrom<kSource>(reinterpret_cast<const u64*>(from)));
  } else if (((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from) | bytes) & (kUnit - 1)) !=
             0) {
    CopyAny<Scope, kSource, 1>(to, from, bytes);
  } else {
    CopyAny<Scope, kSource, kUnit>(to, from, bytes);
  }
}

}  // namespace mori::shmem::device
