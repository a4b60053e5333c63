// Each operation of the host on memory of a PE, once: over load and store where that reaches, over
// the network otherwise. Arguments are checked here.
#pragma once

#include <cstdint>

#include "mori/shmem/types.hpp"
#include "shmem/world.hpp"

namespace mori::shmem {

/// When the source of a put may be changed, and the data of a get is there: on return, or after a
/// quiet.
enum class Until { kReturn, kQuiet };

/// @return kInvalidArgument for no such PE, and for no symmetric range, here and below; kPeerLost
Status Put(const World& world, void* dest, const void* source, std::uint64_t bytes, int pe,
           Until until = Until::kReturn);
Status Get(const World& world, void* dest, const void* source, std::uint64_t bytes, int pe,
           Until until = Until::kReturn);
/// A put, and a change of `word` that is not seen before its data.
Status PutSignal(const World& world, void* dest, const void* source, std::uint64_t bytes,
                 std::uint64_t* word, std::uint64_t signal, SignalOp op, int pe);
/// An atomic on a word of `width` bytes, 4 or 8.
/// @return the bits that were there; 0 of an operation that has no use for them: a set, and one
/// with
///   `wants_result` false
/// @return kUnsupported where the link has no atomics
Result<std::uint64_t> Atomic(const World& world, detail::AtomicOp op, const void* word, int width,
                             std::uint64_t value, std::uint64_t expected, int pe,
                             bool wants_result = true);
/// What the network has under way: nothing to do where load and store reach all.
Status FenceNetwork(const World& world);
Status QuietNetwork(const World& world);
Status QuietNetwork(const World& world, int pe);

}  // namespace mori::shmem
