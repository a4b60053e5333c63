// Atomics of the host on a word whose operation and width are known at run time only.
#pragma once

#include <cstdint>

#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// Whether `op` is an operation and `memory` a word of `width` bytes, 4 or 8, aligned to it: what
/// comes from elsewhere is asked this first.
bool IsWordAtomic(detail::AtomicOp op, int width, const void* memory);

/// Does it in one step, for all CPUs of the node. Reads acquire and changes release: what was
/// written before a change is there for who reads the changed value. The values are the bits of an
/// integer of that width.
/// @return the bits that were there before
std::uint64_t ApplyWordAtomic(detail::AtomicOp op, void* memory, int width, std::uint64_t value,
                              std::uint64_t expected);

}  // namespace mori::shmem
