// What the host publishes to kernels: plain data behind one symbol.
#pragma once

#include "mori/shmem/device/platform.hpp"

namespace mori::shmem::device {

inline constexpr u64 kContextMagic =
    0x4d4f524953484d31;  // "MORISHM1": says that a state was published

/// A PE as its kernels see it. Pointers are addresses of the device.
struct DeviceContext {
  u64 magic;              ///< `kContextMagic`, or nothing was published
  u64 heap_base;          ///< symmetric addresses are heap_base + offset
  const u64* peer_bases;  ///< of each PE's heap, by PE; 0 where not reached by load and store
  const u64* sync_bases;  ///< of each PE's synchronisation words, by PE
  u32 my_pe;
  u32 n_pes;
};
static_assert(sizeof(DeviceContext) == 40, "kernels compiled earlier read this layout");

/// Synchronisation words of a PE: [pe] is the epoch of the last barrier that `pe` has come to.
inline constexpr u64 kMaxKernelPes = 4096;

}  // namespace mori::shmem::device

/// The state of the PE whose kernels these are; `ShmemModuleInit()` fills it. One in each module.
#if defined(__CUDACC__) || defined(__CUDA__) || defined(__HIP__)
extern "C" {
static MORI_DEVICE mori::shmem::device::DeviceContext globalGpuStates;
}
#else
inline mori::shmem::device::DeviceContext
    globalGpuStates{};  // never published: no kernel runs here
#endif
