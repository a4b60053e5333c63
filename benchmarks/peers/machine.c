// What the machine allows with no library: processes over one shared mapping, and TCP beside it.
//
//   machine launch      fork and exec of 2, 16 and 64 processes
//   machine memory      stores, a cache line between two processes, locked adds, memcpy, first
//   touch machine barriers    of 2 to 64 processes over one counter: spinning, yielding, sleeping
//   on a futex machine network     TCP over loopback: round trip, messages, connections, bandwidth
//
// Options: --batches, --batch-ms.
#include "bench.h"
// after bench.h, which asks for the GNU extensions
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

typedef struct {
  _Alignas(128) _Atomic long ping;
  _Alignas(128) _Atomic long pong;
  _Alignas(128) _Atomic int count;
  _Alignas(128) _Atomic int epoch;
  _Alignas(128) _Atomic int phase;
} Control;

static int batches;
static double batch_ns;
static Control* control;

static void Die(const char* what) {
  printf("BAD machine: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void* MapShared(size_t bytes, unsigned flags) {
  const int fd = memfd_create("machine", flags);
  if (fd < 0) return NULL;
  void* memory = MAP_FAILED;
  if (ftruncate(fd, (off_t)bytes) == 0) {
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  return memory == MAP_FAILED ? NULL : memory;
}

static long RoundsFor(double round_ns, long least) {
  const double rounds = batch_ns / (round_ns > 1 ? round_ns : 1);
  return rounds < (double)least ? least : (long)rounds;
}

/// A child on CPU 1; this process goes to CPU 0.
static pid_t ForkPinned(void) {
  const pid_t child = fork();
  if (child < 0) Die("fork");
  Pin(child == 0 ? 1 : 0, 2);
  return child;
}

// ---- launch

static void Launch(int n) {
  double times[kMaxBatches];
  for (int b = 0; b < batches; ++b) {
    const double start = NowNs();
    for (int i = 0; i < n; ++i) {
      if (fork() == 0) {
        execl("/bin/true", "true", (char*)NULL);
        _exit(127);
      }
    }
    while (wait(NULL) > 0 || errno == EINTR) continue;
    times[b] = NowNs() - start;
  }
  PrintTimes("fork_exec", 0, n, "-", times, batches, "ms");
}

// ---- memory

static void Stores(char* segment) {
  enum { kWindow = 256 };
  double times[kMaxBatches];
  volatile long* words = (volatile long*)segment;
  for (int b = 0; b < batches; ++b) {
    const long rounds = RoundsFor(kWindow, 1);
    const double start = NowNs();
    for (long i = 0; i < rounds; ++i) {
      for (int w = 0; w < kWindow; ++w) words[w] = i;
    }
    times[b] = (NowNs() - start) / (double)rounds / kWindow;
  }
  PrintTimes("bare_store_rate", 8, 2, "-", times, batches, "Mops");
  for (int b = 0; b < batches; ++b) {
    const long rounds = RoundsFor(4, 1);
    const double start = NowNs();
    for (long i = 0; i < rounds; ++i) {
      words[0] = i;
      atomic_thread_fence(memory_order_seq_cst);
    }
    times[b] = (NowNs() - start) / (double)rounds;
  }
  PrintTimes("bare_store_fence", 8, 2, "-", times, batches, "ns");
}

static void Relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void CacheLine(void) {
  double times[kMaxBatches];
  const long rounds = RoundsFor(200, 100);
  const long total = rounds * batches;
  atomic_store(&control->ping, 0);
  atomic_store(&control->pong, 0);
  const pid_t child = ForkPinned();
  for (long i = 1; child == 0 && i <= total; ++i) {
    while (atomic_load_explicit(&control->ping, memory_order_acquire) < i) Relax();
    atomic_store_explicit(&control->pong, i, memory_order_release);
  }
  if (child == 0) _exit(0);
  long turn = 0;
  for (int b = 0; b < batches; ++b) {
    const double start = NowNs();
    for (long k = 0; k < rounds; ++k) {
      atomic_store_explicit(&control->ping, ++turn, memory_order_release);
      while (atomic_load_explicit(&control->pong, memory_order_acquire) < turn) Relax();
    }
    times[b] = (NowNs() - start) / (2.0 * (double)rounds);
  }
  waitpid(child, NULL, 0);
  PrintTimes("bare_signal", 8, 2, "-", times, batches, "ns");
}

static void LockedAdd(int is_contended) {
  double times[kMaxBatches];
  const long rounds = RoundsFor(is_contended ? 30 : 4, 1);
  atomic_store(&control->phase, 0);
  const pid_t child = is_contended ? ForkPinned() : 1;
  if (child == 0) {
    atomic_store(&control->phase, 1);
    while (atomic_load_explicit(&control->phase, memory_order_relaxed) != 2) {
      for (int i = 0; i < 100; ++i) atomic_fetch_add(&control->ping, 1);
    }
    _exit(0);
  }
  while (is_contended && atomic_load(&control->phase) == 0) Relax();
  for (int b = 0; b < batches; ++b) {
    const double start = NowNs();
    for (long i = 0; i < rounds; ++i) atomic_fetch_add(&control->ping, 1);
    times[b] = (NowNs() - start) / (double)rounds;
  }
  atomic_store(&control->phase, 2);
  if (is_contended) waitpid(child, NULL, 0);
  PrintTimes(is_contended ? "bare_xadd_contended" : "bare_xadd", 8, 2, "-", times, batches, "ns");
}

static void Memcpy(char* segment) {
  static const size_t kSizes[] = {4096, 65536, 1 << 20, 8 << 20, 64 << 20};
  for (size_t s = 0; s < sizeof kSizes / sizeof *kSizes; ++s) {
    const size_t bytes = kSizes[s];
    double times[kMaxBatches];
    char* from = aligned_alloc(4096, bytes);
    if (from == NULL) Die("allocate");
    memset(from, 7, bytes);
    memset(segment, 1, bytes);
    const long rounds = RoundsFor((double)bytes / 20, 2);
    for (int b = 0; b < batches; ++b) {
      const double start = NowNs();
      for (long i = 0; i < rounds; ++i) {
        memcpy(segment, from, bytes);
        Clobber();
      }
      times[b] = (NowNs() - start) / (double)rounds;
    }
    free(from);
    PrintTimes("bare_memcpy", bytes, 2, "0", times, batches, "GBps");
  }
}

static void FirstTouch(unsigned flags, const char* variant) {
  enum { kRepeats = 5 };
  const size_t bytes = 256 << 20;
  double times[kRepeats];
  for (int r = 0; r < kRepeats; ++r) {
    char* memory = MapShared(bytes, flags);
    if (memory == NULL) return;  // no huge pages set aside
    const double start = NowNs();
    for (size_t i = 0; i < bytes; i += 4096) ((volatile char*)memory)[i] = 1;
    times[r] = NowNs() - start;
    munmap(memory, bytes);
  }
  PrintTimes("first_touch", bytes, 1, variant, times, kRepeats, "ms");
}

static void Memory(void) {
  const size_t bytes = 65 << 20;
  char* segment = MapShared(bytes, 0);
  if (segment == NULL) Die("map");
  memset(segment, 0, bytes);
  Pin(0, 2);
  Stores(segment);
  CacheLine();
  LockedAdd(0);
  LockedAdd(1);
  Memcpy(segment);
  FirstTouch(0, "4KiB_pages");
  munmap(segment, bytes);
}

// ---- barriers

typedef enum { kSpin, kYield, kFutex } Wait;

static long Futex(_Atomic int* word, int operation, int value) {
  return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static void AwaitBarrier(Wait wait, int n) {
  const int epoch = atomic_load_explicit(&control->epoch, memory_order_relaxed);
  if (atomic_fetch_add(&control->count, 1) == n - 1) {
    atomic_store_explicit(&control->count, 0, memory_order_relaxed);
    atomic_store(&control->epoch, epoch + 1);
    if (wait == kFutex) Futex(&control->epoch, FUTEX_WAKE, INT_MAX);
    return;
  }
  while (atomic_load_explicit(&control->epoch, memory_order_acquire) == epoch) {
    if (wait == kSpin) Relax();
    if (wait == kYield) sched_yield();
    if (wait == kFutex) Futex(&control->epoch, FUTEX_WAIT, epoch);
  }
}

static void BarrierOf(const char* metric, Wait wait, int n, double expected_ns) {
  double times[kMaxBatches];
  const long rounds = RoundsFor(expected_ns, 10);
  atomic_store(&control->count, 0);
  atomic_store(&control->epoch, 0);
  for (int k = 1; k < n; ++k) {
    const pid_t child = fork();
    if (child < 0) Die("fork");
    if (child > 0) continue;
    Pin(k, n);
    for (long i = 0; i < rounds * batches; ++i) AwaitBarrier(wait, n);
    _exit(0);
  }
  Pin(0, n);
  for (int b = 0; b < batches; ++b) {
    const double start = NowNs();
    for (long i = 0; i < rounds; ++i) AwaitBarrier(wait, n);
    times[b] = (NowNs() - start) / (double)rounds;
  }
  for (int k = 1; k < n; ++k) wait4(-1, NULL, 0, NULL);
  PrintTimes(metric, 0, n, "-", times, batches, "us");
}

static void Barriers(void) {
  static const int kCounts[] = {2, 4, 8, 16, 64};
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  for (size_t i = 0; i < sizeof kCounts / sizeof *kCounts; ++i) {
    const int n = kCounts[i];
    if (n <= CpuCount()) BarrierOf("bare_barrier_spin", kSpin, n, 300);
    sched_setaffinity(0, sizeof all, &all);
    BarrierOf("bare_barrier_yield", kYield, n, 3000.0 * n);
    sched_setaffinity(0, sizeof all, &all);
    BarrierOf("bare_barrier_futex", kFutex, n, 6000.0 * n);
    sched_setaffinity(0, sizeof all, &all);
  }
}

// ---- network

static int Listen(struct sockaddr_in* address) {
  socklen_t length = sizeof *address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  memset(address, 0, sizeof *address);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener < 0 || bind(listener, (struct sockaddr*)address, sizeof *address) != 0 ||
      listen(listener, 4096) != 0 ||
      getsockname(listener, (struct sockaddr*)address, &length) != 0) {
    Die("listen");
  }
  return listener;
}

static int Connect(const struct sockaddr_in* address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (const struct sockaddr*)address, sizeof *address) != 0) Die("connect");
  return fd;
}

static void NoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void Transfer(int fd, char* data, size_t bytes, int is_write) {
  while (bytes > 0) {
    const ssize_t moved = is_write ? write(fd, data, bytes) : read(fd, data, bytes);
    if (moved <= 0) Die("transfer");
    data += moved;
    bytes -= (size_t)moved;
  }
}

static const size_t kStreams[] = {64, 4096, 65536, 1 << 20};
enum { kStreamCount = sizeof kStreams / sizeof *kStreams, kStreamBytes = 16 << 20 };

static long StreamMessages(size_t bytes) {
  const long messages = (long)(kStreamBytes / bytes);
  return messages > 20000 ? 20000 : messages;
}

/// The other end: answers words, then takes streams and says when one is over, then takes
/// connections.
static void ServeNetwork(int listener, long rounds, int connections) {
  char word[8];
  char* buffer = malloc(kStreamBytes);
  const int fd = accept(listener, NULL, NULL);
  NoDelay(fd);
  for (long i = 0; i < rounds * batches; ++i) {
    Transfer(fd, word, sizeof word, 0);
    Transfer(fd, word, sizeof word, 1);
  }
  for (int s = 0; s < kStreamCount; ++s) {
    for (int b = 0; b < batches; ++b) {
      for (long i = StreamMessages(kStreams[s]); i > 0; --i) Transfer(fd, buffer, kStreams[s], 0);
      Transfer(fd, word, sizeof word, 1);
    }
  }
  for (int i = 0; i < connections * batches; ++i) {
    const int caller = accept(listener, NULL, NULL);
    Transfer(caller, word, sizeof word, 0);
    Transfer(caller, word, sizeof word, 1);
    close(caller);
  }
  _exit(0);
}

static void Network(void) {
  enum { kConnections = 300 };
  double times[kMaxBatches];
  char word[8] = {0};
  char* buffer = calloc(1, kStreamBytes);
  struct sockaddr_in address;
  const int listener = Listen(&address);
  const long rounds = RoundsFor(30000, 100);
  if (ForkPinned() == 0) ServeNetwork(listener, rounds, kConnections);
  const int fd = Connect(&address);
  NoDelay(fd);
  for (int b = 0; b < batches; ++b) {
    const double start = NowNs();
    for (long i = 0; i < rounds; ++i) {
      Transfer(fd, word, sizeof word, 1);
      Transfer(fd, word, sizeof word, 0);
    }
    times[b] = (NowNs() - start) / (2.0 * (double)rounds);
  }
  PrintTimes("tcp_one_way", 8, 2, "-", times, batches, "us");
  for (int s = 0; s < kStreamCount; ++s) {
    const long messages = StreamMessages(kStreams[s]);
    for (int b = 0; b < batches; ++b) {
      const double start = NowNs();
      for (long i = 0; i < messages; ++i) Transfer(fd, buffer, kStreams[s], 1);
      Transfer(fd, word, sizeof word, 0);
      times[b] = (NowNs() - start) / (double)messages;
    }
    PrintTimes("tcp_message", kStreams[s], 2, "-", times, batches, "us");
  }
  for (int b = 0; b < batches; ++b) {
    const double start = NowNs();
    for (int i = 0; i < kConnections; ++i) {
      const int caller = Connect(&address);
      Transfer(caller, word, sizeof word, 1);
      Transfer(caller, word, sizeof word, 0);
      close(caller);
    }
    times[b] = (NowNs() - start) / kConnections;
  }
  PrintTimes("tcp_connection", 8, 2, "-", times, batches, "us");
  wait(NULL);
}

int main(int argc, char** argv) {
  const char* part = argc > 1 ? argv[1] : "";
  batches = (int)Option(argc, argv, "--batches", 7);
  batch_ns = Option(argc, argv, "--batch-ms", 40) * 1e6;
  control = MapShared(sizeof *control, 0);
  if (control == NULL) Die("map");
  if (strcmp(part, "launch") == 0) {
    Launch(2);
    Launch(16);
    Launch(64);
  } else if (strcmp(part, "memory") == 0) {
    Memory();
  } else if (strcmp(part, "barriers") == 0) {
    Barriers();
  } else if (strcmp(part, "network") == 0) {
    Network();
  } else {
    fprintf(stderr, "usage: machine launch|memory|barriers|network [--batches n] [--batch-ms t]\n");
    return 2;
  }
  return 0;
}
