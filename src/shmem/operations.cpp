#include "shmem/operations.hpp"

#include "base/word_atomic.hpp"
#include "shmem/checks.hpp"

namespace mori::shmem {

using detail::AtomicOp;

Result<std::uint64_t> Operations::NearAtomic(AtomicOp op, std::byte* word, int width,
                                             std::uint64_t value, std::uint64_t expected) const {
  if (parts_.device != nullptr) {
    MORI_RETURN_IF_ERROR(parts_.device->status());
    return (**parts_.device)->Atomic(op, width, word, value, expected);
  }
  return ApplyWordAtomic(op, word, width, value, expected);
}

Status Operations::Put(void* dest, const void* source, std::uint64_t bytes, int pe,
                       Until until) const {
  MORI_ASSIGN_OR_RETURN(const Location to, parts_.memory->Locate(dest, bytes, pe));
  if (to.near != nullptr) return parts_.runtime->Copy(to.near, source, bytes);
  Channel& channel = parts_.network->channel();
  return parts_.memory->ForEachStretch(
      dest, bytes, pe, [&](RemotePlace place, std::uint64_t done, std::uint64_t length) {
        const std::byte* from = static_cast<const std::byte*>(source) + done;
        return until == Until::kQuiet ? channel.PutNbi(pe, place, from, length)
                                      : channel.Put(pe, place, from, length);
      });
}

Status Operations::Get(void* dest, const void* source, std::uint64_t bytes, int pe,
                       Until until) const {
  MORI_ASSIGN_OR_RETURN(const Location from, parts_.memory->Locate(source, bytes, pe));
  if (from.near != nullptr) return parts_.runtime->Copy(dest, from.near, bytes);
  Channel& channel = parts_.network->channel();
  return parts_.memory->ForEachStretch(
      source, bytes, pe, [&](RemotePlace place, std::uint64_t done, std::uint64_t length) {
        std::byte* const to = static_cast<std::byte*>(dest) + done;
        return until == Until::kQuiet ? channel.GetNbi(pe, to, place, length)
                                      : channel.Get(pe, to, place, length);
      });
}

Status Operations::PutSignal(void* dest, const void* source, std::uint64_t bytes,
                             std::uint64_t* word, std::uint64_t signal, SignalOp op, int pe) const {
  MORI_RETURN_IF_ERROR(CheckSignalOp(op));
  MORI_RETURN_IF_ERROR(CheckWord(word, sizeof signal));
  if (op == SignalOp::kAdd) MORI_RETURN_IF_ERROR(CheckAtomicsOf(pe));
  MORI_RETURN_IF_ERROR(parts_.memory->Locate(word, sizeof signal, pe).status());
  MORI_ASSIGN_OR_RETURN(const Location to, parts_.memory->Locate(dest, bytes, pe));
  if (to.near != nullptr) {
    MORI_RETURN_IF_ERROR(parts_.runtime->Copy(to.near, source, bytes));
    return Signal(word, signal, op, pe);
  }
  Channel& channel = parts_.network->channel();
  if (!parts_.memory->IsOnePiece(dest, bytes, pe)) {
    // All pieces are there before the signal is sent.
    MORI_RETURN_IF_ERROR(Put(dest, source, bytes, pe, Until::kQuiet));
    MORI_RETURN_IF_ERROR(channel.Quiet(pe));
    return Signal(word, signal, op, pe);
  }
  MORI_ASSIGN_OR_RETURN(const RemotePlace place, parts_.memory->RemoteWord(dest, pe));
  MORI_ASSIGN_OR_RETURN(const RemotePlace of_signal, parts_.memory->RemoteWord(word, pe));
  return channel.PutSignal(pe, place, source, bytes, of_signal, signal, op);
}

Status Operations::Signal(std::uint64_t* word, std::uint64_t signal, SignalOp op, int pe) const {
  MORI_RETURN_IF_ERROR(CheckSignalOp(op));
  return Atomic(op == SignalOp::kSet ? AtomicOp::kSet : AtomicOp::kFetchAdd, word, sizeof signal,
                signal, 0, pe, false)
      .status();
}

Result<std::uint64_t> Operations::Atomic(AtomicOp op, const void* word, int width,
                                         std::uint64_t value, std::uint64_t expected, int pe,
                                         bool wants_result) const {
  MORI_RETURN_IF_ERROR(CheckWord(word, static_cast<std::uint64_t>(width)));
  MORI_ASSIGN_OR_RETURN(const Location location,
                        parts_.memory->Locate(word, static_cast<std::uint64_t>(width), pe));
  if (location.near != nullptr) {
    if (op != AtomicOp::kFetch && op != AtomicOp::kSet) MORI_RETURN_IF_ERROR(CheckAtomicsOf(pe));
    return NearAtomic(op, location.near, width, value, expected);
  }
  MORI_ASSIGN_OR_RETURN(const RemotePlace place, parts_.memory->RemoteWord(word, pe));
  Channel& channel = parts_.network->channel();
  const bool has_result = op == AtomicOp::kFetch || op == AtomicOp::kCompareSwap ||
                          (wants_result && op != AtomicOp::kSet);
  std::uint64_t found = 0;
  MORI_RETURN_IF_ERROR(has_result ? channel.Fetch(pe, place, op, width, value, expected, &found)
                                  : channel.Post(pe, place, op, width, value));
  return found;
}

Status Operations::CheckAtomicsOf(int pe) const {
  const auto link = parts_.without_atomics->find(pe);
  if (link == parts_.without_atomics->end()) return Status();
  return Error(ErrorCode::kUnsupported,
               "the link {} (PE {}) has no atomics, and what is added over it may be lost: set "
               "signals, or let PE {} change its own words",
               link->second, pe, pe);
}

Status Operations::Fence() const {
  return parts_.network == nullptr ? Status() : parts_.network->channel().Fence();
}

Status Operations::Quiet() const {
  return parts_.network == nullptr ? Status() : parts_.network->channel().Quiet();
}

Status Operations::Quiet(int pe) const {
  MORI_RETURN_IF_ERROR(parts_.memory->CheckPe(pe));
  return parts_.network == nullptr ? Status() : parts_.network->channel().Quiet(pe);
}

void Operations::Synchronize() const {
  if (parts_.network != nullptr) parts_.network->channel().Synchronize();
}

}  // namespace mori::shmem
