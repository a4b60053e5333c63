// Copies between heaps, for sizes where the C library's memcpy has a slow case.
//
// From about a kilobyte to about a megabyte memcpy runs "rep movsb", which some processors run more
// than ten times slower where the destination starts a little after the source modulo 4 KiB. Vector
// loops have no such case if they load a block before they store any of it, and go the way in which
// a store never looks like the source of a load that is still to come.
// benchmarks/copy_candidates.cpp shows both.
#include <cstdint>
#include <cstring>

#include "mori/shmem/host_ops.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mori::shmem::detail {
namespace {

#if defined(__x86_64__)

#define MORI_AVX2 __attribute__((target("avx2")))
constexpr std::size_t kPage = 4096;
constexpr std::size_t kVector = 32;
constexpr std::size_t kBlock = 8 * kVector;
/// Beyond this memcpy uses vector loops itself.
constexpr std::size_t kMost = std::size_t{1} << 20;
static_assert(kCopyInline >= kBlock + kVector, "the loops need a block and a vector at least");

MORI_AVX2 inline __m256i Load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
MORI_AVX2 inline void Store(std::byte* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

/// Loads all of a block before it stores any of it.
MORI_AVX2 inline void CopyBlock(std::byte* to, const std::byte* from) {
  const __m256i a = Load(from), b = Load(from + 32), c = Load(from + 64), d = Load(from + 96);
  const __m256i e = Load(from + 128), f = Load(from + 160), g = Load(from + 192),
                h = Load(from + 224);
  Store(to, a), Store(to + 32, b), Store(to + 64, c), Store(to + 96, d);
  Store(to + 128, e), Store(to + 160, f), Store(to + 192, g), Store(to + 224, h);
}

MORI_AVX2 void CopyUpwards(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::byte* const end = to + bytes;
  const std::byte* const from_end = from + bytes;
  Store(to, Load(from));
  const std::size_t head = kVector - reinterpret_cast<std::uintptr_t>(to) % kVector;
  to += head;
  from += head;
  for (; to + kBlock < end; to += kBlock, from += kBlock) CopyBlock(to, from);
  CopyBlock(end - kBlock, from_end - kBlock);
}

MORI_AVX2 void CopyDownwards(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::byte* end = to + bytes;
  const std::byte* from_end = from + bytes;
  Store(end - kVector, Load(from_end - kVector));
  const std::size_t tail = reinterpret_cast<std::uintptr_t>(end) % kVector;
  end -= tail;
  from_end -= tail;
  for (; to + kBlock < end; end -= kBlock, from_end -= kBlock)
    CopyBlock(end - kBlock, from_end - kBlock);
  CopyBlock(to, from);
}

bool HasVectors() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

#endif

}  // namespace

void CopyLarge(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (bytes <= kMost && HasVectors()) {
    const std::size_t distance =
        (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % kPage;
    const bool destination_follows = distance != 0 && distance < kPage / 2;
    auto* copy = destination_follows ? CopyDownwards : CopyUpwards;
    copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace mori::shmem::detail
