// Checks of what callers name: PEs, symmetric addresses, words, what to do with them.
#pragma once

#include "shmem/world.hpp"

namespace mori::shmem {

/// @return kInvalidArgument unless there is such a PE
Status CheckPe(const World& world, int pe);
/// Where `pe`'s copy of [address, address + bytes) is reached from here, whatever kind of memory
/// that is. @return kInvalidArgument for no such PE, and for no symmetric range; kUnsupported for a
/// PE that the network alone reaches
Result<std::byte*> FindMapped(const World& world, const void* address, std::uint64_t bytes, int pe);
/// A symmetric range on a PE: mapped here, or reached by the network.
struct Location {
  std::byte* near = nullptr;  ///< null: `Heap::Remote()` says where the network finds it
};
/// @return as `FindMapped()`, which asks for a range that is mapped here
Result<Location> Locate(const World& world, const void* address, std::uint64_t bytes, int pe);
/// @return kInvalidArgument unless the address is a multiple of `bytes`
Status CheckWord(const void* address, std::uint64_t bytes);
/// @return kInvalidArgument for a number that is no comparison
Status CheckCmp(Cmp cmp);
/// @return kInvalidArgument for a number that is no operation on a signal
Status CheckSignalOp(SignalOp op);

}  // namespace mori::shmem
