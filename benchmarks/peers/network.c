// An OpenSHMEM library between hosts, as network.cpp measures ours. Options: --batches, --batch-ms.
#include "openshmem.h"

enum { kPuts = 1000, kApart = 8, kTransfers = 16, kMost = 1 << 20 };

static int me, n_pes, batches;
static double batch_ns;
static char *data, *mine;
static long *words, *counter, *shared_word;
static long raised;
static size_t transfer_bytes;

static void PutQuiet(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    shmem_putmem(words, mine, 8, 1);
    shmem_quiet();
  }
}
static void Get(long rounds) {
  for (long i = 0; i < rounds; ++i) shmem_getmem(mine, words, 8, 1);
}
static void Add(long rounds) {
  for (long i = 0; i < rounds; ++i) (void)shmem_long_atomic_fetch_add(counter, 1, 1);
  raised += rounds;
}
static void PutBlocking(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (long i = 0; i < kPuts; ++i) shmem_putmem(words + i * kApart, mine + 8 * i, 8, 1);
    shmem_quiet();
  }
}
static void PutGathered(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (long i = 0; i < kPuts; ++i) shmem_putmem_nbi(words + i, mine + 8 * i, 8, 1);
    shmem_quiet();
  }
}
static void PutMany(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (int i = 0; i < kTransfers; ++i) shmem_putmem_nbi(data, mine, transfer_bytes, 1);
    shmem_quiet();
  }
}
static void GetMany(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (int i = 0; i < kTransfers; ++i) shmem_getmem_nbi(mine, data, transfer_bytes, 1);
    shmem_quiet();
  }
}

static void Measure(const char* metric, size_t bytes, const char* variant, void (*body)(long),
                    double operations, const char* unit) {
  double times[kMaxBatches];
  TimeBatches(body, operations, batches, batch_ns, times);
  PrintTimes(metric, bytes, n_pes, variant, times, batches, unit);
}

static char Expected(size_t i) { return (char)(i % 251 + 1); }

static void MeasurePair(void) {
  for (size_t i = 0; i < kMost; ++i) mine[i] = me == 0 ? Expected(i) : 0;
  memset(data, 0, kMost);
  memset(words, 0, kPuts * kApart * 8);
  *counter = 0;
  shmem_barrier_all();
  if (me == 0) {
    Measure("net_put_rate", 8, "blocking", PutBlocking, kPuts, "Mops");
    Measure("net_put_rate", 8, "gathered", PutGathered, kPuts, "Mops");
    Measure("net_put_quiet", 8, "-", PutQuiet, 1, "us");
    Measure("net_get", 8, "-", Get, 1, "us");
    Measure("net_fetch_add", 8, "-", Add, 1, "us");
    for (transfer_bytes = 65536; transfer_bytes <= kMost; transfer_bytes *= 16) {
      Measure("net_put_bandwidth", transfer_bytes, "-", PutMany, kTransfers, "GBps");
      Measure("net_get_bandwidth", transfer_bytes, "-", GetMany, kTransfers, "GBps");
    }
    for (size_t i = 0; i < kMost; ++i) Require(mine[i] == Expected(i), "a get went wrong");
    Require(shmem_long_atomic_fetch(counter, 1) == raised, "additions were lost");
  }
  shmem_barrier_all();
  for (size_t i = 0; me == 1 && i < kMost; ++i) {
    Require(data[i] == Expected(i), "a put wrote something else");
  }
  for (size_t i = 0; me == 1 && i < 8 * kPuts; ++i) {
    Require(((char*)words)[i] == Expected(i), "a put went elsewhere");
  }
  shmem_barrier_all();
}

static void MeasureOneWay(void) {
  enum { kRoundTrips = 1000 };
  double times[kMaxBatches];
  long turn = 0;
  *counter = 0;
  for (int b = 0; b < batches; ++b) {
    shmem_barrier_all();
    const double start = NowNs();
    for (int i = 0; i < kRoundTrips; ++i) {
      ++turn;
      if (me != 0) shmem_long_wait_until(counter, SHMEM_CMP_EQ, turn);
      shmem_long_p(counter, turn, 1 - me);
      if (me == 0) shmem_long_wait_until(counter, SHMEM_CMP_EQ, turn);
    }
    times[b] = (NowNs() - start) / (2.0 * kRoundTrips);
  }
  if (me == 0) PrintTimes("net_one_way", 8, n_pes, "-", times, batches, "us");
  shmem_barrier_all();
}

static void MeasureBarrier(void) {
  double times[kMaxBatches];
  for (int i = 0; i < 10; ++i) shmem_barrier_all();
  double start = NowNs();
  for (int i = 0; i < 10; ++i) shmem_barrier_all();
  const double round_ns = (NowNs() - start) / 10;
  const long rounds =
      FromFirst(shared_word, batch_ns / round_ns > 3 ? (long)(batch_ns / round_ns) : 3);
  for (int b = 0; b < batches; ++b) {
    shmem_barrier_all();
    start = NowNs();
    for (long i = 0; i < rounds; ++i) shmem_barrier_all();
    times[b] = (NowNs() - start) / (double)rounds;
  }
  shmem_barrier_all();
  if (me == 0) PrintTimes("net_barrier", 0, n_pes, "-", times, batches, "us");
}

int main(int argc, char** argv) {
  batches = (int)Option(argc, argv, "--batches", 7);
  batch_ns = Option(argc, argv, "--batch-ms", 100) * 1e6;
  shmem_init();
  me = shmem_my_pe();
  n_pes = shmem_n_pes();
  Pin(me, n_pes);
  data = shmem_align(4096, kMost);
  mine = shmem_align(4096, kMost);
  words = shmem_align(4096, kPuts * kApart * sizeof *words);
  counter = shmem_malloc(sizeof *counter);
  shared_word = shmem_malloc(sizeof *shared_word);
  Require(data && mine && words && counter && shared_word, "the symmetric heap is too small");
  if (n_pes == 2) {
    MeasurePair();
    MeasureOneWay();
  }
  MeasureBarrier();
  shmem_finalize();
  return 0;
}
