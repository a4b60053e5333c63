// An all-reduce as a user of the device API would write it: each PE reads what all have, and sums.
#pragma once

#include <algorithm>

#include "ours.cuh"
#include "stream_figures.cuh"

namespace mori::bench {

/// Symmetric: block `b` of PE `p` tells others by `[p][b]` how far it is.
struct OneShotFlags {
  static constexpr int kMostPes = 8;
  u64 reached[kMostPes][kMostBlocks];
};

/// Returns once block `blockIdx.x` of all PEs has come to `step`.
template <int kPes>
__device__ void MeetSameBlocks(OneShotFlags* flags, u64 step) {
  __syncthreads();
  const int pe = static_cast<int>(threadIdx.x);
  if (pe < kPes) {
    device::ShmemSignalOp(&flags->reached[device::ShmemMyPe()][blockIdx.x], step,
                          device::Signal::kSet, pe);
    device::ShmemSignalWaitUntil(&flags->reached[pe][blockIdx.x], device::Compare::kGe, step);
  }
  __syncthreads();
}

__device__ inline void AddTo(float* sum, float part) { *sum += part; }
__device__ inline void AddTo(float4* sum, const float4& part) {
  sum->x += part.x;
  sum->y += part.y;
  sum->z += part.z;
  sum->w += part.w;
}

/// In the order of PEs: the same result on all. The loads of a turn are all under way at once.
/// `step` and the one after it are new to the flags.
template <int kPes, typename Number>
__global__ void __launch_bounds__(512, 1)
    SumOfAll(Number* dest, const Number* source, u64 count, OneShotFlags* flags, u64 step) {
  const Number* sources[kPes];
#pragma unroll
  for (int pe = 0; pe < kPes; ++pe) sources[pe] = device::ShmemPtr(source, pe);
  MeetSameBlocks<kPes>(flags, step);  // what others had on their streams before is there
  ForEach(count, [&](u64 i) {
    Number parts[kPes];
#pragma unroll
    for (int pe = 0; pe < kPes; ++pe) parts[pe] = sources[pe][i];
    Number sum = parts[0];
#pragma unroll
    for (int pe = 1; pe < kPes; ++pe) AddTo(&sum, parts[pe]);
    dest[i] = sum;
  });
  MeetSameBlocks<kPes>(flags, step + 1);  // nobody reads our source any more
}

class OneShotFigures {
 public:
  explicit OneShotFigures(Pe<Ours>& pe)
      : pe_(pe), flags_(static_cast<OneShotFlags*>(Ours::Malloc(sizeof(OneShotFlags)))) {
    BENCH_CUDA(cudaMemset(flags_, 0, sizeof(OneShotFlags)));
    BENCH_CUDA(cudaDeviceSynchronize());
    Ours::Barrier();
  }

  void All() {
    StreamFigures<Ours> figures(pe_);
    for (const u64 bytes : Sizes(4 * kMiB)) {
      figures.Figure<Collective::kSumReduce>(Name("one_shot", bytes), bytes,
                                             [&] { Launch(bytes); });
    }
    Ours::Free(flags_);
  }

 private:
  void Launch(u64 bytes) {
    const bool has_vectors = bytes % sizeof(float4) == 0;
    switch (pe_.size()) {
      case 2: return has_vectors ? LaunchFor<2, float4>(bytes) : LaunchFor<2, float>(bytes);
      case 4: return has_vectors ? LaunchFor<4, float4>(bytes) : LaunchFor<4, float>(bytes);
      case 8: return has_vectors ? LaunchFor<8, float4>(bytes) : LaunchFor<8, float>(bytes);
      default: Require(false, "one_shot: written for 2, 4 and 8 PEs");
    }
  }
  /// Blocks of different PEs wait for each other: those of all PEs of a GPU must fit on it.
  template <int kPes, typename Number>
  void LaunchFor(u64 bytes) {
    constexpr u64 kThreads = 512;
    const Side& self = pe_.self();
    const u64 count = bytes / sizeof(Number);
    const u64 most = static_cast<u64>(kMostBlocks / pe_.pes_of_gpu());
    const u64 blocks = std::clamp<u64>((count + kThreads - 1) / kThreads, 1, most);
    SumOfAll<kPes, Number><<<static_cast<unsigned>(blocks), kThreads, 0, self.stream>>>(
        reinterpret_cast<Number*>(self.dest), reinterpret_cast<const Number*>(self.source), count,
        flags_, step_ + 1);
    step_ += 2;
  }

  Pe<Ours>& pe_;
  OneShotFlags* flags_;
  u64 step_ = 0;
};

}  // namespace mori::bench
