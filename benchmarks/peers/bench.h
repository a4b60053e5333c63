// What the C programs here share: clock, pinning, medians, and one line per figure for the driver.
#ifndef MORI_BENCH_PEERS_BENCH_H_
#define MORI_BENCH_PEERS_BENCH_H_
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef LIBRARY
#error "compile with -DLIBRARY='\"name\"'"
#endif

enum { kMaxBatches = 101 };

static inline double NowNs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline void Clobber(void) { __asm__ volatile("" ::: "memory"); }

static inline int CpuCount(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

/// Pins the calling thread when every process gets a CPU of its own (MORI_BENCH_PIN=0: never).
static inline void Pin(int index, int count) {
  const char* choice = getenv("MORI_BENCH_PIN");
  if ((choice != NULL && strcmp(choice, "0") == 0) || count > CpuCount()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(index, &set);
  sched_setaffinity(0, sizeof set, &set);
}

static int CompareDoubles(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

/// Sorts `values`: the least is values[0] afterwards.
static inline double Median(double* values, int count) {
  qsort(values, (size_t)count, sizeof *values, CompareDoubles);
  return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/// As the C++ programs print it.
static inline void PrintFigure(const char* metric, size_t bytes, int pes, const char* variant,
                               double value, double best, const char* unit) {
  printf("FIG library=%s metric=%s bytes=%zu pes=%d variant=%s value=%.6g best=%.6g unit=%s\n",
         LIBRARY, metric, bytes, pes, variant, value, best, unit);
  fflush(stdout);
}

/// Nanoseconds of one of the `operations` in a round of `body`, for each batch of about `batch_ns`,
/// which is at least three rounds.
static inline void TimeBatches(void (*body)(long rounds), double operations, int batches,
                               double batch_ns, double* times) {
  body(3);
  double start = NowNs();
  body(5);
  const double round_ns = (NowNs() - start) / 5;
  const long rounds = batch_ns / round_ns > 3 ? (long)(batch_ns / round_ns) : 3;
  for (int b = 0; b < batches; ++b) {
    start = NowNs();
    body(rounds);
    times[b] = (NowNs() - start) / (double)rounds / operations;
  }
}

/// Prints times per operation in ns as a figure in `unit`.
static inline void PrintTimes(const char* metric, size_t bytes, int pes, const char* variant,
                              double* ns, int count, const char* unit) {
  double value = Median(ns, count);
  double best = ns[0];
  if (strcmp(unit, "us") == 0) {
    value *= 1e-3;
    best *= 1e-3;
  } else if (strcmp(unit, "ms") == 0) {
    value *= 1e-6;
    best *= 1e-6;
  } else if (strcmp(unit, "Mops") == 0) {
    value = 1e3 / value;
    best = 1e3 / best;
  } else if (strcmp(unit, "GBps") == 0) {
    value = (double)bytes / value;
    best = (double)bytes / best;
  }
  PrintFigure(metric, bytes, pes, variant, value, best, unit);
}

/// Value of option `name` in "--name value" arguments, else `otherwise`.
static inline double Option(int argc, char** argv, const char* name, double otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (strcmp(argv[i], name) == 0) return atof(argv[i + 1]);
  }
  return otherwise;
}

#endif  // MORI_BENCH_PEERS_BENCH_H_
