// What PEs bring to a collective, and what must come of it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "mori/shmem/types.hpp"

namespace mori::shmem::testing {

// ---- bytes

using Bytes = std::vector<std::uint8_t>;

/// Appends bytes [start, start + count) of what `pe` sends in `round`: they tell all three apart.
inline void AppendSent(Bytes* to, int pe, int round, std::size_t start, std::size_t count) {
  const auto offset = static_cast<std::size_t>(pe * 67 + round * 11);
  const std::size_t before = to->size();
  to->resize(before + count);
  std::uint8_t* out = to->data() + before;
  for (std::size_t i = start; i < start + count; ++i)
    *out++ = static_cast<std::uint8_t>(i * 7 + i / 256 + offset);
}
inline Bytes Sent(int pe, int round, std::size_t bytes) {
  Bytes data;
  AppendSent(&data, pe, round, 0, bytes);
  return data;
}
/// What an fcollect of `bytes` brings to all.
inline Bytes Gathered(int n_pes, int round, std::size_t bytes) {
  Bytes data;
  for (int pe = 0; pe < n_pes; ++pe) AppendSent(&data, pe, round, 0, bytes);
  return data;
}
/// What an alltoall of `bytes` for each PE brings to `me`.
inline Bytes Exchanged(int me, int n_pes, int round, std::size_t bytes) {
  Bytes data;
  for (int pe = 0; pe < n_pes; ++pe)
    AppendSent(&data, pe, round, static_cast<std::size_t>(me) * bytes, bytes);
  return data;
}

// ---- elements

struct NamedReduceOp {
  ReduceOp op;
  const char* name;
};
inline constexpr NamedReduceOp kReduceOps[] = {
    {ReduceOp::kSum, "Sum"}, {ReduceOp::kMin, "Min"}, {ReduceOp::kMax, "Max"}};

/// Element `i` of `pe`: integers of all sizes, whose sums wrap; floats of so many magnitudes that
/// the order of a sum shows in its last bits.
template <typename T>
T ElementOf(int pe, std::size_t i, unsigned seed) {
  std::uint64_t bits = (static_cast<std::uint64_t>(pe) << 48) + (std::uint64_t{seed} << 32) + i;
  bits = (bits ^ (bits >> 31)) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9u;
  bits ^= bits >> 32;
  if constexpr (std::is_floating_point_v<T>) {
    const auto exponent = static_cast<int>((bits >> 40) % 24) - 12;
    return std::ldexp(static_cast<T>(static_cast<std::int32_t>(bits)), exponent);
  } else {
    return static_cast<T>(bits);
  }
}
template <typename T>
std::vector<T> ElementsOf(int pe, std::size_t count, unsigned seed) {
  std::vector<T> elements(count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = ElementOf<T>(pe, i, seed);
  return elements;
}

template <typename T>
T CombineTwo(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMin) return b < a ? b : a;
  if (op == ReduceOp::kMax) return a < b ? b : a;
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}
/// The elements of all PEs, combined in the order of PEs.
template <typename T>
std::vector<T> CombinedElements(ReduceOp op, int n_pes, std::size_t count, unsigned seed) {
  std::vector<T> result = ElementsOf<T>(0, count, seed);
  for (int pe = 1; pe < n_pes; ++pe) {
    for (std::size_t i = 0; i < count; ++i)
      result[i] = CombineTwo(op, result[i], ElementOf<T>(pe, i, seed));
  }
  return result;
}

template <typename T>
bool SameBits(const std::vector<T>& left, const std::vector<T>& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

}  // namespace mori::shmem::testing
