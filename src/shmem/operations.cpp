#include "shmem/operations.hpp"

#include <algorithm>

#include "shmem/symmetric_address.hpp"

namespace mori::shmem {
namespace {

using detail::AtomicOp;

/// `part(place, done, bytes)` for each stretch of `pe`'s copy of a range that `Locate()` has found
/// remote, `done` bytes behind its start.
template <typename Part>
Status ForEachStretch(const World& world, const void* address, std::uint64_t bytes, int pe,
                      Part part) {
  for (std::uint64_t done = 0; done < bytes;) {
    const auto stretch = world.heap().Remote(static_cast<const std::byte*>(address) + done, pe);
    if (!stretch) {
      return Error(ErrorCode::kInternal, "the network does not know {} of PE {}", address, pe);
    }
    const std::uint64_t length = std::min(stretch->bytes, bytes - done);
    MORI_RETURN_IF_ERROR(part(stretch->place, done, length));
    done += length;
  }
  return Status();
}

/// A word lies in one piece: pieces begin and end on pages.
Result<RemotePlace> RemoteWord(const World& world, const void* word, int pe) {
  if (const auto stretch = world.heap().Remote(word, pe)) return stretch->place;
  return Error(ErrorCode::kInternal, "the network does not know {} of PE {}", word, pe);
}

/// On a word of the host's, with the order that the inline atomics have.
template <typename T>
T HostAtomic(AtomicOp op, T* word, T value, T expected) {
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

Result<std::uint64_t> NearAtomic(const World& world, AtomicOp op, std::byte* word, int width,
                                 std::uint64_t value, std::uint64_t expected) {
  if (!world.runtime().IsHostMemory()) {
    MORI_ASSIGN_OR_RETURN(Streams * streams, world.streams());
    return streams->Atomic(op, width, word, value, expected);
  }
  if (width == 8) return HostAtomic(op, reinterpret_cast<std::uint64_t*>(word), value, expected);
  return std::uint64_t{HostAtomic(op, reinterpret_cast<std::uint32_t*>(word),
                                  static_cast<std::uint32_t>(value),
                                  static_cast<std::uint32_t>(expected))};
}

Result<std::uint64_t> RemoteAtomic(const World& world, AtomicOp op, const void* word, int width,
                                   std::uint64_t value, std::uint64_t expected, int pe,
                                   bool wants_result) {
  MORI_ASSIGN_OR_RETURN(const RemotePlace place, RemoteWord(world, word, pe));
  Channel& channel = world.network()->channel();
  const bool has_result = op == AtomicOp::kFetch || op == AtomicOp::kCompareSwap ||
                          (wants_result && op != AtomicOp::kSet);
  std::uint64_t found = 0;
  if (has_result) {
    MORI_RETURN_IF_ERROR(channel.Fetch(pe, place, op, width, value, expected, &found));
  } else {
    MORI_RETURN_IF_ERROR(channel.Post(pe, place, op, width, value));
  }
  return found;
}

}  // namespace

Status Put(const World& world, void* dest, const void* source, std::uint64_t bytes, int pe,
           Until until) {
  MORI_ASSIGN_OR_RETURN(const Location to, Locate(world, dest, bytes, pe));
  if (to.near != nullptr) return world.runtime().Copy(to.near, source, bytes);
  Channel& channel = world.network()->channel();
  return ForEachStretch(world, dest, bytes, pe,
                        [&](RemotePlace place, std::uint64_t done, std::uint64_t length) {
                          const std::byte* from = static_cast<const std::byte*>(source) + done;
                          return until == Until::kQuiet ? channel.PutNbi(pe, place, from, length)
                                                        : channel.Put(pe, place, from, length);
                        });
}

Status Get(const World& world, void* dest, const void* source, std::uint64_t bytes, int pe,
           Until until) {
  MORI_ASSIGN_OR_RETURN(const Location from, Locate(world, source, bytes, pe));
  if (from.near != nullptr) return world.runtime().Copy(dest, from.near, bytes);
  Channel& channel = world.network()->channel();
  return ForEachStretch(world, source, bytes, pe,
                        [&](RemotePlace place, std::uint64_t done, std::uint64_t length) {
                          std::byte* const to = static_cast<std::byte*>(dest) + done;
                          return until == Until::kQuiet ? channel.GetNbi(pe, to, place, length)
                                                        : channel.Get(pe, to, place, length);
                        });
}

Status PutSignal(const World& world, void* dest, const void* source, std::uint64_t bytes,
                 std::uint64_t* word, std::uint64_t signal, SignalOp op, int pe) {
  MORI_RETURN_IF_ERROR(CheckSignalOp(op));
  MORI_RETURN_IF_ERROR(CheckWord(word, sizeof signal));
  if (op == SignalOp::kAdd) MORI_RETURN_IF_ERROR(world.CheckAtomicsOf(pe));
  MORI_ASSIGN_OR_RETURN(const Location of_word, Locate(world, word, sizeof signal, pe));
  MORI_ASSIGN_OR_RETURN(const Location to, Locate(world, dest, bytes, pe));
  if (to.near != nullptr) {
    MORI_RETURN_IF_ERROR(world.runtime().Copy(to.near, source, bytes));
    return NearAtomic(world, op == SignalOp::kSet ? AtomicOp::kSet : AtomicOp::kFetchAdd,
                      of_word.near, sizeof signal, signal, 0)
        .status();
  }
  MORI_ASSIGN_OR_RETURN(const RemotePlace of_signal, RemoteWord(world, word, pe));
  Channel& channel = world.network()->channel();
  const auto stretch = world.heap().Remote(dest, pe);
  if (stretch && bytes <= stretch->bytes)
    return channel.PutSignal(pe, stretch->place, source, bytes, of_signal, signal, op);
  // In several pieces: all of them are there before the signal is sent.
  MORI_RETURN_IF_ERROR(Put(world, dest, source, bytes, pe, Until::kQuiet));
  MORI_RETURN_IF_ERROR(channel.Quiet(pe));
  return channel.PutSignal(pe, of_signal, nullptr, 0, of_signal, signal, op);
}

Result<std::uint64_t> Atomic(const World& world, AtomicOp op, const void* word, int width,
                             std::uint64_t value, std::uint64_t expected, int pe,
                             bool wants_result) {
  MORI_RETURN_IF_ERROR(CheckWord(word, static_cast<std::uint64_t>(width)));
  MORI_ASSIGN_OR_RETURN(const Location place,
                        Locate(world, word, static_cast<std::uint64_t>(width), pe));
  if (place.near == nullptr)
    return RemoteAtomic(world, op, word, width, value, expected, pe, wants_result);
  if (op != AtomicOp::kFetch && op != AtomicOp::kSet)
    MORI_RETURN_IF_ERROR(world.CheckAtomicsOf(pe));
  return NearAtomic(world, op, place.near, width, value, expected);
}

Status FenceNetwork(const World& world) {
  return world.network() == nullptr ? Status() : world.network()->channel().Fence();
}

Status QuietNetwork(const World& world) {
  return world.network() == nullptr ? Status() : world.network()->channel().Quiet();
}

Status QuietNetwork(const World& world, int pe) {
  return world.network() == nullptr ? Status() : world.network()->channel().Quiet(pe);
}

}  // namespace mori::shmem
