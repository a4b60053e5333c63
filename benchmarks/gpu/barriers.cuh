// The figures of barriers: of the host, on a stream, in a kernel.
#pragma once

#include <string>
#include <vector>

#include "pe.cuh"

namespace mori::bench {

template <class L>
class BarrierFigures {
 public:
  explicit BarrierFigures(Pe<L>& pe) : pe_(pe) {}

  void All() {
    pe_.crew().Meet();
    pe_.HostFigure("barrier/host", 15, 100, [](int operations) {
      for (int i = 0; i < operations; ++i) L::Barrier();
    });
    RequireComplete("barrier/host", [&] {
      self_.Finish();
      L::Barrier();
    });
    pe_.HostFigure("barrier/stream", 15, 20, [&](int operations) {
      for (int i = 0; i < operations; ++i) L::BarrierOnStream(self_.stream);
      self_.Finish();
    });
    RequireComplete("barrier/stream", [&] { L::BarrierOnStream(self_.stream); });
    for (const unsigned threads : {32u, 1024u}) KernelFigure(threads);
  }

 private:
  void KernelFigure(unsigned threads) {
    constexpr int kRounds = 1000;
    pe_.crew().Meet();
    const std::string name = Name("barrier/block", threads);
    const std::vector<double> values = RoundUs(self_, 1, kRounds, [&](int rounds) {
      ++value_;
      Barriers<L><<<1, threads, 0, self_.stream>>>(rounds, &self_.words->word, ValueOf(pe_.rank()),
                                                   Next(), self_.spans, self_.result);
      self_.Finish();
      Require(self_.Result() == ValueOf(Previous()), name + ": a put is missing behind it");
    });
    pe_.Add(name, "us", values);
  }

  /// What each puts to the next before a barrier is there after it.
  template <class Barrier>
  void RequireComplete(const std::string& name, Barrier barrier) {
    ++value_;
    PutWord<L><<<1, 1, 0, self_.stream>>>(&self_.words->word, ValueOf(pe_.rank()), Next());
    barrier();
    u64 found = 0;
    BENCH_CUDA(cudaMemcpyAsync(&found, &self_.words->word, sizeof found, cudaMemcpyDeviceToHost,
                               self_.stream));
    self_.Finish();
    Require(found == ValueOf(Previous()), name + ": a put is missing behind the barrier");
    L::Barrier();
  }

  int Next() const { return (pe_.rank() + 1) % pe_.size(); }
  int Previous() const { return (pe_.rank() + pe_.size() - 1) % pe_.size(); }
  /// What `pe` puts now.
  u64 ValueOf(int pe) const { return value_ * 64 + static_cast<u64>(pe); }

  Pe<L>& pe_;
  const Side& self_ = pe_.self();
  u64 value_ = 0;
};

}  // namespace mori::bench
