// Sizes in whole units.
#pragma once

#include <cstdint>

namespace mori::shmem {

/// The least multiple of `unit` that is no less than `value`.
constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace mori::shmem
