// Bandwidth of put and get of an OpenSHMEM library over size and destination offset, as
// bandwidth.cpp measures ours. Options: --batches, --batch-ms, --max-bytes.
#include "openshmem.h"

static const size_t kSizes[] = {4096,   4099,    16384,         65521,   65536,
                                262144, 1 << 20, (1 << 20) + 3, 8 << 20, 64 << 20};
static const size_t kOffsets[] = {0, 16, 2048};
enum {
  kSizeCount = sizeof kSizes / sizeof *kSizes,
  kOffsetCount = sizeof kOffsets / sizeof *kOffsets
};
enum { kPage = 4096 };

static int me;
static int batches;
static double batch_ns;

typedef void (*CopyFunction)(void*, const void*, size_t, int);

static double TimeNs(CopyFunction copy, char* to, const char* from, size_t bytes, long rounds) {
  const double start = NowNs();
  for (long i = 0; i < rounds; ++i) {
    copy(to, from, bytes, 1);
    shmem_quiet();
  }
  return (NowNs() - start) / (double)rounds;
}

/// The one that is written to checks every byte.
static void Check(const char* data, size_t bytes, char expected, int owner) {
  shmem_barrier_all();
  for (size_t i = 0; me == owner && i < bytes; ++i) {
    Require(data[i] == expected, "bytes arrived wrong");
  }
  shmem_barrier_all();
}

static void Measure(int is_put, char* to, char* from, size_t bytes, const char* variant) {
  static char mark = 0;
  ++mark;
  memset(me == (is_put ? 0 : 1) ? from : to, me == (is_put ? 0 : 1) ? mark : 0, bytes);
  shmem_barrier_all();
  if (me == 0) {
    const CopyFunction copy = is_put ? shmem_putmem : shmem_getmem;
    double times[kMaxBatches];
    TimeNs(copy, to, from, bytes, 2);
    const double round_ns = TimeNs(copy, to, from, bytes, 3);
    const long rounds = batch_ns / round_ns > 3 ? (long)(batch_ns / round_ns) : 3;
    for (int b = 0; b < batches; ++b) times[b] = TimeNs(copy, to, from, bytes, rounds);
    PrintTimes(is_put ? "put_bandwidth" : "get_bandwidth", bytes, 2, variant, times, batches,
               "GBps");
  }
  Check(to, bytes, mark, is_put ? 1 : 0);
}

/// Two blocks as an application gets them: where the allocator puts them.
static void MeasureAsAllocated(int is_put, size_t bytes) {
  char* from = shmem_malloc(bytes);
  char* to = shmem_malloc(bytes);
  Require(from != NULL && to != NULL, "the symmetric heap is too small");
  Measure(is_put, to, from, bytes, "as_allocated");
  shmem_free(to);
  shmem_free(from);
}

static void MeasureAtOffsets(int is_put, size_t bytes) {
  char* from = shmem_align(kPage, bytes);
  char* to = shmem_align(kPage, bytes + 2 * kPage);
  Require(from != NULL && to != NULL, "the symmetric heap is too small");
  for (int o = 0; o < kOffsetCount; ++o) {
    char variant[32];
    snprintf(variant, sizeof variant, "%zu", kOffsets[o]);
    Measure(is_put, to + kOffsets[o], from, bytes, variant);
  }
  shmem_free(to);
  shmem_free(from);
}

int main(int argc, char** argv) {
  batches = (int)Option(argc, argv, "--batches", 7);
  batch_ns = Option(argc, argv, "--batch-ms", 12) * 1e6;
  const double max_bytes = Option(argc, argv, "--max-bytes", 1e18);
  shmem_init();
  me = shmem_my_pe();
  Pin(me, shmem_n_pes());
  Require(shmem_n_pes() == 2, "needs 2 PEs");
  for (int is_put = 1; is_put >= 0; --is_put) {
    for (int s = 0; s < kSizeCount && (double)kSizes[s] <= max_bytes; ++s) {
      MeasureAsAllocated(is_put, kSizes[s]);
      MeasureAtOffsets(is_put, kSizes[s]);
    }
  }
  shmem_finalize();
  return 0;
}
