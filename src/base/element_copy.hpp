// Copies that tear no element.
//
// An element of 1, 2, 4 or 8 bytes that is aligned to its size where it comes from and where it
// goes is loaded by one load and stored by one store, and stored once. So who waits for the last
// element of a put sees the old value or the new one, and a value that it puts there afterwards
// stays. device/copy.hpp promises the same of kernels.
//
// The distance of both ends decides the width of the words between: the most that both are aligned
// to alike. Before the first such word, and after the last, stand pieces of less, each at an
// address that is aligned to its size.
//
// On x86-64 words between the pieces travel in vectors, eight bytes or more at a time at any
// multiple of the element's size. No manual promises how a vector is stored, but that it is made of
// aligned accesses of eight bytes or more wherever it does not cross a cache line, and is parted at
// the line where it does; a line ends between two elements. Garbage collectors copy references so,
// while other threads read them. String instructions move element by element, by definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mori::shmem {

/// Copies `bytes`, which do not overlap. Every element that is aligned at both ends is loaded and
/// stored whole, and stored once. Orders nothing.
void CopyElements(void* to, const void* from, std::size_t bytes);

namespace element_copy {

/// Bytes of the words to copy with: the largest power of two, up to `most`, which is one, that
/// divides the distance.
inline std::size_t WholeWidth(std::uintptr_t to, std::uintptr_t from, std::size_t most) {
  const std::uintptr_t bits = (to ^ from) | most;
  return bits & (~bits + 1);
}
/// Bytes of the next piece at `address` while no word of `width` may stand there; 0 where one may,
/// or where what is left is less than this piece.
inline std::size_t PieceBefore(std::uintptr_t address, std::size_t width, std::size_t left) {
  const std::uintptr_t bits = address & (width - 1);
  const std::uintptr_t piece = bits & (~bits + 1);
  return piece <= left ? piece : 0;
}

#define MORI_IN_PLACE inline __attribute__((always_inline))
#define MORI_OUT_OF_LINE __attribute__((noinline))
#if defined(__x86_64__)
#define MORI_AVX2 __attribute__((target("avx2")))
#define MORI_AVX2_INLINE inline __attribute__((target("avx2"), always_inline))
inline constexpr std::size_t kVector = 32;
inline constexpr std::size_t kPair = 2 * kVector;
inline constexpr std::size_t kBlock = 8 * kVector;
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kPagesAtATime = 4;
#endif

/// What a copy is made of. Each moves as many bytes as its name says, or in units of these; a test
/// puts one in its place that writes down what is asked of it.
struct Accesses {
  /// From here on a copy is worth finding the better direction for.
  static constexpr std::size_t kDirectedFrom = 320;
  /// Vectors up to here; beyond, the instruction that need not read the lines it fills is faster,
  /// and its slow cases do not matter.
  static constexpr std::size_t kStringFrom = (std::size_t{1} << 20) + 1;
  /// What no cache holds for its reader passes the caches by.
  static constexpr std::size_t kStreamFrom = std::size_t{32} << 20;

  template <typename Word>
  static void Move(std::byte* to, const std::byte* from) {
    // Volatile: one access each, and no loop that a compiler takes for memcpy.
    *reinterpret_cast<volatile Word*>(to) = *reinterpret_cast<const volatile Word*>(from);
  }
  static void MoveBytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  }

#if defined(__x86_64__)
  static void Move16(std::byte* to, const std::byte* from) {
    *reinterpret_cast<volatile __m128i_u*>(to) = *reinterpret_cast<const volatile __m128i_u*>(from);
  }
  MORI_AVX2_INLINE static void MoveVector(std::byte* to, const std::byte* from) {
    Store(to, Load(from));
  }
  MORI_AVX2_INLINE static void MovePair(std::byte* to, const std::byte* from) {
    const __m256i a = Load(from), b = Load(from + 32);
    Store(to, a), Store(to + 32, b);
  }
  /// Loads all of a block before it stores any of it.
  MORI_AVX2_INLINE static void MoveBlock(std::byte* to, const std::byte* from) {
    const __m256i a = Load(from), b = Load(from + 32), c = Load(from + 64), d = Load(from + 96);
    const __m256i e = Load(from + 128), f = Load(from + 160), g = Load(from + 192),
                  h = Load(from + 224);
    Store(to, a), Store(to + 32, b), Store(to + 64, c), Store(to + 96, d);
    Store(to + 128, e), Store(to + 160, f), Store(to + 192, g), Store(to + 224, h);
  }
  /// Half a block past the caches, to a multiple of a vector.
  MORI_AVX2_INLINE static void StreamHalfBlock(std::byte* to, const std::byte* from) {
    __builtin_prefetch(from + 128);
    __builtin_prefetch(from + 192);
    const __m256i a = Load(from), b = Load(from + 32), c = Load(from + 64), d = Load(from + 96);
    auto* vectors = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(vectors, a), _mm256_stream_si256(vectors + 1, b);
    _mm256_stream_si256(vectors + 2, c), _mm256_stream_si256(vectors + 3, d);
  }
  /// Streamed stores have no place in the order of others until here.
  static void EndStream() { _mm_sfence(); }
  template <typename Word>
  static void MoveString(std::byte* to, const std::byte* from, std::size_t words) {
    if constexpr (sizeof(Word) == 8) {
      asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words)::"memory");
    } else if constexpr (sizeof(Word) == 4) {
      asm volatile("rep movsl" : "+D"(to), "+S"(from), "+c"(words)::"memory");
    } else if constexpr (sizeof(Word) == 2) {
      asm volatile("rep movsw" : "+D"(to), "+S"(from), "+c"(words)::"memory");
    } else {
      asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(words)::"memory");
    }
  }
  static bool HasVectors() { return kHasVectors; }

 private:
  MORI_AVX2_INLINE static __m256i Load(const std::byte* from) {
    return *reinterpret_cast<const volatile __m256i_u*>(from);
  }
  MORI_AVX2_INLINE static void Store(std::byte* to, __m256i value) {
    *reinterpret_cast<volatile __m256i_u*>(to) = value;
  }
  static const bool kHasVectors;
#endif
};

/// What is left of a copy. A value, so that a compiler keeps it in registers: functions that take
/// it are in place, those that stay out of line take its parts.
struct Rest {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;

  Rest After(std::size_t done) const { return {to + done, from + done, bytes - done}; }
  Rest First(std::size_t some) const { return {to, from, some}; }
  std::uintptr_t ToNumber() const { return reinterpret_cast<std::uintptr_t>(to); }
  std::uintptr_t FromNumber() const { return reinterpret_cast<std::uintptr_t>(from); }
};

template <typename Accesses, typename Word>
MORI_IN_PLACE Rest MoveOne(Rest rest) {
  Accesses::template Move<Word>(rest.to, rest.from);
  return rest.After(sizeof(Word));
}
template <typename Accesses>
MORI_IN_PLACE Rest MovePiece(Rest rest, std::size_t bytes) {
  switch (bytes) {
    case 4: return MoveOne<Accesses, std::uint32_t>(rest);
    case 2: return MoveOne<Accesses, std::uint16_t>(rest);
    default: return MoveOne<Accesses, std::uint8_t>(rest);
  }
}
/// All of what is less than a word.
template <typename Accesses, std::size_t kWidth>
MORI_IN_PLACE void MoveEnd(Rest rest) {
  if (rest.bytes == 0) return;
  if constexpr (kWidth > 4) {
    if ((rest.bytes & 4) != 0) rest = MoveOne<Accesses, std::uint32_t>(rest);
  }
  if constexpr (kWidth > 2) {
    if ((rest.bytes & 2) != 0) rest = MoveOne<Accesses, std::uint16_t>(rest);
  }
  if ((rest.bytes & 1) != 0) MoveOne<Accesses, std::uint8_t>(rest);
}

/// All words of it, one by one, and the end.
template <typename Accesses, typename Word>
MORI_IN_PLACE void MoveWords(Rest rest) {
  while (rest.bytes >= sizeof(Word)) rest = MoveOne<Accesses, Word>(rest);
  MoveEnd<Accesses, sizeof(Word)>(rest);
}

#if defined(__x86_64__)

template <typename Accesses>
MORI_IN_PLACE Rest MoveTwo16(Rest rest) {
  Accesses::Move16(rest.to, rest.from);
  Accesses::Move16(rest.to + 16, rest.from + 16);
  return rest.After(32);
}
/// From where a word may begin. Up to two vectors without a loop.
template <typename Accesses, typename Word>
MORI_IN_PLACE void MoveShort(Rest rest) {
  if constexpr (sizeof(Word) == 1) {
    Accesses::MoveBytes(rest.to, rest.from, rest.bytes);
  } else {
    while (rest.bytes > kPair) rest = MoveTwo16<Accesses>(rest);
    if (rest.bytes >= 32) {
      rest = MoveTwo16<Accesses>(rest);
      if (rest.bytes >= 32) rest = MoveTwo16<Accesses>(rest);
    }
    if (rest.bytes >= 16) {
      Accesses::Move16(rest.to, rest.from);
      rest = rest.After(16);
    }
    MoveWords<Accesses, Word>(rest);
  }
}

template <typename Accesses, typename Word>
MORI_AVX2 void MoveVectors(std::byte* to, const std::byte* from, std::size_t bytes) {
  Rest rest{to, from, bytes};
  if (rest.bytes >= kBlock) {
    Accesses::MoveBlock(rest.to, rest.from);
    rest = rest.After(kBlock);
  }
  for (; rest.bytes >= kPair; rest = rest.After(kPair)) Accesses::MovePair(rest.to, rest.from);
  if (rest.bytes >= kVector) {
    Accesses::MoveVector(rest.to, rest.from);
    rest = rest.After(kVector);
  }
  if (rest.bytes != 0) MoveShort<Accesses, Word>(rest);
}

/// This one and the next are for what is long enough that vectors may stand at multiples of their
/// size, and go the way in which a store never looks like the source of a load that is still to
/// come.
template <typename Accesses, typename Word>
MORI_AVX2 void MoveUpwards(std::byte* to, const std::byte* from, std::size_t bytes) {
  Rest rest{to, from, bytes};
  if (const std::size_t head = -rest.ToNumber() % kVector; head != 0) {
    MoveShort<Accesses, Word>(rest.First(head));
    rest = rest.After(head);
  }
  for (; rest.bytes >= kBlock; rest = rest.After(kBlock)) Accesses::MoveBlock(rest.to, rest.from);
  MoveVectors<Accesses, Word>(rest.to, rest.from, rest.bytes);
}
template <typename Accesses, typename Word>
MORI_AVX2 void MoveDownwards(std::byte* to, const std::byte* from, std::size_t bytes) {
  Rest rest{to, from, bytes};
  if (const std::size_t tail = (rest.ToNumber() + rest.bytes) % kVector; tail != 0) {
    rest = rest.First(rest.bytes - tail);
    MoveShort<Accesses, Word>({rest.to + rest.bytes, rest.from + rest.bytes, tail});
  }
  for (; rest.bytes >= kBlock; rest = rest.First(rest.bytes - kBlock)) {
    const Rest last = rest.After(rest.bytes - kBlock);
    Accesses::MoveBlock(last.to, last.from);
  }
  MoveVectors<Accesses, Word>(rest.to, rest.from, rest.bytes);
}

/// Several pages side by side, so that more lines of memory are under way. @return how far it came
template <typename Accesses, typename Word>
MORI_AVX2 std::size_t MoveStream(std::byte* to, const std::byte* from, std::size_t bytes) {
  Rest rest{to, from, bytes};
  const std::size_t head = -rest.ToNumber() % kVector;
  MoveShort<Accesses, Word>(rest.First(head));
  constexpr std::size_t kAtATime = kPagesAtATime * kPage;
  for (rest = rest.After(head); rest.bytes >= kAtATime; rest = rest.After(kAtATime)) {
    for (std::size_t offset = 0; offset < kPage; offset += kBlock / 2) {
      for (std::size_t page = offset; page < kAtATime; page += kPage)
        Accesses::StreamHalfBlock(rest.to + page, rest.from + page);
    }
  }
  Accesses::EndStream();
  return bytes - rest.bytes;
}

/// What the two below do not do. Out of line, as `MoveVectors()`: so they need no registers of
/// their own.
template <typename Accesses, typename Word>
MORI_OUT_OF_LINE void MoveLong(std::byte* to, const std::byte* from, std::size_t bytes) {
  Rest rest{to, from, bytes};
  if (!Accesses::HasVectors()) {
    MoveShort<Accesses, Word>(rest);
  } else if (rest.bytes < Accesses::kStringFrom) {
    const std::size_t distance = (rest.ToNumber() - rest.FromNumber()) % kPage;
    const bool destination_follows = distance != 0 && distance < kPage / 2;
    destination_follows ? MoveDownwards<Accesses, Word>(rest.to, rest.from, rest.bytes)
                        : MoveUpwards<Accesses, Word>(rest.to, rest.from, rest.bytes);
  } else {
    if (rest.bytes >= Accesses::kStreamFrom)
      rest = rest.After(MoveStream<Accesses, Word>(rest.to, rest.from, rest.bytes));
    const std::size_t words = rest.bytes / sizeof(Word);
    Accesses::template MoveString<Word>(rest.to, rest.from, words);
    MoveEnd<Accesses, sizeof(Word)>(rest.After(words * sizeof(Word)));
  }
}

/// From where a word may begin.
template <typename Accesses, typename Word>
MORI_IN_PLACE void MoveAll(Rest rest) {
  if (rest.bytes <= kPair) {
    MoveShort<Accesses, Word>(rest);
  } else if (rest.bytes < Accesses::kDirectedFrom && Accesses::HasVectors()) {
    MoveVectors<Accesses, Word>(rest.to, rest.from, rest.bytes);
  } else {
    MoveLong<Accesses, Word>(rest.to, rest.from, rest.bytes);
  }
}

#else

template <typename Accesses, typename Word>
MORI_IN_PLACE void MoveAll(Rest rest) {
  if constexpr (sizeof(Word) == 1) {
    Accesses::MoveBytes(rest.to, rest.from, rest.bytes);
  } else {
    MoveWords<Accesses, Word>(rest);
  }
}

#endif

/// Of ends that are not both aligned to words.
template <typename Accesses>
MORI_OUT_OF_LINE void CopyShifted(std::byte* to, const std::byte* from, std::size_t bytes) {
  Rest rest{to, from, bytes};
  const std::size_t width = WholeWidth(rest.ToNumber(), rest.FromNumber(), 8);
  while (const std::size_t piece = PieceBefore(rest.ToNumber(), width, rest.bytes))
    rest = MovePiece<Accesses>(rest, piece);
  switch (width) {
    case 8: return MoveAll<Accesses, std::uint64_t>(rest);
    case 4: return MoveAll<Accesses, std::uint32_t>(rest);
    case 2: return MoveAll<Accesses, std::uint16_t>(rest);
    default: return MoveAll<Accesses, std::uint8_t>(rest);
  }
}

template <typename Accesses>
MORI_IN_PLACE void Copy(void* to, const void* from, std::size_t bytes) {
  const Rest rest{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes};
  if (((rest.ToNumber() | rest.FromNumber()) & 7) == 0) [[likely]]  // as most do
    return MoveAll<Accesses, std::uint64_t>(rest);
  CopyShifted<Accesses>(rest.to, rest.from, bytes);
}

}  // namespace element_copy
}  // namespace mori::shmem
