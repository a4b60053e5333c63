// The host operations over one buffer, without the library: one PE whose heap is this array, shared
// by threads.
#pragma once

#include <cstdlib>
#include <cstring>

#include "mori/shmem/host_ops.hpp"

alignas(4096) inline std::byte heap[4096];
inline std::byte* heap_base = heap;
inline const mori::shmem::HostContext context{reinterpret_cast<std::uintptr_t>(heap), sizeof heap,
                                              &heap_base, 1, 0};

namespace mori::shmem::detail {
__thread const HostContext* host_context = &context;
int SlowPut(void*, const void*, std::size_t, int, const char*) { std::abort(); }
int SlowGet(void*, const void*, std::size_t, int, const char*) { std::abort(); }
void CopyElements(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
int SlowAtomic(AtomicOp, const void*, int, std::uint64_t, std::uint64_t, int, const char*,
               std::uint64_t*) {
  std::abort();
}
int SlowPutSignal(void*, const void*, std::size_t, std::uint64_t*, std::uint64_t, SignalOp, int) {
  std::abort();
}
std::uint64_t SlowRead(const void*, int, const char*) { std::abort(); }
bool SlowTest(const void*, int, bool, Cmp, std::uint64_t) { std::abort(); }
int SlowOrder(const char*) { std::abort(); }
int SlowWaitFor(const void* ivar, int, bool, Cmp cmp, std::uint64_t value, std::uint64_t* seen) {
  const auto* word = static_cast<const std::uint64_t*>(ivar);
  do {
    CpuRelax();
    *seen = ShmemSignalFetch(word);
  } while (!Holds(*seen, cmp, value));
  return 0;
}
}  // namespace mori::shmem::detail
