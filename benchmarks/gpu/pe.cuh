// A PE of a library: its GPU, its memory, and where its figures go.
//
// For the host, a library has: kName, Token, SetEnvironment(heap bytes as text), Version(),
// MakeToken(Token*), Init(rank, size, token), Finalize(), Malloc(bytes), Free(pointer), Barrier(),
// BarrierOnStream(stream); each ends the process where it fails.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "stage.cuh"

namespace mori::bench {

using Clock = std::chrono::steady_clock;
inline double UsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

template <class L>
class Pe {
 public:
  /// Joins the others. Collective, as all else here.
  Pe(const Options& options, const Crew& crew)
      : crew_(crew),
        report_(std::string(L::kName) + (options.as_threads ? "-threads" : ""),
                options.JsonOf(crew.rank())) {
    BENCH_CUDA(cudaGetDeviceCount(&devices_));
    BENCH_CUDA(cudaSetDevice(rank() % devices_));
    BENCH_CUDA(cudaFree(nullptr));
    const double init_ms = Init();
    report_.Fact("version", L::Version());
    report_.Fact("pes", std::to_string(size()));
    report_.Fact("gpus", std::to_string(devices_));
    Add("init", "ms", {init_ms});
  }

  int rank() const { return crew_.rank(); }
  int size() const { return crew_.size(); }
  const Crew& crew() const { return crew_; }
  const Side& self() const { return self_; }
  int pes_of_gpu() const { return (size() + devices_ - 1) / devices_; }

  /// Allocates destination and source of `bytes` and a guard each, and the words.
  void Open(u64 bytes) {
    self_.pe = rank();
    self_.Open();
    self_.dest = static_cast<char*>(L::Malloc(bytes + kGuardBytes));
    self_.source = static_cast<char*>(L::Malloc(bytes + kGuardBytes));
    self_.words = static_cast<Words*>(L::Malloc(sizeof(Words)));
    BENCH_CUDA(cudaMemset(self_.words, 0, sizeof(Words)));
    BENCH_CUDA(cudaDeviceSynchronize());
    L::Barrier();
  }
  /// Gives all back, and leaves.
  void Close() {
    L::Free(self_.words);
    L::Free(self_.source);
    L::Free(self_.dest);
    L::Barrier();
    const auto start = Clock::now();
    L::Finalize();
    const double ms = UsSince(start) / 1e3;
    crew_.Meet();
    Add("finalize", "ms", {ms});
  }

  /// Symmetric: both sides have the same addresses as each PE itself.
  Stage Between(int near_pe, int far_pe) {
    Stage stage;
    stage.near = self_;
    stage.near.pe = near_pe;
    stage.far = self_;
    stage.far.pe = far_pe;
    stage.is_near = rank() == near_pe;
    stage.is_far = rank() == far_pe;
    stage.crew = &crew_;
    stage.report = &report_;
    return stage;
  }

  /// What all have measured together.
  void Add(const std::string& name, const char* unit, const std::vector<double>& values) {
    if (rank() == 0) report_.Add(name, unit, values);
  }
  /// `operation()` as often in each sample; microseconds of one.
  template <class Operation>
  void HostFigure(const std::string& name, int samples, int operations, Operation operation) {
    std::vector<double> values;
    for (int i = 0; i < samples + 1; ++i) {
      L::Barrier();
      const auto start = Clock::now();
      operation(operations);
      if (i > 0) values.push_back(UsSince(start) / operations);
    }
    Add(name, "us", values);
  }

 private:
  double Init() {
    typename L::Token token{};
    crew_.Meet();  // the driver is up on all
    const auto start = Clock::now();
    if (rank() == 0) L::MakeToken(&token);
    crew_.FromFirst(&token);
    L::Init(rank(), size(), token);
    return UsSince(start) / 1e3;
  }

  const Crew& crew_;
  Report report_;
  Side self_;
  int devices_ = 0;
};

}  // namespace mori::bench
