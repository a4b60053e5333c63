// The host operations over one buffer, without the library: one PE whose heap is this array, shared
// by threads.
#pragma once

#include <cstdlib>
#include <cstring>

#include "mori/shmem/host_ops.hpp"

alignas(4096) inline std::byte heap[4096];
inline std::byte* heap_base = heap;
inline const mori::shmem::HostContext context = [] {
  mori::shmem::HostContext one;
  one.flags = mori::shmem::HostContext::kFencesSuffice;
  one.n_pes = 1;
  one.heap_base = reinterpret_cast<std::uintptr_t>(heap);
  one.heap_bytes = sizeof heap;
  one.near_bases = &heap_base;
  one.word_bases = &heap_base;
  return one;
}();

namespace mori::shmem::detail {
__thread const HostContext* host_context_v2 = &context;
int PutOutOfLine(void*, const void*, std::size_t, int, const char*) { std::abort(); }
int GetOutOfLine(void*, const void*, std::size_t, int, const char*) { std::abort(); }
void CopyElements(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
int AtomicOutOfLine(AtomicOp, const void*, int, std::uint64_t, std::uint64_t, int, const char*,
                    std::uint64_t*) {
  std::abort();
}
int PutSignalOutOfLine(void*, const void*, std::size_t, std::uint64_t*, std::uint64_t, SignalOp,
                       int) {
  std::abort();
}
std::uint64_t ReadOutOfLine(const void*, int, const char*) { std::abort(); }
bool TestOutOfLine(const void*, int, bool, Cmp, std::uint64_t) { std::abort(); }
int PutNbiOutOfLine(void*, const void*, std::size_t, int) { std::abort(); }
int GetNbiOutOfLine(void*, const void*, std::size_t, int) { std::abort(); }
int FenceOutOfLine() { std::abort(); }
int QuietOutOfLine() { std::abort(); }
int QuietOutOfLine(int) { std::abort(); }
int WaitOutOfLine(const void* ivar, int, bool, Cmp cmp, std::uint64_t value, std::uint64_t* seen) {
  const auto* word = static_cast<const std::uint64_t*>(ivar);
  do {
    CpuRelax();
    *seen = ShmemSignalFetch(word);
  } while (!Holds(*seen, cmp, value));
  return 0;
}
}  // namespace mori::shmem::detail
