// Checks of what callers name that need no world: words, comparisons, operations on signals.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// @return kInvalidArgument unless the address is a multiple of `bytes`
Status CheckWord(const void* address, std::uint64_t bytes);
/// @return kInvalidArgument for a number that is no comparison
Status CheckCmp(Cmp cmp);
/// @return kInvalidArgument for a number that is no operation on a signal
Status CheckSignalOp(SignalOp op);

}  // namespace mori::shmem
