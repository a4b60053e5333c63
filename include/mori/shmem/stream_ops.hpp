// Host API: calls that a stream makes when it comes to them.
//
// `stream` is the vendor's handle (CUDA: `CUstream` or `cudaStream_t`; null: the default stream) of
// the PE's device. A call returns once it is on the stream, and orders as the stream does: after
// what was put there before, ahead of what comes later; kernels included. On the host backend the
// only stream is null, and a call is made at once, by the calling thread.
//
// Addresses are as in host_ops.hpp. Local memory may be the device's or the host's; of the host's,
// only pinned memory makes a copy that does not wait. What was put on streams of this PE is
// complete, and visible to all, after `ShmemBarrierAll()`, too (not what a graph that was captured
// from a stream puts: wait for its launches). Such a graph must not be launched after
// `ShmemFinalize()`, which unloads its kernels and unmaps the memory that they reach.
//
// Errors, as an `ErrorCode`: what the host can see at the call, as in host_ops.hpp;
// kInvalidArgument for a stream on the host backend; kUnsupported in a build without kernels.
// Faults of the device come from a later call; kUnsupported for a signal that adds over a link
// without atomics, where it could be lost.
//
// Collectives: all PEs put the same ones on one stream each, in the same order; a PE has one under
// way at a time, in a kernel or on a stream. The rules for `dest` and `source` are those of
// device/collectives.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// Copies `bytes` from local `source` to `dest` on `pe`. The source may be reused, and the data is
/// there, once the stream has come past it.
MORI_SHMEM_API int ShmemPutMemOnStream(void* dest, const void* source, std::size_t bytes, int pe,
                                       void* stream);
/// Copies `bytes` from `source` on `pe` to local `dest`.
MORI_SHMEM_API int ShmemGetMemOnStream(void* dest, const void* source, std::size_t bytes, int pe,
                                       void* stream);
/// Puts `bytes`, then sets or adds `signal` at `sig_addr` on `pe`: who sees the signal sees the
/// data.
MORI_SHMEM_API int ShmemPutMemSignalOnStream(void* dest, const void* source, std::size_t bytes,
                                             std::uint64_t* sig_addr, std::uint64_t signal,
                                             SignalOp op, int pe, void* stream);
/// The signal alone; what the stream put before comes first.
MORI_SHMEM_API int ShmemSignalOpOnStream(std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op,
                                         int pe, void* stream);
/// The stream goes on once `*sig_addr cmp value` holds on this PE's copy; or, if a PE is lost while
/// it does not, without it: the host's next call is the error (kPeerLost).
MORI_SHMEM_API int ShmemSignalWaitUntilOnStream(const std::uint64_t* sig_addr, Cmp cmp,
                                                std::uint64_t value, void* stream);
/// The stream goes on once what it put before is visible to all PEs.
MORI_SHMEM_API int ShmemQuietOnStream(void* stream);

/// The streams go on once those of all PEs have come to it, and what any of them put before is
/// visible to all. Collective.
MORI_SHMEM_API int ShmemBarrierAllOnStream(void* stream);
/// The streams go on once those of all PEs have come to it. Collective.
MORI_SHMEM_API int ShmemSyncAllOnStream(void* stream);
/// Copies `bytes` from `source` of `root` to `dest` of all PEs. Collective.
MORI_SHMEM_API int ShmemBroadcastMemOnStream(void* dest, const void* source, std::size_t bytes,
                                             int root, void* stream);
/// All-gather: copies `bytes` from `source` of each PE to `dest + pe * bytes` of all. Collective.
MORI_SHMEM_API int ShmemFCollectMemOnStream(void* dest, const void* source, std::size_t bytes,
                                            void* stream);
/// Each PE copies `bytes` from `source + pe * bytes` to `dest + my_pe * bytes` of each `pe`.
/// Collective.
MORI_SHMEM_API int ShmemAllToAllMemOnStream(void* dest, const void* source, std::size_t bytes,
                                            void* stream);
/// Combines `count` elements of all PEs, in the order of PEs: the same result, to the bit, on all.
/// `dest` may be `source`. Elements are aligned to their size. Collective.
MORI_SHMEM_API int ShmemReduceOnStream(void* dest, const void* source, std::size_t count,
                                       ElementType type, ReduceOp op, void* stream);

namespace detail {

template <typename T>
constexpr ElementType ElementTypeOf() {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "integers and floats of 32 and 64 bits");
  if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? ElementType::kFloat32 : ElementType::kFloat64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 4 ? ElementType::kInt32 : ElementType::kInt64;
  } else {
    return sizeof(T) == 4 ? ElementType::kUint32 : ElementType::kUint64;
  }
}

}  // namespace detail

/// Typed forms; `count` in elements.
template <typename T>
inline int ShmemSumReduceOnStream(T* dest, const T* source, std::size_t count, void* stream) {
  return ShmemReduceOnStream(dest, source, count, detail::ElementTypeOf<T>(), ReduceOp::kSum,
                             stream);
}
template <typename T>
inline int ShmemMinReduceOnStream(T* dest, const T* source, std::size_t count, void* stream) {
  return ShmemReduceOnStream(dest, source, count, detail::ElementTypeOf<T>(), ReduceOp::kMin,
                             stream);
}
template <typename T>
inline int ShmemMaxReduceOnStream(T* dest, const T* source, std::size_t count, void* stream) {
  return ShmemReduceOnStream(dest, source, count, detail::ElementTypeOf<T>(), ReduceOp::kMax,
                             stream);
}

}  // namespace mori::shmem
