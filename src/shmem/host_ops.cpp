// Out-of-line parts of the inline operations: what is not the common case.
#include "mori/shmem/host_ops.hpp"

#include "node/waiter.hpp"
#include "shmem/last_error.hpp"
#include "shmem/registry.hpp"

namespace mori::shmem {
namespace {

Status WhyNoPointer(const World& world, const void* address, std::size_t bytes, int pe) {
  if (pe < 0 || pe >= world.n_pes()) {
    return Error(ErrorCode::kInvalidArgument, "PE {} is out of range: there are PEs 0 to {}", pe,
                 world.n_pes() - 1);
  }
  const auto offset = world.heap().OffsetOf(address);
  if (!offset) {
    return Error(ErrorCode::kInvalidArgument, "{} is no symmetric address: the heap is [{}, +{})",
                 address, static_cast<const void*>(world.heap().base()),
                 FormatByteSize(world.heap().bytes()));
  }
  if (bytes <= world.heap().bytes() - *offset) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} bytes at {} are in no live block of the heap, and this heap has memory for "
                 "blocks only (MORI_SHMEM_MODE={})",
                 bytes, address, HeapModeName(world.heap().mode()));
  }
  return Error(ErrorCode::kInvalidArgument, "{} bytes at {} leave the heap, [{}, +{})", bytes,
               address, static_cast<const void*>(world.heap().base()),
               FormatByteSize(world.heap().bytes()));
}

/// Where the peer's copy is, whatever kind of memory that is; null with the error reported.
std::byte* Find(const void* address, std::size_t bytes, int pe, const char* what, World** world) {
  *world = Registry::Instance().Current();  // binds this thread if it can be
  if (*world == nullptr) {
    Report(what, Registry::Instance().NoWorld());
    return nullptr;
  }
  if (pe >= 0 && pe < (*world)->n_pes()) {
    if (std::byte* pointer = (*world)->heap().Translate(address, bytes, pe)) return pointer;
  }
  Report(what, WhyNoPointer(**world, address, bytes, pe));
  return nullptr;
}

/// Waits until the word compares as wanted, watching the peers of `world`, if any.
template <typename T>
Status WaitFor(const World& world, const T* word, Cmp cmp, T value) {
  Waiter waiter(world.may_spin());
  while (!ShmemTest(word, cmp, value)) {
    if (waiter.phase() != Waiter::Phase::kSpin) {
      // A signal that the lost PE had sent before is in memory by now: look once more before giving
      // up.
      if (Status health = world.Health(); !health.ok())
        return ShmemTest(word, cmp, value) ? Status() : health;
    }
    waiter.Pause();
  }
  return Status();
}

template <typename T>
Status WaitForBits(const World& world, const void* word, Cmp cmp, std::uint64_t bits) {
  if (!world.runtime().IsHostMemory()) {
    return Error(ErrorCode::kUnsupported, "the host cannot wait on memory of a device");
  }
  return WaitFor(world, static_cast<const T*>(word), cmp, static_cast<T>(bits));
}

}  // namespace

namespace detail {

std::byte* SlowPeerPointer(const void* address, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  std::byte* pointer = Find(address, bytes, pe, what, &world);
  if (pointer == nullptr || world->runtime().IsHostMemory()) return pointer;
  Report(what, Error(ErrorCode::kUnsupported,
                     "the heap is memory of a device ({} backend), where the host can put and get "
                     "only",
                     BackendName(world->runtime().backend())));
  return nullptr;
}

std::byte* MappedPointer(const void* address, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  return Find(address, bytes, pe, what, &world);
}

int SlowPut(void* dest, const void* source, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  std::byte* to = Find(dest, bytes, pe, what, &world);
  return to == nullptr ? LastCode() : Report(what, world->runtime().Copy(to, source, bytes));
}

int SlowGet(void* dest, const void* source, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  const std::byte* from = Find(source, bytes, pe, what, &world);
  return from == nullptr ? LastCode() : Report(what, world->runtime().Copy(dest, from, bytes));
}

int LastCode() { return static_cast<int>(LastErrorCode()); }

int SlowWait(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value) {
  const World* world = Registry::Instance().Current();
  if (world == nullptr) {
    return Report("wait_until", Registry::Instance().NoWorld());
  }
  Status status;
  if (bytes == 4) {
    status = is_signed ? WaitForBits<std::int32_t>(*world, ivar, cmp, value)
                       : WaitForBits<std::uint32_t>(*world, ivar, cmp, value);
  } else {
    status = is_signed ? WaitForBits<std::int64_t>(*world, ivar, cmp, value)
                       : WaitForBits<std::uint64_t>(*world, ivar, cmp, value);
  }
  return Report("wait_until", status);
}

int ReportBadWord(const void* address, const char* what) {
  return Report(what, Error(ErrorCode::kInvalidArgument,
                            "{} is not aligned to the size of the word", address));
}

}  // namespace detail
}  // namespace mori::shmem
