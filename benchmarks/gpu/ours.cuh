// Our library, as the shapes of shapes.cuh and pe.cuh take it.
#pragma once

#include "mori/shmem/shmem.hpp"
#include "mori/shmem/shmem_device_api.hpp"
#include "pe.cuh"

namespace mori::bench {

namespace device = shmem::device;

struct Ours {
  // ---- host

  static constexpr const char* kName = "mori";
  static constexpr bool kHasKernels = true;
  using Token = shmem::UniqueId;

  static void SetEnvironment(const char* heap_bytes) {
    ::setenv("MORI_SHMEM_BACKEND", "cuda", 1);
    ::setenv("MORI_SHMEM_MODE", "static", 0);
    ::setenv("MORI_SHMEM_HEAP_SIZE", heap_bytes, 0);
    ::setenv("MORI_SOCKET_IFNAME", "lo", 0);
    ::setenv("MORI_BOOTSTRAP_TIMEOUT", "30", 0);
    ::setenv("MORI_GLOBAL_LOG_LEVEL", "WARN", 0);
  }
  static std::string Version() { return shmem::ShmemVersion(); }
  static void MakeToken(Token* token) { Succeed(shmem::ShmemGetUniqueId(token), "unique id"); }
  static void Init(int rank, int size, const Token& token) {
    Succeed(shmem::ShmemInitAttr(shmem::MORI_SHMEM_INIT_WITH_UNIQUEID, rank, size, token), "init");
  }
  static void Finalize() { Succeed(shmem::ShmemFinalize(), "finalize"); }
  static void* Malloc(u64 bytes) {
    void* block = shmem::ShmemMalloc(bytes);
    Require(block != nullptr, std::string("malloc: ") + shmem::ShmemLastError());
    return block;
  }
  static void Free(void* block) { Succeed(shmem::ShmemFree(block), "free"); }
  static void Barrier() { Succeed(shmem::ShmemBarrierAll(), "barrier"); }
  static void BarrierOnStream(cudaStream_t stream) {
    Succeed(shmem::ShmemBarrierAllOnStream(stream), "barrier on stream");
  }
  static void BroadcastOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(shmem::ShmemBroadcastMemOnStream(dest, source, bytes, 0, stream), "broadcast");
  }
  static void FCollectOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(shmem::ShmemFCollectMemOnStream(dest, source, bytes, stream), "fcollect");
  }
  static void AllToAllOnStream(void* dest, const void* source, u64 bytes, cudaStream_t stream) {
    Succeed(shmem::ShmemAllToAllMemOnStream(dest, source, bytes, stream), "all-to-all");
  }
  static void SumReduceOnStream(float* dest, const float* source, u64 count, cudaStream_t stream) {
    Succeed(shmem::ShmemSumReduceOnStream(dest, source, count, stream), "sum reduction");
  }

  // ---- kernels

  static __device__ void P(u64* dest, u64 value, int pe) { device::ShmemP(dest, value, pe); }
  static __device__ u64 G(const u64* source, int pe) { return device::ShmemG(source, pe); }
  static __device__ u64 FetchAdd(u64* target, u64 value, int pe) {
    return device::ShmemAtomicFetchAdd(target, value, pe);
  }
  static __device__ void Quiet() { device::ShmemQuiet(); }

  template <Scope S>
  static __device__ void Put(char* dest, const char* source, u64 bytes, int pe) {
    if constexpr (S == Scope::kThread) device::ShmemPutMem(dest, source, bytes, pe);
    if constexpr (S == Scope::kWarp) device::ShmemPutMemWarp(dest, source, bytes, pe);
    if constexpr (S == Scope::kBlock) device::ShmemPutMemBlock(dest, source, bytes, pe);
  }
  template <Scope S>
  static __device__ void Get(char* dest, const char* source, u64 bytes, int pe) {
    if constexpr (S == Scope::kThread) device::ShmemGetMem(dest, source, bytes, pe);
    if constexpr (S == Scope::kWarp) device::ShmemGetMemWarp(dest, source, bytes, pe);
    if constexpr (S == Scope::kBlock) device::ShmemGetMemBlock(dest, source, bytes, pe);
  }
  static __device__ void PutNbiBlock(char* dest, const char* source, u64 bytes, int pe) {
    device::ShmemPutMemNbiBlock(dest, source, bytes, pe);
  }
  static __device__ void GetNbiBlock(char* dest, const char* source, u64 bytes, int pe) {
    device::ShmemGetMemNbiBlock(dest, source, bytes, pe);
  }
  static __device__ void PutSignalBlock(char* dest, const char* source, u64 bytes, u64* signal,
                                        u64 value, int pe) {
    device::ShmemPutMemSignalBlock(dest, source, bytes, signal, value, device::Signal::kSet, pe);
  }
  static __device__ void WaitSignalBlock(const u64* signal, u64 value) {
    device::ShmemSignalWaitUntilBlock(signal, device::Compare::kGe, value);
  }

  static __device__ void BarrierBlock() { device::ShmemBarrierAllBlock(); }
  static __device__ void BroadcastBlock(void* dest, const void* source, u64 bytes, int root) {
    device::ShmemBroadcastMemBlock(dest, source, bytes, root);
  }
  static __device__ void FCollectBlock(void* dest, const void* source, u64 bytes) {
    device::ShmemFCollectMemBlock(dest, source, bytes);
  }
  static __device__ void AllToAllBlock(void* dest, const void* source, u64 bytes) {
    device::ShmemAllToAllMemBlock(dest, source, bytes);
  }
  static __device__ void SumReduceBlock(float* dest, const float* source, u64 count) {
    device::ShmemSumReduceBlock(dest, source, count);
  }

 private:
  static void Succeed(int code, const char* what) {
    Require(code == 0, std::string(what) + ": " + shmem::ShmemLastError());
  }
};

}  // namespace mori::bench
