// Ways to copy between two shared mappings, over size and over where source and destination stand
// in their pages: what put and get copy with is chosen by this.
//
// The C library's memcpy runs "rep movsb" for a range of sizes. Some processors run that more than
// ten times slower where the destination starts up to 31 bytes after the source modulo 4 KiB, and
// somewhat slower for every other distance that is no multiple of 32. Vector loops have no such
// case, but one that goes upwards reads what it seems to have just written (same low 12 bits of the
// address) where the destination is a little after the source, one that goes downwards where it is
// a little before.
//
//   copy_candidates                                  everything
//   copy_candidates --sizes 4096 --distances 0 16    a part
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common/figure.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mori::bench {
namespace {

using CopyFunction = void (*)(std::byte*, const std::byte*, std::size_t);

constexpr std::size_t kPage = 4096;

void CopyByLibrary(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  Clobber();
}

#if defined(__x86_64__)

#define MORI_AVX2 __attribute__((target("avx2")))
constexpr std::size_t kVector = 32;
constexpr std::size_t kBlock = 8 * kVector;

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

/// `bytes` is at least a block, here and below.
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
  for (; to + kBlock < end; end -= kBlock, from_end -= kBlock) {
    CopyBlock(end - kBlock, from_end - kBlock);
  }
  CopyBlock(to, from);
}

/// Past the caches: the destination's lines are not read first.
MORI_AVX2 void CopyStreaming(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::byte* const end = to + bytes;
  const std::byte* const from_end = from + bytes;
  Store(to, Load(from));
  const std::size_t head = kVector - reinterpret_cast<std::uintptr_t>(to) % kVector;
  to += head;
  from += head;
  for (; to + 4 * kVector < end; to += 4 * kVector, from += 4 * kVector) {
    const __m256i a = Load(from), b = Load(from + 32), c = Load(from + 64), d = Load(from + 96);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 96), d);
  }
  _mm_sfence();
  for (std::size_t back = 4 * kVector; back > 0; back -= kVector) {
    Store(end - back, Load(from_end - back));
  }
}

void CopyByMovsb(std::byte* to, const std::byte* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

/// The choice: vector loops from where rep movsb would begin to where memcpy uses them itself.
void CopyChosen(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLeast = 1024;
  constexpr std::size_t kMost = 1 << 20;
  if (bytes < kLeast || bytes > kMost || !__builtin_cpu_supports("avx2")) {
    CopyByLibrary(to, from, bytes);
    return;
  }
  const std::uintptr_t distance =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % kPage;
  if (distance != 0 && distance < kPage / 2) {
    CopyDownwards(to, from, bytes);
  } else {
    CopyUpwards(to, from, bytes);
  }
}

#endif

struct Way {
  const char* name;
  CopyFunction copy;
  std::size_t least_bytes;
};

std::vector<Way> Ways() {
  std::vector<Way> ways{{"memcpy", CopyByLibrary, 1}};
#if defined(__x86_64__)
  ways.push_back({"rep_movsb", CopyByMovsb, 1});
  if (__builtin_cpu_supports("avx2")) {
    ways.push_back({"upwards", CopyUpwards, kBlock + kVector});
    ways.push_back({"downwards", CopyDownwards, kBlock + kVector});
    ways.push_back({"streaming", CopyStreaming, kBlock});
  }
  ways.push_back({"chosen", CopyChosen, 1});
#endif
  return ways;
}

struct Options {
  std::vector<std::size_t> sizes{1,       8,       64,      256,     1024,     2048,    3000,
                                 4096,    8192,    16384,   32768,   65536,    262144,  524288,
                                 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20};
  std::vector<std::size_t> source_offsets{0};
  std::vector<std::size_t> distances{0, 1, 16, 31, 32, 64, 256, 2048, 4032, 4080};
  BatchPlan plan{15, 1};
};

std::byte* MapShared(std::size_t bytes) {
  const int fd = ::memfd_create("copy", 0);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (fd >= 0) ::close(fd);
  if (memory == MAP_FAILED) {
    std::printf("BAD no shared memory of %zu bytes\n", bytes);
    ::_exit(1);
  }
  std::memset(memory, 1, bytes);
  return static_cast<std::byte*>(memory);
}

/// Copies random-looking bytes and compares them and what stands around them.
void Verify(const Way& way, std::byte* to, std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  to[-1] = to[bytes] = std::byte{0xee};
  std::memset(to, 0, bytes);
  way.copy(to, from, bytes);
  if (std::memcmp(to, from, bytes) == 0 && to[-1] == std::byte{0xee} &&
      to[bytes] == std::byte{0xee}) {
    return;
  }
  std::printf("BAD %s copies %zu bytes wrong\n", way.name, bytes);
  ::_exit(1);
}

void VerifyAllLengths(std::byte* to, std::byte* from) {
  for (const Way& way : Ways()) {
    for (std::size_t bytes = way.least_bytes; bytes < 2100; bytes += bytes < 700 ? 1 : 13) {
      for (const std::size_t from_offset : {0, 1, 31}) {
        for (const std::size_t to_offset : {1, 16, 31, 32, 33}) {
          Verify(way, to + to_offset, from + from_offset, bytes);
        }
      }
    }
  }
}

void Measure(const Options& options, std::byte* to_page, std::byte* from_page, std::size_t bytes) {
  for (const std::size_t source_offset : options.source_offsets) {
    std::vector<Candidate> candidates;
    for (const Way& way : Ways()) {
      if (bytes < way.least_bytes) continue;
      for (const std::size_t distance : options.distances) {
        std::byte* const from = from_page + source_offset;
        std::byte* const to = to_page + source_offset + distance;
        Verify(way, to, from, bytes);
        Candidate& candidate = candidates.emplace_back();
        candidate.label = {way.name, bytes, 1, "", Unit::kGBps};
        candidate.label.variant = std::to_string(source_offset) + "+" + std::to_string(distance);
        candidate.body = [=](long rounds) {
          for (long i = 0; i < rounds; ++i) way.copy(to, from, bytes);
        };
      }
    }
    MeasureInTurns(candidates, options.plan);
  }
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  using namespace mori::bench;
  CLI::App app("Copy routines over size and page offsets; variant is source offset + distance");
  Options options;
  app.add_option("--sizes", options.sizes, "Bytes of a copy")->check(CLI::Range(1, 64 << 20));
  app.add_option("--source-offsets", options.source_offsets, "Of the source in its page")
      ->check(CLI::Range(0, 4096));
  app.add_option("--distances", options.distances, "Destination minus source, modulo the page")
      ->check(CLI::Range(0, 4096));
  app.add_option("--batches", options.plan.batches, "Batches per figure")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch-ms", options.plan.batch_ms, "Length of a batch")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  const std::size_t bytes = (64 << 20) + 4 * kPage;
  std::byte* const from = MapShared(bytes);
  std::byte* const to = MapShared(bytes) + kPage;
  VerifyAllLengths(to, from);
  for (const std::size_t size : options.sizes) Measure(options, to, from, size);
}
