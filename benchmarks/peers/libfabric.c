// libfabric without a library around it, over hosts: what network.cpp measures. Two processes time
// operations and messages, any number a barrier of messages.
//
//   libfabric ... [--provider 'tcp;ofi_rxm'] [--spins 1]      see meeting.h for the rest; --own A:
//   this host's address
//
// Rank 1 sleeps while rank 0 works, and a thread of libfabric serves it; with --spins it serves
// itself in a loop.
#include "pair.h"

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { kKey = 17, kNotes = 64, kWindow = 256 };

static struct fid_cq* cq;
static struct fid_ep* ep;
static fi_addr_t peers[kMaxSize];
static size_t under_way;
static int blocks;

/// A message of a barrier or a ping-pong: which round it is of.
static uint64_t notes[kNotes];
static long came[16];  // of each round

static void RequireZero(long result, const char* what) {
  if (result == 0) return;
  char text[200];
  snprintf(text, sizeof text, "%s: %s", what, fi_strerror((int)-result));
  Require(0, text);
}

static void Open(const char* provider, const char* address, int spins) {
  struct fi_info *hints = fi_allocinfo(), *info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_mr* mr;
  hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->data_progress = spins ? FI_PROGRESS_MANUAL : FI_PROGRESS_AUTO;
  hints->fabric_attr->prov_name = strdup(provider);
  RequireZero(fi_getinfo(FI_VERSION(1, 14), address, NULL, FI_SOURCE, hints, &info), "fi_getinfo");
  RequireZero(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
  RequireZero(fi_domain(fabric, info, &domain, NULL), "fi_domain");
  struct fi_av_attr av_attr = {0};
  RequireZero(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT,
                               .wait_obj = blocks ? FI_WAIT_FD : FI_WAIT_NONE};
  RequireZero(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
  RequireZero(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
  RequireZero(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
  RequireZero(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  RequireZero(fi_enable(ep), "fi_enable");
  RequireZero(fi_mr_reg(domain, memory, kMemoryBytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0,
                        &mr, NULL),
              "fi_mr_reg");
  static char card[kCardBytes], cards[kMaxSize][kCardBytes];
  size_t bytes = sizeof card;
  RequireZero(fi_getname(&ep->fid, card, &bytes), "fi_getname");
  ExchangeCards(card, cards);
  for (int i = 0; i < n_processes; ++i) {
    Require(fi_av_insert(av, cards[i], 1, &peers[i], 0, NULL) == 1, "fi_av_insert");
  }
}

static void Receive(uint64_t* note) {
  RequireZero(fi_recv(ep, note, sizeof *note, NULL, FI_ADDR_UNSPEC, note), "fi_recv");
}

static void Look(int waits) {
  struct fi_cq_entry entries[16];
  const ssize_t count =
      waits ? fi_cq_sread(cq, entries, 16, NULL, 1000) : fi_cq_read(cq, entries, 16);
  Require(count >= 0 || count == -FI_EAGAIN, "an operation failed");
  for (ssize_t i = 0; i < count; ++i) {
    uint64_t* const note = entries[i].op_context;
    if (note == NULL) {
      --under_way;
      continue;
    }
    Require(*note < 16, "a message of another round");
    ++came[*note];
    Receive(note);
  }
}
static void Progress(void) { Look(0); }
static void AwaitBut(size_t left) {
  while (under_way > left) Look(blocks);
}
static void Await(void) { AwaitBut(0); }

#define POST(call)                                   \
  do {                                               \
    ssize_t result;                                  \
    while ((result = (call)) == -FI_EAGAIN) Look(0); \
    RequireZero(result, #call);                      \
  } while (0)

static void WriteTo(int rank, size_t offset, const void* from, size_t bytes) {
  struct iovec source = {(void*)from, bytes};
  struct fi_rma_iov target = {offset, bytes, kKey};
  struct fi_msg_rma message = {.msg_iov = &source,
                               .iov_count = 1,
                               .addr = peers[rank],
                               .rma_iov = &target,
                               .rma_iov_count = 1};
  POST(fi_writemsg(ep, &message, FI_DELIVERY_COMPLETE));
  ++under_way;
  AwaitBut(kWindow);
}
static void Write(size_t offset, const void* from, size_t bytes) {
  WriteTo(1, offset, from, bytes);
}
static void Read(void* to, size_t offset, size_t bytes) {
  POST(fi_read(ep, to, bytes, NULL, peers[1], offset, kKey, NULL));
  ++under_way;
}
static void FetchAdd(size_t offset) {
  static uint64_t one = 1, found;
  POST(fi_fetch_atomic(ep, &one, 1, NULL, &found, NULL, peers[1], offset, kKey, FI_UINT64, FI_SUM,
                       NULL));
  ++under_way;
}

static void Tell(int rank, uint64_t round) {
  POST(fi_inject(ep, &round, sizeof round, peers[rank]));
}

static void WriteTurn(long turn) {
  static long word;
  Await();  // the word is free
  word = turn;
  WriteTo(1 - me, kFlag, &word, 8);
}
static void SendTurn(long turn) {
  (void)turn;
  Tell(1 - me, 15);
}
static void AwaitTurn(long turn) {
  while (came[15] < turn) Look(blocks);
}

/// Each tells the one that is 1, 2, 4, ... further on, and hears from as many.
static void Barrier(void) {
  static long epoch = 0;
  ++epoch;
  uint64_t round = 0;
  for (int distance = 1; distance < n_processes; distance *= 2, ++round) {
    Tell((me + distance) % n_processes, round);
    while (came[round] < epoch) Look(blocks);
  }
}

static void MeasureBarrier(void) {
  double times[kMaxBatches];
  double start = NowNs();
  for (int i = 0; i < 20; ++i) Barrier();
  const double round_ns = (NowNs() - start) / 20;
  const long rounds = Together(batch_ns / round_ns > 3 ? (long)(batch_ns / round_ns) : 3);
  for (int b = 0; b < batches; ++b) {
    Barrier();
    start = NowNs();
    for (long i = 0; i < rounds; ++i) Barrier();
    times[b] = (NowNs() - start) / (double)rounds;
  }
  if (me == 0) PrintTimes("net_barrier", 0, n_processes, variant, times, batches, "us");
}

int main(int argc, char** argv) {
  batches = (int)Option(argc, argv, "--batches", 7);
  batch_ns = Option(argc, argv, "--batch-ms", 100) * 1e6;
  const int spins = (int)Option(argc, argv, "--spins", 0);
  if (spins) variant = "spinning";
  setenv("IPATH_NO_BACKTRACE", "1", 0);
  Meet(argc, argv);
  blocks = n_processes > CpuCount();
  memory = calloc(1, kMemoryBytes);
  Open(Word(argc, argv, "--provider", "tcp;ofi_rxm"), Word(argc, argv, "--own", "127.0.0.1"),
       spins);
  for (int i = 0; i < kNotes; ++i) Receive(&notes[i]);
  Pin(me, n_processes);
  Together(0);
  if (n_processes == 2) {
    MeasureOperations(spins);
    MeasureOneWay("net_one_way", WriteTurn, Poll);
    Await();
    MeasureOneWay("net_message_one_way", SendTurn, AwaitTurn);
  }
  MeasureBarrier();
  Together(0);
  return 0;
}
