// A program that was built with headers of version 1 of the ABI: what it declared of the library,
// and its inline operations, are kept here as they were. It is refused with a sentence, in every
// call, and nothing is written.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "mori/shmem/shmem_api.hpp"

namespace mori::shmem {

struct HostContext {
  std::uintptr_t heap_base;
  std::uint64_t heap_bytes;
  std::byte* const* peer_bases;
  std::uint32_t n_pes;
  std::uint32_t my_pe;
};
static_assert(sizeof(HostContext) == 32);

namespace detail {

extern __thread const HostContext* host_context __attribute__((tls_model("initial-exec")));
int SlowPut(void* dest, const void* source, std::size_t bytes, int pe, const char* what);
int SlowGet(void* dest, const void* source, std::size_t bytes, int pe, const char* what);
int SlowAtomic(AtomicOp op, const void* address, int bytes, std::uint64_t value,
               std::uint64_t expected, int pe, const char* what, std::uint64_t* found);
int SlowPutSignal(void* dest, const void* source, std::size_t bytes, std::uint64_t* sig_addr,
                  std::uint64_t signal, SignalOp op, int pe);
std::uint64_t SlowRead(const void* ivar, int bytes, const char* what);
bool SlowTest(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value);
int SlowWaitFor(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value,
                std::uint64_t* seen);
int SlowWait(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value);
int SlowOrder(const char* what);

inline std::byte* FastPeerPointer(const void* address, std::size_t bytes, int pe) {
  const HostContext& context = *host_context;
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) - context.heap_base;
  const std::uint64_t heap_bytes = __atomic_load_n(&context.heap_bytes, __ATOMIC_RELAXED);
  if (static_cast<std::uint32_t>(pe) < context.n_pes && bytes <= heap_bytes &&
      offset <= heap_bytes - bytes) {
    if (std::byte* base = context.peer_bases[pe]; base != nullptr) return base + offset;
  }
  return nullptr;
}
inline const std::uint64_t* FastOwnWord(const std::uint64_t* ivar) {
  const HostContext& context = *host_context;
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(ivar) - context.heap_base;
  return offset < __atomic_load_n(&context.heap_bytes, __ATOMIC_RELAXED) ? ivar : nullptr;
}

}  // namespace detail

inline int ShmemPutMem(void* dest, const void* source, std::size_t bytes, int pe) {
  std::byte* to = detail::FastPeerPointer(dest, bytes, pe);
  if (to == nullptr) return detail::SlowPut(dest, source, bytes, pe, "shmem_putmem");
  std::memcpy(to, source, bytes);
  return 0;
}
inline int ShmemGetMem(void* dest, const void* source, std::size_t bytes, int pe) {
  const std::byte* from = detail::FastPeerPointer(source, bytes, pe);
  if (from == nullptr) return detail::SlowGet(dest, source, bytes, pe, "shmem_getmem");
  std::memcpy(dest, from, bytes);
  return 0;
}
inline int ShmemQuiet() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return detail::host_context->heap_bytes != 0 ? 0 : detail::SlowOrder("shmem_quiet");
}
inline std::uint64_t ShmemSignalFetch(const std::uint64_t* sig_addr) {
  const std::uint64_t* word = detail::FastOwnWord(sig_addr);
  return word != nullptr ? __atomic_load_n(word, __ATOMIC_ACQUIRE)
                         : detail::SlowRead(sig_addr, sizeof *sig_addr, "shmem_signal_fetch");
}

}  // namespace mori::shmem

using namespace mori::shmem;

namespace {

int failures = 0;

void Expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("%s; the last error is: %s\n", what, ShmemLastError());
}
/// The last call was refused, and the sentence says what to do.
void ExpectRefused(const char* call) {
  const char* sentence = ShmemLastError();
  Expect(ShmemLastErrorCode() == static_cast<int>(ErrorCode::kMismatch), "the code is kMismatch");
  Expect(std::strstr(sentence, call) == sentence, call);
  Expect(std::strstr(sentence, "ABI version 1") != nullptr, "it names the version");
  Expect(std::strstr(sentence, "build it again") != nullptr, "it says what to do");
}

}  // namespace

int main() {
  Expect(ShmemInit() == 0, "init, which no header has inline");
  auto* word = static_cast<std::uint64_t*>(ShmemMalloc(64));
  Expect(word != nullptr, "an allocation, too");
  if (failures > 0) return 1;
  *word = 7;
  std::uint64_t value = 1;
  Expect(ShmemPutMem(word, &value, sizeof value, 0) != 0, "put");
  ExpectRefused("shmem_putmem");
  Expect(ShmemGetMem(&value, word, sizeof value, 0) != 0, "get");
  ExpectRefused("shmem_getmem");
  Expect(ShmemQuiet() != 0, "quiet");
  ExpectRefused("shmem_quiet");
  Expect(ShmemSignalFetch(word) == 0, "signal fetch");
  ExpectRefused("shmem_signal_fetch");
  using detail::AtomicOp;
  std::uint64_t found = 1;
  Expect(detail::SlowAtomic(AtomicOp::kFetchAdd, word, 8, 1, 0, 0, "shmem_atomic_add", &found) != 0,
         "add");
  ExpectRefused("shmem_atomic_add");
  Expect(found == 0, "what an atomic found");
  Expect(detail::SlowPutSignal(word, &value, 8, word, 1, SignalOp::kSet, 0) != 0, "put signal");
  ExpectRefused("shmem_putmem_signal");
  Expect(!detail::SlowTest(word, 8, false, Cmp::kEq, 7), "test");
  ExpectRefused("shmem_test");
  Expect(detail::SlowWaitFor(word, 8, false, Cmp::kEq, 7, &found) != 0, "wait");
  ExpectRefused("shmem_wait_until");
  Expect(detail::SlowWait(word, 8, false, Cmp::kEq, 7) != 0, "wait without a value");
  ExpectRefused("shmem_wait_until");
  Expect(*word == 7, "nothing was written");
  Expect(ShmemFinalize() == 0, "finalize");
  return failures == 0 ? 0 : 1;
}
