// Start-up cost and footprint of an OpenSHMEM library, as startup.cpp measures ours: memory is
// counted without the mappings that hold a PE's symmetric heap.
#include "openshmem.h"

typedef struct {
  double rss_kib;
  double pss_kib;
  double peak_kib;
} MemoryUse;

static double SinceMs(double start_ns) { return (NowNs() - start_ns) * 1e-6; }

static double KibOf(const char* line, const char* key) {
  const size_t length = strlen(key);
  if (strncmp(line, key, length) != 0 || line[length] != ':') return 0;
  return strtod(line + length + 1, NULL);
}

/// Whether [begin, end) holds this PE's or a reachable peer's copy of `symmetric`.
static int IsHeap(unsigned long begin, unsigned long end, const void* symmetric) {
  for (int pe = 0; pe < shmem_n_pes(); ++pe) {
    const unsigned long address = (unsigned long)shmem_ptr(symmetric, pe);
    if (begin <= address && address < end) return 1;
  }
  return 0;
}

static void CountMemory(MemoryUse* use, const void* symmetric) {
  char line[512];
  int is_counted = 1;
  FILE* mappings = fopen("/proc/self/smaps", "r");
  while (mappings != NULL && fgets(line, sizeof line, mappings) != NULL) {
    unsigned long begin, end;
    if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
      is_counted = !IsHeap(begin, end, symmetric);
    } else if (is_counted) {
      use->rss_kib += KibOf(line, "Rss");
      use->pss_kib += KibOf(line, "Pss");
    }
  }
  if (mappings != NULL) fclose(mappings);
  FILE* status = fopen("/proc/self/status", "r");
  while (status != NULL && fgets(line, sizeof line, status) != NULL) {
    use->peak_kib += KibOf(line, "VmHWM");
  }
  if (status != NULL) fclose(status);
}

static void PrintWorst(const MemoryUse* uses, int count, int field, const char* metric) {
  double most = 0;
  double least = ((const double*)&uses[0])[field];
  for (int pe = 0; pe < count; ++pe) {
    const double value = ((const double*)&uses[pe])[field];
    most = value > most ? value : most;
    least = value < least ? value : least;
  }
  PrintFigure(metric, 0, count, "-", most, least, "KiB");
}

/// The PE with the most, and the one with the least, once each has talked to all.
static void MeasureMemory(int me, int n_pes) {
  long* numbers = shmem_malloc((size_t)n_pes * sizeof *numbers);
  MemoryUse* uses = shmem_malloc((size_t)n_pes * sizeof *uses);
  Require(numbers != NULL && uses != NULL, "the symmetric heap is too small");
  for (int pe = 0; pe < n_pes; ++pe) shmem_long_p(numbers + me, me, pe);
  shmem_barrier_all();
  for (int pe = 0; pe < n_pes; ++pe) Require(numbers[pe] == pe, "a number is missing");
  MemoryUse mine = {0, 0, 0};
  CountMemory(&mine, numbers);
  shmem_putmem(uses + me, &mine, sizeof mine, 0);
  shmem_barrier_all();
  if (me != 0) return;
  PrintWorst(uses, n_pes, 0, "rss_beyond_heap");
  PrintWorst(uses, n_pes, 1, "pss_beyond_heap");
  PrintWorst(uses, n_pes, 2, "peak_rss");
}

int main(int argc, char** argv) {
  const int with_memory = argc > 1 && strcmp(argv[1], "--memory") == 0;
  double start = NowNs();
  shmem_init();
  const double init_ms = SinceMs(start);
  const int me = shmem_my_pe();
  const int n_pes = shmem_n_pes();
  start = NowNs();
  shmem_barrier_all();
  const double barrier_ms = SinceMs(start);
  if (with_memory) MeasureMemory(me, n_pes);
  start = NowNs();
  shmem_finalize();
  const double finalize_ms = SinceMs(start);
  if (me != 0 || with_memory) return 0;
  PrintFigure("init", 0, n_pes, "-", init_ms, init_ms, "ms");
  PrintFigure("first_barrier", 0, n_pes, "-", barrier_ms, barrier_ms, "ms");
  PrintFigure("finalize", 0, n_pes, "-", finalize_ms, finalize_ms, "ms");
  return 0;
}
