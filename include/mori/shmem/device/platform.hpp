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

// The host pass of nvcc, whose kernels are linked into what it builds.
#if defined(__NVCC__) && defined(__CUDACC__) && !defined(__CUDA_ARCH__) && !defined(__CUDACC_RTC__)
#define MORI_DEVICE_LINKED 1
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
#define MORI_NO_UNROLL
#else
#define MORI_UNROLL _Pragma("unroll")
#define MORI_NO_UNROLL _Pragma("unroll 1")
#endif
#define MORI_DEVICE_FN MORI_DEVICE inline __attribute__((always_inline))
#define MORI_DEVICE_OUTLINE_FN MORI_DEVICE inline __attribute__((noinline))
/// What hardly ever runs: out of the way of what does.
#define MORI_DEVICE_COLD_FN MORI_DEVICE inline __attribute__((noinline, cold))

#if defined(MORI_DEVICE_NVPTX) && !defined(__CUDACC_RTC__)
/// Of every CUDA program: prints the message with block and thread, and ends the kernel with
/// cudaErrorAssert. NVRTC declares it by itself.
extern "C" MORI_DEVICE void __assertfail(const char* message, const char* file, unsigned line,
                                         const char* function, unsigned long char_bytes);
#endif

namespace mori::shmem::device {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8);

}  // namespace mori::shmem::device
