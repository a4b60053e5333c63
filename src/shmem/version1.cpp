// What programs call that were built with headers of version 1 of the ABI. Their inline operations
// look at a context of 32 bytes, find no PE in it, and come here; a version 1 fence would take
// what went to another node for done. So all of it is refused.
#include "mori/shmem/host_ops.hpp"
#include "shmem/last_error.hpp"
#include "shmem/linked_states.hpp"

namespace mori::shmem {
namespace {

int Refuse(const char* call) {
  return Reported(call, [] {
    return Error(ErrorCode::kMismatch,
                 "this program was built with headers of ABI version 1, and this library has ABI "
                 "version {}: build it again with this library's headers, {}",
                 HostContext::kAbi, MORI_SHMEM_VERSION);
  });
}

}  // namespace

namespace detail {

/// As version 1 laid it out: heap base, heap bytes, bases of the peers, number of PEs, own PE.
struct ContextOfVersion1 {
  std::uintptr_t heap_base;
  std::uint64_t heap_bytes;
  std::byte* const* peer_bases;
  std::uint32_t n_pes;
  std::uint32_t my_pe;
};
static_assert(sizeof(ContextOfVersion1) == 32, "programs compiled earlier read this layout");
static constinit const ContextOfVersion1 kNobodyOfVersion1{};

// By the names, and with the parameters, that version 1 had.
extern MORI_SHMEM_API __thread const ContextOfVersion1* host_context
    __attribute__((tls_model("initial-exec")));
MORI_SHMEM_API int SlowPut(void* dest, const void* source, std::size_t bytes, int pe,
                           const char* what);
MORI_SHMEM_API int SlowGet(void* dest, const void* source, std::size_t bytes, int pe,
                           const char* what);
MORI_SHMEM_API int SlowAtomic(AtomicOp op, const void* address, int bytes, std::uint64_t value,
                              std::uint64_t expected, int pe, const char* what,
                              std::uint64_t* found);
MORI_SHMEM_API int SlowPutSignal(void* dest, const void* source, std::size_t bytes,
                                 std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op,
                                 int pe);
MORI_SHMEM_API std::uint64_t SlowRead(const void* ivar, int bytes, const char* what);
MORI_SHMEM_API bool SlowTest(const void* ivar, int bytes, bool is_signed, Cmp cmp,
                             std::uint64_t value);
MORI_SHMEM_API int SlowWaitFor(const void* ivar, int bytes, bool is_signed, Cmp cmp,
                               std::uint64_t value, std::uint64_t* seen);
MORI_SHMEM_API int SlowWait(const void* ivar, int bytes, bool is_signed, Cmp cmp,
                            std::uint64_t value);
MORI_SHMEM_API int SlowOrder(const char* what);

constinit __thread const ContextOfVersion1* host_context = &kNobodyOfVersion1;

int SlowPut(void*, const void*, std::size_t, int, const char* what) { return Refuse(what); }
int SlowGet(void*, const void*, std::size_t, int, const char* what) { return Refuse(what); }
int SlowAtomic(AtomicOp, const void*, int, std::uint64_t, std::uint64_t, int, const char* what,
               std::uint64_t* found) {
  *found = 0;
  return Refuse(what);
}
int SlowPutSignal(void*, const void*, std::size_t, std::uint64_t*, std::uint64_t, SignalOp, int) {
  return Refuse("shmem_putmem_signal");
}
std::uint64_t SlowRead(const void*, int, const char* what) {
  Refuse(what);
  return 0;
}
bool SlowTest(const void*, int, bool, Cmp, std::uint64_t) {
  Refuse("shmem_test");
  return false;
}
int SlowWaitFor(const void*, int, bool, Cmp, std::uint64_t, std::uint64_t*) {
  return Refuse("shmem_wait_until");
}
int SlowWait(const void*, int, bool, Cmp, std::uint64_t) { return Refuse("shmem_wait_until"); }
int SlowOrder(const char* what) { return Refuse(what); }

// Of kernels that nvcc linked: a unit had one function, which took a layout of its own.
extern "C" MORI_SHMEM_API void MoriShmemAddLinkedState(const void* unit);
extern "C" MORI_SHMEM_API void MoriShmemRemoveLinkedState(const void* unit);
void MoriShmemAddLinkedState(const void*) { LinkedStates::Instance().AddOfVersion1(); }
void MoriShmemRemoveLinkedState(const void*) {}

}  // namespace detail
}  // namespace mori::shmem
