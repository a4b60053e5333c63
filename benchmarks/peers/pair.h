// What rank 0 times with rank 1, for bare networks, as network.cpp does it over the library. The
// program that includes this defines the operations.
#ifndef MORI_BENCH_PEERS_PAIR_H_
#define MORI_BENCH_PEERS_PAIR_H_
#include "meeting.h"

enum { kPuts = 1000, kApart = 8, kTransfers = 16, kMost = 1 << 20, kMemoryBytes = 4 << 20 };
// Offsets in the memory of each process.
enum { kWords = 2 << 20, kCounter = 3 << 20, kFlag = (3 << 20) + 64 };

static char* memory;       // the others reach it
static char local[kMost];  // nobody else does
static const char* variant = "-";
static int batches;
static double batch_ns;

// To and from rank 1. Several may be under way; Await() returns once all have happened there.
static void Write(size_t offset, const void* from, size_t bytes);
static void Read(void* to, size_t offset, size_t bytes);
static void FetchAdd(size_t offset);
static void Await(void);
/// Moves what others want of this process.
static void Progress(void);

static size_t transfer_bytes;

static void PutQuiet(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    Write(kWords, local, 8);
    Await();
  }
}
static void Get(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    Read(local, kWords, 8);
    Await();
  }
}
static long raised;
static void Add(long rounds) {
  for (long i = 0; i < rounds; ++i) {
    FetchAdd(kCounter);
    Await();
  }
  raised += rounds;
}
static void PutRate(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (long i = 0; i < kPuts; ++i) Write(kWords + 8 * (size_t)i, local + 8 * i, 8);
    Await();
  }
}
static void PutMany(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (int i = 0; i < kTransfers; ++i) Write(0, local, transfer_bytes);
    Await();
  }
}
static void GetMany(long rounds) {
  for (long round = 0; round < rounds; ++round) {
    for (int i = 0; i < kTransfers; ++i) Read(local, 0, transfer_bytes);
    Await();
  }
}

static void MeasureOne(const char* metric, size_t bytes, void (*body)(long), double operations,
                       const char* unit) {
  double times[kMaxBatches];
  TimeBatches(body, operations, batches, batch_ns, times);
  PrintTimes(metric, bytes, n_processes, variant, times, batches, unit);
}

/// Rank 1 until rank 0 is done: asleep, if the network moves by itself, or moving it.
static void Serve(int spins) {
  char done;
  while (recv(sockets[0], &done, 1, spins ? MSG_DONTWAIT : MSG_WAITALL) != 1) {
    for (int i = 0; i < 100; ++i) Progress();
  }
}

static char Expected(size_t i) { return (char)(i % 251 + 1); }

/// Between two meetings of both.
static void MeasureOperations(int target_spins) {
  Together(0);
  if (me == 0) {
    for (size_t i = 0; i < kMost; ++i) local[i] = Expected(i);
    MeasureOne("net_put_rate", 8, PutRate, kPuts, "Mops");
    MeasureOne("net_put_quiet", 8, PutQuiet, 1, "us");
    MeasureOne("net_get", 8, Get, 1, "us");
    MeasureOne("net_fetch_add", 8, Add, 1, "us");
    for (transfer_bytes = 65536; transfer_bytes <= kMost; transfer_bytes *= 16) {
      MeasureOne("net_put_bandwidth", transfer_bytes, PutMany, kTransfers, "GBps");
      MeasureOne("net_get_bandwidth", transfer_bytes, GetMany, kTransfers, "GBps");
    }
    for (size_t i = 0; i < kMost; ++i) Require(local[i] == Expected(i), "a get went wrong");
    SendTo(1, "", 1);
  } else {
    Serve(target_spins);
  }
  const long added = Together(raised);
  for (size_t i = 0; me == 1 && i < kMost; ++i) {
    Require(memory[i] == Expected(i), "a put wrote something else");
  }
  for (size_t i = 0; me == 1 && i < 8 * kPuts; ++i) {
    Require(memory[kWords + i] == Expected(i), "a put went elsewhere");
  }
  if (me == 1) Require(*(volatile long*)(memory + kCounter) == added, "additions were lost");
  Together(0);
}

static void Poll(long turn) {
  while (*(volatile long*)(memory + kFlag) != turn) Progress();
}

/// Half a round trip. `send_turn(n)` is the nth, and makes the other's `await_turn(n)` return.
static void MeasureOneWay(const char* metric, void (*send_turn)(long), void (*await_turn)(long)) {
  enum { kRoundTrips = 1000 };
  long turn = 0;
  double times[kMaxBatches];
  for (int b = 0; b < batches; ++b) {
    Together(0);
    const double start = NowNs();
    for (int i = 0; i < kRoundTrips; ++i) {
      ++turn;
      if (me != 0) await_turn(turn);
      send_turn(turn);
      if (me == 0) await_turn(turn);
    }
    times[b] = (NowNs() - start) / (2.0 * kRoundTrips);
  }
  if (me == 0) PrintTimes(metric, 8, n_processes, variant, times, batches, "us");
  Together(0);
}

#endif  // MORI_BENCH_PEERS_PAIR_H_
