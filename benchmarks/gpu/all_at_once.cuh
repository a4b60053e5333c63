// Every PE puts to, or gets from, every other PE at the same time, by one kernel each.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "pe.cuh"

namespace mori::bench {

inline constexpr int kMostAtOnce = 8;         // PEs
inline constexpr u64 kSlotBytes = 64 * kMiB;  // from each PE to each other
inline constexpr u64 kSlotStride = kSlotBytes + kGuardBytes;

/// Slot `p` of a PE's source is what PE `p` is to have; slot `p` of its destination, what comes of
/// PE `p`. By PE, as the library takes addresses.
struct Reach {
  char* dest[kMostAtOnce];
  const char* source[kMostAtOnce];
  int my_pe;
  int n_pes;
};

/// Each block moves its part of each slot, and begins with another peer than the block before it.
template <class Move>
__device__ void VisitPeers(const Reach& reach, int rounds, Move move) {
  const int others = reach.n_pes - 1;
  for (int i = 0; i < rounds; ++i) {
    for (int k = 0; k < others; ++k) {
      const int turn = (static_cast<int>(blockIdx.x) + k) % others;
      move((reach.my_pe + 1 + turn) % reach.n_pes);
    }
  }
}

template <class L>
__global__ void __launch_bounds__(1024)
    PutToAll(const __grid_constant__ Reach reach, u64 part, int rounds, Span* spans) {
  const u64 offset = blockIdx.x * part;
  const char* const source = reach.source[reach.my_pe] + offset;
  const Stopwatch stopwatch;
  VisitPeers(reach, rounds, [&](int pe) {
    L::PutNbiBlock(reach.dest[pe] + reach.my_pe * kSlotStride + offset, source + pe * kSlotStride,
                   part, pe);
  });
  __syncthreads();
  if (threadIdx.x == 0) L::Quiet();
  stopwatch.Stop(spans);
}

template <class L>
__global__ void __launch_bounds__(1024)
    GetFromAll(const __grid_constant__ Reach reach, u64 part, int rounds, Span* spans) {
  const u64 offset = blockIdx.x * part;
  char* const dest = reach.dest[reach.my_pe] + offset;
  const Stopwatch stopwatch;
  VisitPeers(reach, rounds, [&](int pe) {
    L::GetNbiBlock(dest + pe * kSlotStride, reach.source[pe] + reach.my_pe * kSlotStride + offset,
                   part, pe);
  });
  __syncthreads();
  if (threadIdx.x == 0) L::Quiet();
  stopwatch.Stop(spans);
}

/// What all programs do alike: data, shape of the kernels, rates.
class AtOnce {
 public:
  AtOnce(std::string name, int n_pes) : name_(std::move(name)), n_pes_(n_pes), pe_rates_(n_pes) {
    Require(n_pes <= kMostAtOnce, name_ + ": too many PEs");
  }

  static constexpr int kBlocks = kMostBlocks;
  static constexpr u64 kPart = kSlotBytes / kBlocks / 128 * 128;
  static constexpr u64 kBytes = kPart * kBlocks;
  int rounds() const { return std::max(2, 28 / (n_pes_ - 1)); }

  void Prepare(const Side& side, u32 sample) const {
    for (int pe = 0; pe < n_pes_; ++pe) {
      side.Clear(side.dest + pe * kSlotStride, kSlotBytes);
      if (pe != side.pe)
        side.FillWith(side.source + pe * kSlotStride, kSlotBytes, SaltOf(sample, side.pe, pe));
    }
  }
  void RequireRight(const Side& side, u32 sample) const {
    for (int pe = 0; pe < n_pes_; ++pe) {
      if (pe != side.pe)
        side.RequireFilled(name_, side.dest + pe * kSlotStride, kBytes,
                           SaltOf(sample, pe, side.pe));
    }
  }

  /// What each PE took in a sample.
  void Took(const std::vector<double>& us) {
    const double gigabytes = static_cast<double>(kBytes) * rounds() * (n_pes_ - 1) / 1e9;
    total_.push_back(gigabytes * n_pes_ / *std::max_element(us.begin(), us.end()) * 1e6);
    for (int pe = 0; pe < n_pes_; ++pe) pe_rates_[pe].push_back(gigabytes / us[pe] * 1e6);
  }
  /// The rate of all together, from the first to the last, and each one's own. `add(name, unit,
  /// values)`.
  template <class Add>
  void Rates(Add add) const {
    add(name_, "GB/s", total_);
    for (int pe = 0; pe < n_pes_; ++pe)
      add(Name(name_ + "_of", static_cast<u64>(pe)), "GB/s", pe_rates_[pe]);
  }

 private:
  static u32 SaltOf(u32 sample, int from, int to) {
    return sample * 4096 + static_cast<u32>(from * 64 + to);
  }

  std::string name_;
  int n_pes_;
  std::vector<double> total_;
  std::vector<std::vector<double>> pe_rates_;
};

/// As the PEs of a library.
template <class L>
class AtOnceFigures {
 public:
  explicit AtOnceFigures(Pe<L>& pe) : pe_(pe) {
    for (int i = 0; i < pe.size() && i < kMostAtOnce; ++i) {
      reach_.dest[i] = pe.self().dest;
      reach_.source[i] = pe.self().source;
    }
    reach_.my_pe = pe.rank();
    reach_.n_pes = pe.size();
  }

  void All() {
    Figure("all_put", &PutToAll<L>);
    Figure("all_get", &GetFromAll<L>);
  }

 private:
  template <class Kernel>
  void Figure(const std::string& name, Kernel kernel) {
    const Side& self = pe_.self();
    AtOnce figure(name, pe_.size());
    for (u32 sample = 0; sample < kSamples + 1; ++sample) {
      figure.Prepare(self, sample);
      L::BarrierOnStream(self.stream);  // all begin together
      kernel<<<AtOnce::kBlocks, 1024, 0, self.stream>>>(reach_, AtOnce::kPart, figure.rounds(),
                                                        self.spans);
      const std::vector<double> us = pe_.crew().FromAll(self.SpanUs(AtOnce::kBlocks));
      figure.RequireRight(self, sample);
      if (sample > 0) figure.Took(us);
      pe_.crew().Meet();  // nobody gets from a source that is filled again
    }
    figure.Rates([&](const std::string& rate, const char* unit, const std::vector<double>& values) {
      pe_.Add(rate, unit, values);
    });
  }

  Pe<L>& pe_;
  Reach reach_{};
};

}  // namespace mori::bench
