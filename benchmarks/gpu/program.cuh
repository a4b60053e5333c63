// The program of a library: its PEs, every figure, and a checked end.
#pragma once

#include "barriers.cuh"
#include "collective_data.cuh"
#include "figures.cuh"
#include "processes.hpp"

namespace mori::bench {

template <class L>
class Program {
 public:
  Program(const Options& options, const Crew& crew) : options_(options), pe_(options, crew) {}

  void Run() {
    pe_.Open(kMostBytes);
    Figures<L>(pe_.Between(0, 1)).All(options_);
    if (options_.Wants("barrier")) BarrierFigures<L>(pe_).All();
    if (options_.Wants("malloc")) MallocFigure();
    if (options_.Wants("collectives")) CollectiveFigures();
    pe_.Close();
  }

 private:
  void MallocFigure() {
    pe_.crew().Meet();
    pe_.HostFigure("malloc_free", 10, 20, [](int operations) {
      for (int i = 0; i < operations; ++i) L::Free(L::Malloc(kMiB));
    });
  }

  void CollectiveFigures() {
    for (const u64 bytes : {kKiB, 64 * kKiB}) {
      CollectiveFigure<Collective::kBroadcast>("broadcast", bytes);
      CollectiveFigure<Collective::kFCollect>("fcollect", bytes);
      CollectiveFigure<Collective::kAllToAll>("alltoall", bytes);
      CollectiveFigure<Collective::kSumReduce>("sum_reduce", bytes);
    }
  }
  template <Collective C>
  void CollectiveFigure(const std::string& what, u64 bytes) {
    constexpr int kRounds = 200;
    const std::string name = Name(what, bytes);
    const Side& self = pe_.self();
    const CollectiveData<C> data(self, bytes, pe_.size());
    const u32 salt = 1000 * ++salt_;
    data.Prepare(salt);
    L::Barrier();
    const std::vector<double> values = RoundUs(self, 1, kRounds, [&](int rounds) {
      Collectives<L, C>
          <<<1, 1024, 0, self.stream>>>(self.dest, self.source, bytes, rounds, self.spans);
    });
    data.RequireRight(name, salt);
    pe_.Add(name, "us", values);
    L::Barrier();
  }

  const Options& options_;
  Pe<L> pe_;
  u32 salt_ = 0;
};

template <class L>
int Main(int argc, char** argv) {
  const Options options = Options::Parse(argc, argv);
  // All kernels are loaded before one waits for another.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  L::SetEnvironment("1G");
  return RunPes(options, [&](const Crew& crew) { Program<L>(options, crew).Run(); });
}

}  // namespace mori::bench
