#include "base/word_atomic.hpp"

#include <atomic>

namespace mori::shmem {
namespace {

using detail::AtomicOp;

template <typename T>
T Apply(AtomicOp op, T* memory, T value, T expected) {
  const std::atomic_ref<T> word(*memory);
  // Release: what was put before is there for who acquires this value. Acquire: what was fetched
  // orders what comes after it.
  constexpr auto kBoth = std::memory_order_acq_rel;
  switch (op) {
    case AtomicOp::kFetch: return word.load(std::memory_order_acquire);
    case AtomicOp::kSet:
    case AtomicOp::kSwap: return word.exchange(value, kBoth);
    case AtomicOp::kFetchAdd: return word.fetch_add(value, kBoth);
    case AtomicOp::kFetchAnd: return word.fetch_and(value, kBoth);
    case AtomicOp::kFetchOr: return word.fetch_or(value, kBoth);
    case AtomicOp::kFetchXor: return word.fetch_xor(value, kBoth);
    case AtomicOp::kCompareSwap: break;
  }
  word.compare_exchange_strong(expected, value, kBoth, std::memory_order_acquire);
  return expected;
}

}  // namespace

bool IsWordAtomic(AtomicOp op, int width, const void* memory) {
  const auto number = static_cast<int>(op);
  if (number < static_cast<int>(AtomicOp::kFetch) ||
      number > static_cast<int>(AtomicOp::kCompareSwap))
    return false;
  return (width == 4 || width == 8) &&
         reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(width) == 0;
}

std::uint64_t ApplyWordAtomic(AtomicOp op, void* memory, int width, std::uint64_t value,
                              std::uint64_t expected) {
  if (width == 4) {
    return Apply(op, static_cast<std::uint32_t*>(memory), static_cast<std::uint32_t>(value),
                 static_cast<std::uint32_t>(expected));
  }
  return Apply(op, static_cast<std::uint64_t*>(memory), value, expected);
}

}  // namespace mori::shmem
