// What the GPU does without a library, as the shapes of shapes.cuh take it.
#pragma once

#include "shapes.cuh"

namespace mori::bench {

/// Addresses are already those of the memory that is reached.
struct Bare {
  static __device__ void P(u64* dest, u64 value, int) { *static_cast<volatile u64*>(dest) = value; }
  static __device__ u64 G(const u64* source, int) {
    return *static_cast<const volatile u64*>(source);
  }
  static __device__ u64 FetchAdd(u64* target, u64 value, int) {
    return atomicAdd_system(target, value);
  }
  static __device__ void Quiet() { __threadfence_system(); }

  template <Scope S>
  static __device__ void Put(char* dest, const char* source, u64 bytes, int) {
    Copy<S>(dest, source, bytes);
    Sync<S>();
  }
  template <Scope S>
  static __device__ void Get(char* dest, const char* source, u64 bytes, int) {
    Copy<S>(dest, source, bytes);
    Sync<S>();
  }
  static __device__ void PutNbiBlock(char* dest, const char* source, u64 bytes, int) {
    Copy<Scope::kBlock>(dest, source, bytes);
  }
  static __device__ void GetNbiBlock(char* dest, const char* source, u64 bytes, int) {
    Copy<Scope::kBlock>(dest, source, bytes);
  }
  static __device__ void PutSignalBlock(char* dest, const char* source, u64 bytes, u64* signal,
                                        u64 value, int) {
    Copy<Scope::kBlock>(dest, source, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      *static_cast<volatile u64*>(signal) = value;
    }
  }
  static __device__ void WaitSignalBlock(const u64* signal, u64 value) {
    if (threadIdx.x == 0) {
      while (*static_cast<const volatile u64*>(signal) < value) {
      }
      __threadfence_system();
    }
    __syncthreads();
  }

 private:
  template <Scope S>
  static __device__ void Copy(char* dest, const char* source, u64 bytes) {
    if (bytes % sizeof(uint4) == 0) {
      CopyWords<S>(reinterpret_cast<uint4*>(dest), reinterpret_cast<const uint4*>(source),
                   bytes / sizeof(uint4));
    } else {
      CopyWords<S>(reinterpret_cast<u64*>(dest), reinterpret_cast<const u64*>(source),
                   bytes / sizeof(u64));
    }
  }
  template <Scope S, typename Word>
  static __device__ void CopyWords(Word* dest, const Word* source, u64 count) {
    constexpr int kUnroll = 4;
    constexpr bool is_shared = S != Scope::kThread;
    const u64 size = is_shared ? blockDim.x : 1;
    u64 i = is_shared ? threadIdx.x : 0;
    for (; i + (kUnroll - 1) * size < count; i += kUnroll * size) {
      Word words[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) words[k] = source[i + k * size];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) dest[i + k * size] = words[k];
    }
    for (; i < count; i += size) dest[i] = source[i];
  }
};

}  // namespace mori::bench
