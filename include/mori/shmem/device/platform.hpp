// The one file that knows compilers: nvcc, NVRTC and clang for NVIDIA and AMD GPUs, and a host
// compiler, which reads the same headers for their types and their syntax.
//
// No vendor header and no standard header is included: NVRTC has neither, and clang needs none.
#pragma once

// Of several passes over one source, which is this? `__HIP__` and `__AMDGCN__` are defined in both
// passes of -x hip, so that these two tell them apart.
#if defined(__HIP_DEVICE_COMPILE__)
#define MORI_DEVICE_AMDGCN 1
#elif defined(__CUDA_ARCH__)
#define MORI_DEVICE_NVPTX 1
#else
#define MORI_DEVICE_HOST 1
#endif

#if defined(__CUDACC__) && !defined(__clang__)
#define MORI_DEVICE __device__
#elif defined(__CUDA__) || defined(__HIP__)
#define MORI_DEVICE __attribute__((device))
#else
#define MORI_DEVICE
#endif
#if defined(MORI_DEVICE_HOST)
#define MORI_UNROLL
#else
#define MORI_UNROLL _Pragma("unroll")
#endif
#define MORI_DEVICE_FN MORI_DEVICE inline __attribute__((always_inline))

namespace mori::shmem::device {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8);

}  // namespace mori::shmem::device
