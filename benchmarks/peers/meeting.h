// How the bare programs of several hosts find each other: over TCP by way of rank 0.
//
//   program --rank R --size N --address A --port P     A: that of rank 0
#ifndef MORI_BENCH_PEERS_MEETING_H_
#define MORI_BENCH_PEERS_MEETING_H_
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { kMaxSize = 64, kCardBytes = 1024 };

static int me;
static int n_processes;
static int sockets[kMaxSize];  // rank 0 has one to each, the others have one to rank 0

/// Ends the process with a BAD line unless `holds`.
static inline void Require(int holds, const char* what) {
  if (holds) return;
  printf("BAD %s: rank %d: %s\n", LIBRARY, me, what);
  fflush(stdout);
  _exit(2);
}

static inline const char* Word(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return otherwise;
}

static inline void SendTo(int rank, const void* data, size_t bytes) {
  Require(send(sockets[rank], data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "send");
}

static inline void ReceiveFrom(int rank, void* data, size_t bytes) {
  Require(recv(sockets[rank], data, bytes, MSG_WAITALL) == (ssize_t)bytes, "another has ended");
}

/// Connects all to rank 0, by the options of the command line.
static inline void Meet(int argc, char** argv) {
  me = (int)Option(argc, argv, "--rank", 0);
  n_processes = (int)Option(argc, argv, "--size", 2);
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)Option(argc, argv, "--port", 7000))};
  Require(n_processes >= 2 && n_processes <= kMaxSize && me >= 0 && me < n_processes, "--rank");
  Require(inet_pton(AF_INET, Word(argc, argv, "--address", "127.0.0.1"), &at.sin_addr) == 1,
          "--address");
  const int yes = 1;
  if (me == 0) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    Require(bind(listener, (struct sockaddr*)&at, sizeof at) == 0, "bind");
    Require(listen(listener, kMaxSize) == 0, "listen");
    for (int i = 1; i < n_processes; ++i) {
      int rank = 0;
      const int caller = accept(listener, NULL, NULL);
      Require(recv(caller, &rank, sizeof rank, MSG_WAITALL) == sizeof rank, "accept");
      Require(rank > 0 && rank < n_processes && sockets[rank] == 0, "a rank came twice");
      setsockopt(caller, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      sockets[rank] = caller;
    }
    close(listener);
    return;
  }
  for (int attempt = 0;; ++attempt) {
    sockets[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sockets[0], (struct sockaddr*)&at, sizeof at) == 0) break;
    Require(attempt < 500, "rank 0 does not listen");
    close(sockets[0]);
    usleep(20000);
  }
  setsockopt(sockets[0], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  SendTo(0, &me, sizeof me);
}

/// Fills `all` with the cards of all ranks.
static inline void ExchangeCards(const void* mine, char (*all)[kCardBytes]) {
  memcpy(all[me], mine, kCardBytes);
  if (me != 0) {
    SendTo(0, mine, kCardBytes);
    for (int i = 0; i < n_processes; ++i) ReceiveFrom(0, all[i], kCardBytes);
    return;
  }
  for (int i = 1; i < n_processes; ++i) ReceiveFrom(i, all[i], kCardBytes);
  for (int i = 1; i < n_processes; ++i) {
    for (int card = 0; card < n_processes; ++card) SendTo(i, all[card], kCardBytes);
  }
}

/// The value that rank 0 passes, once all are here.
static inline long Together(long value) {
  long theirs = 0;
  if (me != 0) {
    SendTo(0, &value, sizeof value);
    ReceiveFrom(0, &theirs, sizeof theirs);
    return theirs;
  }
  for (int i = 1; i < n_processes; ++i) ReceiveFrom(i, &theirs, sizeof theirs);
  for (int i = 1; i < n_processes; ++i) SendTo(i, &value, sizeof value);
  return value;
}

#endif  // MORI_BENCH_PEERS_MEETING_H_
