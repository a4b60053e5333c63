// The figures of collectives on a stream: broadcast, all-gather, all-to-all, sum reduction.
//
// A library has, besides what pe.cuh says: BroadcastOnStream(dest, source, bytes, stream) by PE 0,
// FCollectOnStream and AllToAllOnStream of the same, SumReduceOnStream(dest, source, count, stream)
// of floats.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "collective_data.cuh"
#include "pe.cuh"

namespace mori::bench {

template <class L>
class StreamFigures {
 public:
  explicit StreamFigures(Pe<L>& pe) : pe_(pe) {}

  void All(const Options& options) {
    if (options.Wants("allreduce")) {
      for (const u64 bytes : Sizes(64 * kMiB)) Library<Collective::kSumReduce>("sum_reduce", bytes);
    }
    if (options.Wants("collectives")) {
      for (u64 bytes = kKiB; bytes <= 64 * kMiB; bytes *= 16) {
        Library<Collective::kBroadcast>("broadcast", bytes);
        Library<Collective::kFCollect>("fcollect", bytes);
        Library<Collective::kAllToAll>("alltoall", bytes);
      }
    }
  }

  /// The time of `call()`, which puts a collective on the stream, one behind the other; that of the
  /// PE that takes longest. Each sample has other data.
  template <Collective C, class Call>
  void Figure(const std::string& name, u64 bytes, Call call) {
    constexpr double kSampleUs = 5000;
    constexpr double kSlowUs = 20000;
    const Side& self = pe_.self();
    const CollectiveData<C> data(self, bytes, pe_.size());
    data.Prepare(NextSalt());
    const auto time_us = [&](int calls) {
      const u32 salt = NextSalt();
      data.Fill(salt);
      L::BarrierOnStream(self.stream);  // all begin together, and no source is still filled
      const double us = self.EventUs([&] {
        for (int i = 0; i < calls; ++i) call();
      });
      data.RequireRight(name, salt);
      return pe_.crew().Most(us) / calls;
    };
    time_us(2);
    const double about_us = std::max(1.0, time_us(2));  // the same for all PEs, and what follows
    const int calls = static_cast<int>(std::clamp(kSampleUs / about_us, 2.0, 50.0));
    std::vector<double> values;
    for (int i = 0; i < (about_us < kSlowUs ? kSamples : 3); ++i) values.push_back(time_us(calls));
    pe_.Add(name, "us", values);
  }

 private:
  template <Collective C>
  void Library(const std::string& what, u64 bytes) {
    const Side& self = pe_.self();
    Figure<C>(Name(what, bytes), bytes, [&] {
      if constexpr (C == Collective::kBroadcast)
        L::BroadcastOnStream(self.dest, self.source, bytes, self.stream);
      if constexpr (C == Collective::kFCollect)
        L::FCollectOnStream(self.dest, self.source, bytes, self.stream);
      if constexpr (C == Collective::kAllToAll)
        L::AllToAllOnStream(self.dest, self.source, bytes, self.stream);
      if constexpr (C == Collective::kSumReduce)
        L::SumReduceOnStream(reinterpret_cast<float*>(self.dest),
                             reinterpret_cast<const float*>(self.source), bytes / sizeof(float),
                             self.stream);
    });
  }
  u32 NextSalt() { return salt_ += 1000; }

  Pe<L>& pe_;
  u32 salt_ = 0;
};

}  // namespace mori::bench
