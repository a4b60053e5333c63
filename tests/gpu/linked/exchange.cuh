// A kernel of the translation unit that includes this, and whether it works: it takes its PE from
// the state that the unit has without shmem_module_init().
#pragma once

#include <cstdio>
#include <vector>

#include "mori/shmem/shmem.hpp"
#include "mori/shmem/shmem_device_api.hpp"

namespace {

constexpr int kWords = 500;

/// Symmetric.
struct Exchanged {
  unsigned long long source[kWords];
  unsigned long long dest[kWords];
  unsigned long long signal;
  unsigned long long errors;
  int pe;
  int n_pes;
};

/// Each of two PEs sends the other its words.
__global__ void ExchangeKernel(Exchanged* exchanged) {
  namespace device = mori::shmem::device;
  const int peer = 1 - device::ShmemMyPe();
  const auto value = [](int pe, int i) {
    return 1000ull * static_cast<unsigned long long>(pe + 1) + static_cast<unsigned long long>(i);
  };
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += static_cast<int>(blockDim.x))
    exchanged->source[i] = value(1 - peer, i);
  __syncthreads();
  device::ShmemPutMemSignalBlock(exchanged->dest, exchanged->source, sizeof exchanged->dest,
                                 &exchanged->signal, 1, device::Signal::kSet, peer);
  device::ShmemSignalWaitUntilBlock(&exchanged->signal, device::Compare::kEq, 1);
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += static_cast<int>(blockDim.x)) {
    if (exchanged->dest[i] != value(peer, i))
      device::ShmemAtomicAdd(&exchanged->errors, 1ull, 1 - peer);
  }
  exchanged->pe = device::ShmemMyPe();
  exchanged->n_pes = device::ShmemNPes();
  device::ShmemBarrierAllBlock();
}

/// Collective. @return whether the kernel of this unit did what it should
bool Exchange() {
  namespace shmem = mori::shmem;
  auto* exchanged = static_cast<Exchanged*>(shmem::ShmemMalloc(sizeof(Exchanged)));
  if (exchanged == nullptr) return false;
  Exchanged seen = {};
  const int me = shmem::ShmemMyPe();
  bool is_right = shmem::ShmemPutMem(exchanged, &seen, sizeof seen, me) == 0 &&
                  shmem::ShmemBarrierAll() == 0 &&
                  cudaSetDevice(shmem::ShmemDevice()) == cudaSuccess;
  if (!is_right) return false;
  ExchangeKernel<<<1, 64>>>(exchanged);
  const cudaError_t launched = cudaGetLastError();
  const cudaError_t ended = cudaDeviceSynchronize();
  if (launched != cudaSuccess || ended != cudaSuccess) {
    std::printf("launch: %s; end: %s\n", cudaGetErrorString(launched), cudaGetErrorString(ended));
    return false;
  }
  is_right = shmem::ShmemGetMem(&seen, exchanged, sizeof seen, me) == 0 && seen.pe == me &&
             seen.n_pes == 2 && seen.errors == 0 && seen.signal == 1;
  return shmem::ShmemFree(exchanged) == 0 && is_right;
}

}  // namespace
