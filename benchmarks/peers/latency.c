// Small operations of an OpenSHMEM library between PE 0 and PE 1, as latency.cpp and signal.cpp
// measure ours. Options: --batches, --batch-ms, --round-trips.
#include "openshmem.h"

enum { kWindow = 256 };

static int me;
static int n_pes;
static int batches;
static double batch_ns;
static long *mine, *theirs, *counter, *ring;

static void Put(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    shmem_putmem(theirs, mine, 8, 1);
    shmem_quiet();
  }
}

static void Get(long rounds) {
  for (long i = 0; i < rounds; ++i) shmem_getmem(mine, theirs, 8, 1);
}

static void FetchAdd(long rounds) {
  for (long i = 0; i < rounds; ++i) (void)shmem_long_atomic_fetch_add(counter, 1, 1);
}

static void AddWindow(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    for (int w = 0; w < kWindow; ++w) shmem_long_atomic_add(counter, 1, 1);
    shmem_quiet();
  }
}

static void PutNbiWindow(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    for (int w = 0; w < kWindow; ++w) shmem_putmem_nbi(&ring[w], &ring[w], 8, 1);
    shmem_quiet();
  }
}

static void PWindow(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    for (int w = 0; w < kWindow; ++w) shmem_long_p(&ring[w], w + 1, 1);
    shmem_quiet();
  }
}

/// Times `body` at PE 0. @return how many rounds it ran.
static long Measure(const char* metric, size_t bytes, void (*body)(long), double operations,
                    const char* unit) {
  long rounds = 0;
  shmem_barrier_all();
  if (me == 0) {
    double times[kMaxBatches];
    body(16);
    double start = NowNs();
    body(16);
    const double round_ns = (NowNs() - start) / 16;
    const long per_batch = batch_ns / round_ns > 4 ? (long)(batch_ns / round_ns) : 4;
    for (int b = 0; b < batches; ++b) {
      start = NowNs();
      body(per_batch);
      times[b] = (NowNs() - start) / (double)per_batch / operations;
    }
    PrintTimes(metric, bytes, n_pes, "-", times, batches, unit);
    rounds = 32 + per_batch * batches;
  }
  shmem_barrier_all();
  return rounds;
}

static char *local, *remote;
static size_t sweep_bytes;

static void PutSweep(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    shmem_putmem(remote, local, sweep_bytes, 1);
    shmem_quiet();
  }
}

static void GetSweep(long rounds) {
  for (long i = 0; i < rounds; ++i) shmem_getmem(local, remote, sweep_bytes, 1);
}

/// Time of a put and a get over size, between page-aligned blocks.
static void MeasureSizes(void) {
  const size_t most = 64 << 10;
  local = shmem_align(4096, most);
  remote = shmem_align(4096, most);
  Require(local != NULL && remote != NULL, "the symmetric heap is too small");
  memset(local, 1, most);
  memset(remote, 2, most);
  for (sweep_bytes = 1; sweep_bytes <= most; sweep_bytes *= 4) {
    Measure("put_time", sweep_bytes, PutSweep, 1, "ns");
    Measure("get_time", sweep_bytes, GetSweep, 1, "ns");
  }
  shmem_free(remote);
  shmem_free(local);
}

static void MeasurePingPong(int round_trips) {
  double times[kMaxBatches];
  long turn = 0;
  const int other = 1 - me;
  *counter = 0;
  for (int b = 0; b < batches; ++b) {
    shmem_barrier_all();
    const double start = NowNs();
    for (int i = 0; i < round_trips; ++i) {
      ++turn;
      if (me != 0) shmem_long_wait_until(counter, SHMEM_CMP_EQ, turn);
      shmem_long_p(counter, turn, other);
      if (me == 0) shmem_long_wait_until(counter, SHMEM_CMP_EQ, turn);
    }
    times[b] = (NowNs() - start) / (2.0 * round_trips);
  }
  if (me == 0) PrintTimes("wait_until_one_way", 8, n_pes, "-", times, batches, "ns");
  shmem_barrier_all();
}

#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
static void MeasurePutSignal(int round_trips) {
  double times[kMaxBatches];
  uint64_t* signal = (uint64_t*)counter;
  uint64_t turn = 0;
  const int other = 1 - me;
  *signal = 0;
  for (int b = 0; b < batches; ++b) {
    shmem_barrier_all();
    const double start = NowNs();
    for (int i = 0; i < round_trips; ++i) {
      ++turn;
      if (me != 0) shmem_signal_wait_until(signal, SHMEM_CMP_EQ, turn);
      shmem_putmem_signal(theirs, mine, 8, signal, turn, SHMEM_SIGNAL_SET, other);
      if (me == 0) shmem_signal_wait_until(signal, SHMEM_CMP_EQ, turn);
    }
    times[b] = (NowNs() - start) / (2.0 * round_trips);
  }
  if (me == 0) PrintTimes("put_signal_one_way", 8, n_pes, "-", times, batches, "ns");
  shmem_barrier_all();
}
#endif

int main(int argc, char** argv) {
  batches = (int)Option(argc, argv, "--batches", 11);
  batch_ns = Option(argc, argv, "--batch-ms", 20) * 1e6;
  const int round_trips = (int)Option(argc, argv, "--round-trips", 4000);
  shmem_init();
  me = shmem_my_pe();
  n_pes = shmem_n_pes();
  Pin(me, n_pes);
  mine = shmem_malloc(64);
  theirs = shmem_malloc(64);
  counter = shmem_malloc(64);
  ring = shmem_malloc(kWindow * sizeof *ring);
  Require(n_pes == 2 && mine != NULL && theirs != NULL && counter != NULL && ring != NULL,
          "needs 2 PEs and some symmetric memory");
  *mine = me == 0 ? 0x1122 : 0;
  *theirs = *counter = 0;
  for (int w = 0; w < kWindow; ++w) ring[w] = me == 0 ? w + 1 : 0;

  Measure("put_latency", 8, Put, 1, "ns");
  if (me == 1) Require(*theirs == 0x1122, "put wrote something else");
  if (me == 1) *theirs = 0x3344;
  Measure("get_latency", 8, Get, 1, "ns");
  if (me == 0) Require(*mine == 0x3344, "get read something else");
  Measure("put_nbi_rate", 8, PutNbiWindow, kWindow, "Mops");
  for (int w = 0; me == 1 && w < kWindow; ++w) Require(ring[w] == w + 1, "a put went elsewhere");
  Measure("p_rate", 8, PWindow, kWindow, "Mops");
  long added = Measure("fetch_add", 8, FetchAdd, 1, "ns");
  added += kWindow * Measure("add_rate", 8, AddWindow, kWindow, "Mops");
  if (me == 0) Require(shmem_long_atomic_fetch(counter, 1) == added, "additions were lost");
  shmem_barrier_all();
  MeasureSizes();
  MeasurePingPong(round_trips);
#if SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5
  MeasurePutSignal(round_trips);
#endif
  shmem_finalize();
  return 0;
}
