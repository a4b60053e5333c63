// Plain types shared by the host API, the library and the bindings.
//
// Nothing here owns memory or includes a vendor header; every type is trivially copyable.
#pragma once

#include <cstdint>

#if defined(_WIN32)
#error "MORI Shmem needs Linux"
#endif

/// Marks what `libmori_shmem.so` exports; everything else is hidden.
#define MORI_SHMEM_API __attribute__((visibility("default")))

namespace mori::shmem {

/// How `ShmemInitAttr()` finds the other PEs. Names and values are those of the guide, section 8.
enum InitFlag : unsigned {
  MORI_SHMEM_INIT_WITH_MPI_COMM = 0,
  MORI_SHMEM_INIT_WITH_UNIQUEID = 1,
};

/// Flags of `ShmemExtMallocWithFlags()`, with the values of HIP's extended allocation.
enum MallocFlag : unsigned {
  MORI_SHMEM_MALLOC_DEFAULT = 0x0,       ///< of the heap's kind, `MORI_SHMEM_HEAP_TYPE`
  MORI_SHMEM_MALLOC_FINE_GRAINED = 0x1,  ///< coherent with all others while a kernel runs
  MORI_SHMEM_MALLOC_UNCACHED = 0x3,
};

/// What a call returns: 0 on success, otherwise the reason. Values are stable.
enum class ErrorCode : int {
  kOk = 0,
  kNotInitialized = 1,      ///< called before init, after finalize, or in a forked child
  kAlreadyInitialized = 2,  ///< init again with other arguments; the running world is untouched
  kInvalidArgument = 3,     ///< an argument that no PE could use: range, alignment, pointer
  kInvalidConfig = 4,       ///< an environment variable with a value that cannot be used
  kOutOfMemory = 5,         ///< no room in the heap, or none on the machine
  kMismatch = 6,            ///< PEs disagree: size, configuration, version, collective arguments
  kTimeout = 7,             ///< a time limit was reached; the message names it
  kPeerLost = 8,            ///< another PE died, left, or failed; the message names it
  kUnsupported = 9,         ///< a feature that this build or this machine does not have
  kSystem = 10,             ///< the operating system refused a call; the message has its text
  kInternal = 11,           ///< a bug in this library
};

/// Token by which PEs find each other. Made by one process, carried to all others by any means.
/// It holds a secret: a process that knows it can join, once.
struct UniqueId {
  static constexpr int kBytes = 128;
  std::uint8_t bytes[kBytes];
};
static_assert(sizeof(UniqueId) == 128, "the guide fixes 128 bytes");

/// State of this PE's heap. Sizes in bytes.
struct HeapStats {
  std::uint64_t total_bytes;
  std::uint64_t used_bytes;          ///< in live blocks, rounding for alignment included
  std::uint64_t free_bytes;          ///< `total_bytes - used_bytes`
  std::uint64_t largest_free_bytes;  ///< largest request that can succeed at default alignment
  std::uint64_t live_blocks;
};

/// Comparison for waits and tests.
enum class Cmp : int { kEq = 0, kNe = 1, kGt = 2, kGe = 3, kLt = 4, kLe = 5 };

/// What put-with-signal does to the signal word.
enum class SignalOp : int { kSet = 0, kAdd = 1 };

/// Elements of a reduction, and how they are combined.
enum class ElementType : int {
  kInt32 = 0,
  kUint32 = 1,
  kInt64 = 2,
  kUint64 = 3,
  kFloat32 = 4,
  kFloat64 = 5,
};
enum class ReduceOp : int { kSum = 0, kMin = 1, kMax = 2 };

namespace detail {

/// What an atomic does to its word.
enum class AtomicOp : int {
  kFetch = 0,
  kSet = 1,
  kFetchAdd = 2,
  kFetchAnd = 3,
  kFetchOr = 4,
  kFetchXor = 5,
  kSwap = 6,
  kCompareSwap = 7,
};

}  // namespace detail

}  // namespace mori::shmem
