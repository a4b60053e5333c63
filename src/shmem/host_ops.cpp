// Out-of-line parts of the inline operations: what is not the common case.
#include "mori/shmem/host_ops.hpp"

#include "base/log.hpp"
#include "shmem/last_error.hpp"
#include "shmem/registry.hpp"
#include "shmem/symmetric_address.hpp"
#include "shmem/wait.hpp"

namespace mori::shmem {
namespace {

int LastCode() { return static_cast<int>(LastErrorCode()); }

/// The calling thread's world, which it binds this thread to if it can; null with the error
/// reported.
World* FindWorld(const char* what) {
  Log(LogLevel::kTrace, "{}, out of line", what);
  World* world = Registry::Instance().Current();
  if (world == nullptr) Report(what, Registry::Instance().NoWorld());
  return world;
}

/// Where the peer's copy is, whatever kind of memory that is; null with the error reported.
std::byte* Find(const void* address, std::size_t bytes, int pe, const char* what, World** world) {
  *world = FindWorld(what);
  if (*world == nullptr) return nullptr;
  const auto found = FindMapped(**world, address, bytes, pe);
  if (found.ok()) return *found;
  Report(what, found.status());
  return nullptr;
}

/// What a call on memory ends with: a kernel of this PE may have ended early.
Status After(const World& world, const Status& made) { return made.ok() ? world.Fault() : made; }

/// The word as it is now, read by the device where it is the device's.
template <typename T>
Result<T> Read(const World& world, const T* word) {
  if (world.runtime().IsHostMemory() || !world.heap().OffsetOf(word))
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  T value{};
  MORI_RETURN_IF_ERROR(world.runtime().Copy(&value, word, sizeof value));
  return value;
}

template <typename T>
Status WaitForWord(const World& world, const T* word, Cmp cmp, T value) {
  Status failed;
  const Status waited = WaitUntilHolds(world, [&] {
    const auto seen = Read(world, word);
    if (!seen.ok()) failed = seen.status();
    return !seen.ok() || detail::Holds(*seen, cmp, value);
  });
  return waited.ok() ? failed : waited;
}

/// On a word of the host's, with the order that the inline atomics have.
template <typename T>
T HostAtomic(detail::AtomicOp op, T* word, T value, T expected) {
  using detail::AtomicOp;
  switch (op) {
    case AtomicOp::kFetch: return __atomic_load_n(word, __ATOMIC_ACQUIRE);
    case AtomicOp::kSet: __atomic_store_n(word, value, __ATOMIC_RELEASE); return T{};
    case AtomicOp::kFetchAdd: return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
    case AtomicOp::kFetchAnd: return __atomic_fetch_and(word, value, __ATOMIC_ACQ_REL);
    case AtomicOp::kFetchOr: return __atomic_fetch_or(word, value, __ATOMIC_ACQ_REL);
    case AtomicOp::kFetchXor: return __atomic_fetch_xor(word, value, __ATOMIC_ACQ_REL);
    case AtomicOp::kSwap: return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
    case AtomicOp::kCompareSwap: break;
  }
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}

Result<std::uint64_t> DoAtomic(const World& world, detail::AtomicOp op, std::byte* word, int bytes,
                               std::uint64_t value, std::uint64_t expected) {
  if (!world.runtime().IsHostMemory()) {
    MORI_ASSIGN_OR_RETURN(Streams * streams, world.streams());
    return streams->Atomic(op, bytes, word, value, expected);
  }
  if (bytes == 8) return HostAtomic(op, reinterpret_cast<std::uint64_t*>(word), value, expected);
  return std::uint64_t{HostAtomic(op, reinterpret_cast<std::uint32_t*>(word),
                                  static_cast<std::uint32_t>(value),
                                  static_cast<std::uint32_t>(expected))};
}

template <typename T>
Status WaitForBits(const World& world, const void* word, Cmp cmp, std::uint64_t bits) {
  return WaitForWord(world, static_cast<const T*>(word), cmp, static_cast<T>(bits));
}

}  // namespace

namespace detail {

std::byte* MappedPointer(const void* address, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  return Find(address, bytes, pe, what, &world);
}

int SlowPut(void* dest, const void* source, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  std::byte* to = Find(dest, bytes, pe, what, &world);
  return to == nullptr ? LastCode()
                       : Report(what, After(*world, world->runtime().Copy(to, source, bytes)));
}

int SlowGet(void* dest, const void* source, std::size_t bytes, int pe, const char* what) {
  World* world = nullptr;
  const std::byte* from = Find(source, bytes, pe, what, &world);
  return from == nullptr ? LastCode()
                         : Report(what, After(*world, world->runtime().Copy(dest, from, bytes)));
}

int SlowWait(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value) {
  const World* world = Registry::Instance().Current();
  if (world == nullptr) {
    return Report("shmem_wait_until", Registry::Instance().NoWorld());
  }
  Status status;
  if (bytes == 4) {
    status = is_signed ? WaitForBits<std::int32_t>(*world, ivar, cmp, value)
                       : WaitForBits<std::uint32_t>(*world, ivar, cmp, value);
  } else {
    status = is_signed ? WaitForBits<std::int64_t>(*world, ivar, cmp, value)
                       : WaitForBits<std::uint64_t>(*world, ivar, cmp, value);
  }
  return Report("shmem_wait_until", status);
}

int SlowAtomic(AtomicOp op, const void* address, int bytes, std::uint64_t value,
               std::uint64_t expected, int pe, const char* what, std::uint64_t* found) {
  *found = 0;
  const World* world = FindWorld(what);
  if (world == nullptr) return LastCode();
  const auto width = static_cast<std::uint64_t>(bytes);
  return Report(what, [&]() -> Status {
    MORI_RETURN_IF_ERROR(shmem::CheckWord(address, width));
    MORI_ASSIGN_OR_RETURN(std::byte * word, FindMapped(*world, address, width, pe));
    if (op != AtomicOp::kFetch && op != AtomicOp::kSet)
      MORI_RETURN_IF_ERROR(world->CheckAtomicsOf(pe));
    MORI_ASSIGN_OR_RETURN(*found, DoAtomic(*world, op, word, bytes, value, expected));
    return After(*world, Status());
  }());
}

int CheckWord(const void* address, int bytes, int pe, const char* what) {
  const World* world = FindWorld(what);
  if (world == nullptr) return LastCode();
  const auto width = static_cast<std::uint64_t>(bytes);
  const Status aligned = shmem::CheckWord(address, width);
  return Report(what, aligned.ok() ? FindMapped(*world, address, width, pe).status() : aligned);
}

int SlowPutSignal(void* dest, const void* source, std::size_t bytes, std::uint64_t* sig_addr,
                  std::uint64_t signal, SignalOp op, int pe) {
  constexpr const char* kName = "shmem_putmem_signal";
  const World* world = FindWorld(kName);
  if (world == nullptr) return LastCode();
  return Report(kName, [&]() -> Status {
    MORI_RETURN_IF_ERROR(shmem::CheckWord(sig_addr, sizeof signal));
    if (op == SignalOp::kAdd) MORI_RETURN_IF_ERROR(world->CheckAtomicsOf(pe));
    MORI_ASSIGN_OR_RETURN(std::byte * word, FindMapped(*world, sig_addr, sizeof signal, pe));
    MORI_ASSIGN_OR_RETURN(std::byte * to, FindMapped(*world, dest, bytes, pe));
    MORI_RETURN_IF_ERROR(world->runtime().Copy(to, source, bytes));
    const Status signalled =
        DoAtomic(*world, op == SignalOp::kSet ? AtomicOp::kSet : AtomicOp::kFetchAdd, word,
                 sizeof signal, signal, 0)
            .status();
    return After(*world, signalled);
  }());
}

std::uint64_t SlowRead(const void* ivar, int bytes, const char* what) {
  const World* world = FindWorld(what);
  if (world == nullptr) return 0;
  std::uint64_t bits = 0;
  Status status;
  if (bytes == 4) {
    const auto word = Read(*world, static_cast<const std::uint32_t*>(ivar));
    status = word.status();
    if (word.ok()) bits = *word;
  } else {
    const auto word = Read(*world, static_cast<const std::uint64_t*>(ivar));
    status = word.status();
    if (word.ok()) bits = *word;
  }
  Report(what, status);
  return bits;
}

}  // namespace detail
}  // namespace mori::shmem
