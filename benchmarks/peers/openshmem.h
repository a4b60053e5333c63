// What the OpenSHMEM programs share. Standard OpenSHMEM 1.4 only.
#ifndef MORI_BENCH_PEERS_OPENSHMEM_H_
#define MORI_BENCH_PEERS_OPENSHMEM_H_
#include "bench.h"
// after bench.h, which asks for the GNU extensions
#include <shmem.h>

/// Ends the job with a BAD line unless `holds`.
static inline void Require(int holds, const char* what) {
  if (holds) return;
  printf("BAD %s: %s\n", LIBRARY, what);
  fflush(stdout);
  shmem_global_exit(2);
}

/// The value that PE 0 passes. Collective.
static inline long FromFirst(long* shared_word, long value) {
  if (shmem_my_pe() == 0) {
    for (int pe = 0; pe < shmem_n_pes(); ++pe) shmem_long_p(shared_word, value, pe);
    shmem_quiet();
  }
  shmem_barrier_all();
  const long result = *(volatile long*)shared_word;
  shmem_barrier_all();
  return result;
}

#endif  // MORI_BENCH_PEERS_OPENSHMEM_H_
