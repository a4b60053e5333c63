// Out-of-line parts of the inline operations: what is not the common case.
#include "mori/shmem/host_ops.hpp"

#include "shmem/checks.hpp"
#include "shmem/edge.hpp"
#include "shmem/wait.hpp"

namespace mori::shmem {
namespace {

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

/// Returns once the word compares as wanted, with the value that did in `*seen`.
template <typename T>
Status AwaitWord(const World& world, const T* word, Cmp cmp, T value, std::uint64_t* seen) {
  Status failed;
  const auto last_seen = [&] { return static_cast<T>(*seen); };
  const Status waited = WaitUntilHolds(
      world, "shmem_wait_until",
      [&] {
        const auto now = Read(world, word);
        if (!now.ok()) failed = now.status();
        if (now.ok()) *seen = static_cast<std::uint64_t>(*now);
        return !now.ok() || detail::Holds(*now, cmp, value);
      },
      [&] { return DescribeWait(world, word, last_seen(), cmp, value); });
  return waited.ok() ? failed : waited;
}

/// `use(word, value)` with both of the type that the two numbers say.
template <typename Use>
Status AsTyped(const void* word, int bytes, bool is_signed, std::uint64_t value, Use use) {
  if (bytes == 4) {
    return is_signed
               ? use(static_cast<const std::int32_t*>(word), static_cast<std::int32_t>(value))
               : use(static_cast<const std::uint32_t*>(word), static_cast<std::uint32_t>(value));
  }
  return is_signed ? use(static_cast<const std::int64_t*>(word), static_cast<std::int64_t>(value))
                   : use(static_cast<const std::uint64_t*>(word), value);
}

}  // namespace

std::string_view CmpName(Cmp cmp) {
  switch (cmp) {
    case Cmp::kEq: return "==";
    case Cmp::kNe: return "!=";
    case Cmp::kGt: return ">";
    case Cmp::kGe: return ">=";
    case Cmp::kLt: return "<";
    case Cmp::kLe: return "<=";
  }
  return "?";
}

namespace detail {

std::byte* MappedPointer(const void* address, std::size_t bytes, int pe, const char* what) {
  std::byte* pointer = nullptr;
  OnWorld(what, [&](const World& world) -> Status {
    MORI_ASSIGN_OR_RETURN(pointer, world.memory().FindMapped(address, bytes, pe));
    return Status();
  });
  return pointer;
}

int PutOutOfLine(void* dest, const void* source, std::size_t bytes, int pe, const char* what) {
  return OnWorld(what, [&](const World& world) {
    return After(world, world.operations().Put(dest, source, bytes, pe));
  });
}

int GetOutOfLine(void* dest, const void* source, std::size_t bytes, int pe, const char* what) {
  return OnWorld(what, [&](const World& world) {
    return After(world, world.operations().Get(dest, source, bytes, pe));
  });
}

int PutNbiOutOfLine(void* dest, const void* source, std::size_t bytes, int pe) {
  return OnWorld("shmem_putmem_nbi", [&](const World& world) {
    return After(world, world.operations().Put(dest, source, bytes, pe, Until::kQuiet));
  });
}

int GetNbiOutOfLine(void* dest, const void* source, std::size_t bytes, int pe) {
  return OnWorld("shmem_getmem_nbi", [&](const World& world) {
    return After(world, world.operations().Get(dest, source, bytes, pe, Until::kQuiet));
  });
}

int WaitOutOfLine(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value,
                  std::uint64_t* seen) {
  return OnWorld("shmem_wait_until", [&](const World& world) -> Status {
    MORI_RETURN_IF_ERROR(CheckCmp(cmp));
    MORI_RETURN_IF_ERROR(shmem::CheckWord(ivar, static_cast<std::uint64_t>(bytes)));
    return AsTyped(ivar, bytes, is_signed, value, [&](const auto* word, auto wanted) {
      return AwaitWord(world, word, cmp, wanted, seen);
    });
  });
}

bool TestOutOfLine(const void* ivar, int bytes, bool is_signed, Cmp cmp, std::uint64_t value) {
  bool holds = false;
  OnWorld("shmem_test", [&](const World& world) -> Status {
    MORI_RETURN_IF_ERROR(CheckCmp(cmp));
    MORI_RETURN_IF_ERROR(shmem::CheckWord(ivar, static_cast<std::uint64_t>(bytes)));
    return AsTyped(ivar, bytes, is_signed, value, [&](const auto* word, auto wanted) -> Status {
      MORI_ASSIGN_OR_RETURN(const auto now, Read(world, word));
      holds = Holds(now, cmp, wanted);
      return Status();
    });
  });
  return holds;
}

std::uint64_t ReadOutOfLine(const void* ivar, int bytes, const char* what) {
  std::uint64_t bits = 0;
  OnWorld(what, [&](const World& world) -> Status {
    MORI_RETURN_IF_ERROR(shmem::CheckWord(ivar, static_cast<std::uint64_t>(bytes)));
    return AsTyped(ivar, bytes, false, 0, [&](const auto* word, auto) -> Status {
      MORI_ASSIGN_OR_RETURN(bits, Read(world, word));
      return Status();
    });
  });
  return bits;
}

int FenceOutOfLine() {
  return OnWorld("shmem_fence",
                 [](const World& world) { return After(world, world.operations().Fence()); });
}

int QuietOutOfLine() {
  return OnWorld("shmem_quiet",
                 [](const World& world) { return After(world, world.operations().Quiet()); });
}

int QuietOutOfLine(int pe) {
  return OnWorld("shmem_quiet", [&](const World& world) -> Status {
    return After(world, world.operations().Quiet(pe));
  });
}

int AtomicOutOfLine(AtomicOp op, const void* address, int bytes, std::uint64_t value,
                    std::uint64_t expected, int pe, const char* what, std::uint64_t* found) {
  std::uint64_t bits = 0;
  const int code = OnWorld(what, [&](const World& world) -> Status {
    MORI_ASSIGN_OR_RETURN(
        bits, world.operations().Atomic(op, address, bytes, value, expected, pe, found != nullptr));
    return After(world, Status());
  });
  if (found != nullptr) *found = code == 0 ? bits : 0;
  return code;
}

int CheckWord(const void* address, int bytes, int pe, const char* what) {
  const auto width = static_cast<std::uint64_t>(bytes);
  return OnWorld(what, [&](const World& world) -> Status {
    MORI_RETURN_IF_ERROR(shmem::CheckWord(address, width));
    return world.memory().Locate(address, width, pe).status();
  });
}

int PutSignalOutOfLine(void* dest, const void* source, std::size_t bytes, std::uint64_t* sig_addr,
                       std::uint64_t signal, SignalOp op, int pe) {
  return OnWorld("shmem_putmem_signal", [&](const World& world) {
    return After(world,
                 world.operations().PutSignal(dest, source, bytes, sig_addr, signal, op, pe));
  });
}

}  // namespace detail
}  // namespace mori::shmem
