// barrier_all and the pair of shmem_malloc and shmem_free of an OpenSHMEM library, any number of
// PEs, as barrier.cpp and allocation.cpp measure ours. Options: --batches, --batch-ms, --live
// (blocks).
#include "openshmem.h"

static int batches;
static double batch_ns;
static long* shared_word;

static void Barrier(size_t bytes) {
  (void)bytes;
  shmem_barrier_all();
}

static void MallocAndFree(size_t bytes) {
  long* block = shmem_malloc(bytes);
  Require(block != NULL, "the symmetric heap is too small");
  *block = 0x5a5a;
  shmem_free(block);
}

static double TimeNs(void (*operation)(size_t), size_t bytes, long rounds) {
  const double start = NowNs();
  for (long i = 0; i < rounds; ++i) operation(bytes);
  return (NowNs() - start) / (double)rounds;
}

static void Measure(const char* metric, void (*operation)(size_t), size_t bytes,
                    const char* variant) {
  double times[kMaxBatches];
  TimeNs(operation, bytes, 3);
  const double round_ns = TimeNs(operation, bytes, 5);
  long rounds = (long)(batch_ns / round_ns);
  rounds = rounds < 3 ? 3 : rounds > 400000 ? 400000 : rounds;
  rounds = FromFirst(shared_word, rounds);
  for (int b = 0; b < batches; ++b) {
    shmem_barrier_all();
    times[b] = TimeNs(operation, bytes, rounds);
  }
  shmem_barrier_all();
  if (shmem_my_pe() == 0) {
    PrintTimes(metric, bytes, shmem_n_pes(), variant, times, batches, "us");
  }
}

/// Every PE writes to its right neighbour before the barrier and finds its left one's word after
/// it.
static void VerifyBarrier(void) {
  long* word = shmem_malloc(sizeof *word);
  *word = 0;
  shmem_barrier_all();
  for (long turn = 1; turn <= 50; ++turn) {
    shmem_long_p(word, turn, (shmem_my_pe() + 1) % shmem_n_pes());
    shmem_barrier_all();
    Require(*(volatile long*)word == turn, "a put before the barrier is not there after it");
    shmem_barrier_all();
  }
  shmem_free(word);
}

int main(int argc, char** argv) {
  batches = (int)Option(argc, argv, "--batches", 7);
  batch_ns = Option(argc, argv, "--batch-ms", 80) * 1e6;
  const long live = (long)Option(argc, argv, "--live", 0);
  shmem_init();
  Pin(shmem_my_pe(), shmem_n_pes());
  shared_word = shmem_malloc(sizeof *shared_word);
  VerifyBarrier();
  Measure("barrier", Barrier, 0, "-");
  if (shmem_n_pes() == 2) {
    for (long i = 0; i < live; ++i) Require(shmem_malloc(64) != NULL, "the heap is too small");
    char variant[32];
    snprintf(variant, sizeof variant, "%ld", live);
    Measure("malloc_free", MallocAndFree, 64, variant);
    Measure("malloc_free", MallocAndFree, 1 << 20, variant);
  }
  shmem_finalize();
  return 0;
}
