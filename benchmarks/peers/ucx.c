// UCX without a library around it, over hosts: what libfabric.c measures, to compare the two. Rank
// 1 moves the network in a loop while rank 0 works, since UCX has no thread of its own for that.
//
//   ucx ...      see meeting.h for the options
//
// UCX_TLS and UCX_NET_DEVICES choose the transport, as ever.
#include "pair.h"

#include <ucp/api/ucp.h>

enum { kMessage = 7 };

static ucp_worker_h worker;
static ucp_ep_h endpoint;
static ucp_rkey_h key;
static uint64_t base;  // of the other's memory
static long came;

static void RequireOk(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  char text[200];
  snprintf(text, sizeof text, "%s: %s", what, ucs_status_string(status));
  Require(0, text);
}

static ucs_status_t Came(void* arg, const void* header, size_t header_bytes, void* data,
                         size_t bytes, const ucp_am_recv_param_t* param) {
  (void)arg, (void)header, (void)header_bytes, (void)data, (void)bytes, (void)param;
  ++came;
  return UCS_OK;
}

struct Card {
  uint64_t base, address_bytes, key_bytes;
  char rest[kCardBytes - 24];
};

static void Open(void) {
  ucp_context_h context;
  ucp_config_t* config;
  RequireOk(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
  const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                               .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_AM};
  RequireOk(ucp_init(&params, config, &context), "ucp_init");
  ucp_config_release(config);
  const ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                             .thread_mode = UCS_THREAD_MODE_SINGLE};
  RequireOk(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
  const ucp_am_handler_param_t handler = {
      .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
      .id = kMessage,
      .cb = Came};
  RequireOk(ucp_worker_set_am_recv_handler(worker, &handler), "ucp_worker_set_am_recv_handler");

  ucp_mem_h mapped;
  const ucp_mem_map_params_t map_params = {
      .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
      .address = memory,
      .length = kMemoryBytes};
  RequireOk(ucp_mem_map(context, &map_params, &mapped), "ucp_mem_map");
  void* packed;
  size_t packed_bytes;
  RequireOk(ucp_rkey_pack(context, mapped, &packed, &packed_bytes), "ucp_rkey_pack");
  ucp_address_t* address;
  size_t address_bytes;
  RequireOk(ucp_worker_get_address(worker, &address, &address_bytes), "ucp_worker_get_address");

  static struct Card mine;
  static char all[kMaxSize][kCardBytes];
  Require(address_bytes + packed_bytes <= sizeof mine.rest, "a long address");
  mine.base = (uint64_t)(uintptr_t)memory;
  mine.address_bytes = address_bytes;
  mine.key_bytes = packed_bytes;
  memcpy(mine.rest, address, address_bytes);
  memcpy(mine.rest + address_bytes, packed, packed_bytes);
  ExchangeCards(&mine, all);
  static struct Card theirs;
  memcpy(&theirs, all[1 - me], sizeof theirs);
  const ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                     .address = (const ucp_address_t*)theirs.rest};
  RequireOk(ucp_ep_create(worker, &ep_params, &endpoint), "ucp_ep_create");
  RequireOk(ucp_ep_rkey_unpack(endpoint, theirs.rest + theirs.address_bytes, &key),
            "ucp_ep_rkey_unpack");
  base = theirs.base;
}

static void Progress(void) { ucp_worker_progress(worker); }

/// Waits for one operation, which may be over already.
static void Finish(ucs_status_ptr_t request) {
  if (request == NULL) return;
  Require(!UCS_PTR_IS_ERR(request), "an operation failed");
  while (ucp_request_check_status(request) == UCS_INPROGRESS) Progress();
  RequireOk(ucp_request_check_status(request), "an operation");
  ucp_request_free(request);
}

/// Lets an operation go on: a flush waits for it.
static void Leave(ucs_status_ptr_t request) {
  if (request == NULL) return;
  Require(!UCS_PTR_IS_ERR(request), "an operation failed");
  ucp_request_free(request);
}

static const ucp_request_param_t kPlain = {.op_attr_mask = 0};

static void Write(size_t offset, const void* from, size_t bytes) {
  Leave(ucp_put_nbx(endpoint, from, bytes, base + offset, key, &kPlain));
}
static void Read(void* to, size_t offset, size_t bytes) {
  Leave(ucp_get_nbx(endpoint, to, bytes, base + offset, key, &kPlain));
}
static void FetchAdd(size_t offset) {
  static uint64_t one = 1, found;
  const ucp_request_param_t param = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
      .datatype = ucp_dt_make_contig(8),
      .reply_buffer = &found};
  Leave(ucp_atomic_op_nbx(endpoint, UCP_ATOMIC_OP_ADD, &one, 1, base + offset, key, &param));
}
static void Await(void) { Finish(ucp_ep_flush_nbx(endpoint, &kPlain)); }

static void WriteTurn(long turn) {
  static long word;
  Await();  // the word is free
  word = turn;
  Write(kFlag, &word, 8);
}
static void SendTurn(long turn) {
  static long word;
  word = turn;
  const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_AM_SEND_FLAG_EAGER};
  Finish(ucp_am_send_nbx(endpoint, kMessage, NULL, 0, &word, 8, &param));
}
static void AwaitTurn(long turn) {
  while (came < turn) Progress();
}

int main(int argc, char** argv) {
  batches = (int)Option(argc, argv, "--batches", 7);
  batch_ns = Option(argc, argv, "--batch-ms", 100) * 1e6;
  variant = "spinning";
  Meet(argc, argv);
  Require(n_processes == 2, "needs 2 processes");
  memory = calloc(1, kMemoryBytes);
  Open();
  Pin(me, n_processes);
  MeasureOperations((int)Option(argc, argv, "--spins", 1));
  MeasureOneWay("net_one_way", WriteTurn, Poll);
  Await();
  MeasureOneWay("net_message_one_way", SendTurn, AwaitTurn);
  Together(0);
  return 0;
}
