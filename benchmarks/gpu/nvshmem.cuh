// NVSHMEM, as the shapes of shapes.cuh and pe.cuh take it.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include "pe.cuh"

namespace mori::bench {

struct Nvshmem {
  // ---- host

  static constexpr const char* kName = "nvshmem";
  static constexpr bool kHasKernels = true;
  using Token = nvshmemx_uniqueid_t;

  static void SetEnvironment(const char* heap_bytes) {
    // Multicast can put the GPUs of a shared host out of service.
    ::setenv("NVSHMEM_DISABLE_NVLS", "1", 1);
    ::setenv("NCCL_NVLS_ENABLE", "0", 1);  // which it may use
    ::setenv("NVSHMEM_SYMMETRIC_SIZE", heap_bytes, 0);
    ::setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo", 0);
  }
  static std::string Version() {
    int major = 0;
    int minor = 0;
    int patch = 0;
    nvshmemx_vendor_get_version_info(&major, &minor, &patch);
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  }
  static void MakeToken(Token* token) {
    *token = NVSHMEMX_UNIQUEID_INITIALIZER;
    Require(nvshmemx_get_uniqueid(token) == 0, "unique id");
  }
  static void Init(int rank, int size, const Token& token) {
    Token id = token;
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    Require(nvshmemx_set_attr_uniqueid_args(rank, size, &id, &attributes) == 0, "attributes");
    Require(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == 0, "init");
  }
  static void Finalize() { nvshmem_finalize(); }
  static void* Malloc(u64 bytes) {
    void* block = nvshmem_malloc(bytes);
    Require(block != nullptr, "malloc");
    return block;
  }
  static void Free(void* block) { nvshmem_free(block); }
  static void Barrier() { nvshmem_barrier_all(); }
  static void BarrierOnStream(cudaStream_t stream) { nvshmemx_barrier_all_on_stream(stream); }
  static void BroadcastOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(nvshmemx_float_broadcast_on_stream(NVSHMEM_TEAM_WORLD, static_cast<float*>(dest),
                                               static_cast<const float*>(source),
                                               bytes / sizeof(float), 0, stream),
            "broadcast");
  }
  static void FCollectOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(nvshmemx_float_fcollect_on_stream(NVSHMEM_TEAM_WORLD, static_cast<float*>(dest),
                                              static_cast<const float*>(source),
                                              bytes / sizeof(float), stream),
            "fcollect");
  }
  static void AllToAllOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(nvshmemx_float_alltoall_on_stream(NVSHMEM_TEAM_WORLD, static_cast<float*>(dest),
                                              static_cast<const float*>(source),
                                              bytes / sizeof(float), stream),
            "all-to-all");
  }
  static void SumReduceOnStream(float* dest, const float* source, u64 count, cudaStream_t stream) {
    Succeed(nvshmemx_float_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, dest, source, count, stream),
            "sum reduction");
  }

  // ---- kernels

  static __device__ void P(u64* dest, u64 value, int pe) { nvshmem_ulonglong_p(dest, value, pe); }
  static __device__ u64 G(const u64* source, int pe) { return nvshmem_ulonglong_g(source, pe); }
  static __device__ u64 FetchAdd(u64* target, u64 value, int pe) {
    return nvshmem_ulonglong_atomic_fetch_add(target, value, pe);
  }
  static __device__ void Quiet() { nvshmem_quiet(); }

  template <Scope S>
  static __device__ void Put(char* dest, const char* source, u64 bytes, int pe) {
    if constexpr (S == Scope::kThread) nvshmem_putmem(dest, source, bytes, pe);
    if constexpr (S == Scope::kWarp) nvshmemx_putmem_warp(dest, source, bytes, pe);
    if constexpr (S == Scope::kBlock) nvshmemx_putmem_block(dest, source, bytes, pe);
  }
  template <Scope S>
  static __device__ void Get(char* dest, const char* source, u64 bytes, int pe) {
    if constexpr (S == Scope::kThread) nvshmem_getmem(dest, source, bytes, pe);
    if constexpr (S == Scope::kWarp) nvshmemx_getmem_warp(dest, source, bytes, pe);
    if constexpr (S == Scope::kBlock) nvshmemx_getmem_block(dest, source, bytes, pe);
  }
  static __device__ void PutNbiBlock(char* dest, const char* source, u64 bytes, int pe) {
    nvshmemx_putmem_nbi_block(dest, source, bytes, pe);
  }
  static __device__ void GetNbiBlock(char* dest, const char* source, u64 bytes, int pe) {
    nvshmemx_getmem_nbi_block(dest, source, bytes, pe);
  }
  static __device__ void PutSignalBlock(char* dest, const char* source, u64 bytes, u64* signal,
                                        u64 value, int pe) {
    nvshmemx_putmem_signal_block(dest, source, bytes, reinterpret_cast<uint64_t*>(signal), value,
                                 NVSHMEM_SIGNAL_SET, pe);
  }
  static __device__ void WaitSignalBlock(const u64* signal, u64 value) {
    if (threadIdx.x == 0) {
      nvshmem_signal_wait_until(reinterpret_cast<uint64_t*>(const_cast<u64*>(signal)),
                                NVSHMEM_CMP_GE, value);
    }
    __syncthreads();
  }

  static __device__ void BarrierBlock() { nvshmemx_barrier_all_block(); }
  // By elements: of bytes, the broadcast is declared without its root.
  static __device__ void BroadcastBlock(void* dest, const void* source, u64 bytes, int root) {
    nvshmemx_float_broadcast_block(NVSHMEM_TEAM_WORLD, static_cast<float*>(dest),
                                   static_cast<const float*>(source), bytes / sizeof(float), root);
  }
  static __device__ void FCollectBlock(void* dest, const void* source, u64 bytes) {
    nvshmemx_float_fcollect_block(NVSHMEM_TEAM_WORLD, static_cast<float*>(dest),
                                  static_cast<const float*>(source), bytes / sizeof(float));
  }
  static __device__ void AllToAllBlock(void* dest, const void* source, u64 bytes) {
    nvshmemx_float_alltoall_block(NVSHMEM_TEAM_WORLD, static_cast<float*>(dest),
                                  static_cast<const float*>(source), bytes / sizeof(float));
  }
  static __device__ void SumReduceBlock(float* dest, const float* source, u64 count) {
    nvshmemx_float_sum_reduce_block(NVSHMEM_TEAM_WORLD, dest, source, count);
  }

 private:
  static void Succeed(int code, const char* what) {
    Require(code == 0, std::string(what) + ": status " + std::to_string(code));
  }
};

}  // namespace mori::bench
