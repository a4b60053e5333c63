// What the GPU does without a library, in the same shapes: one process that reaches the second GPU
// where there is one, and the first itself where there is not. Built and started by run.py.
#include "bare.cuh"
#include "figures.cuh"

namespace mori::bench {
namespace {

__global__ void Nothing() {}

/// The whole grid takes turns through the memory.
__global__ void CopyByGrid(uint4* dest, const uint4* source, u64 count) {
  ForEach(count, [=](u64 i) { dest[i] = source[i]; });
}

__global__ void ClockSteps(int steps, u64* ns) {
  u64 now = NowNs();
  u64 first = 0;
  for (int i = 0; i <= steps; ++i) {
    u64 next = now;
    while (next == now) next = NowNs();
    now = next;
    if (i == 0) first = now;
  }
  *ns = now - first;
}

class Machine {
 public:
  explicit Machine(const Options& options) : options_(options), report_("bare", options.json) {}

  int Run() {
    int devices = 0;
    BENCH_CUDA(cudaGetDeviceCount(&devices));
    report_.Fact("gpus", std::to_string(devices));
    const int far_device = devices > 1 ? 1 : 0;
    Open(&stage_.near, 0, 0, far_device);
    Open(&stage_.far, 1, far_device, 0);
    stage_.is_near = true;
    stage_.is_far = true;
    stage_.report = &report_;
    BENCH_CUDA(cudaSetDevice(0));

    constexpr int kSteps = 1000;
    ClockSteps<<<1, 1, 0, stage_.near.stream>>>(kSteps, stage_.near.result);
    stage_.near.Finish();
    report_.Add("clock_step", "ns", {static_cast<double>(stage_.near.Result()) / kSteps});

    Figures<Bare>(stage_).All(options_);
    BENCH_CUDA(cudaSetDevice(0));
    if (options_.Wants("bandwidth")) Copies();
    if (options_.Wants("barrier")) Launches();
    return 0;
  }

 private:
  static void Open(Side* side, int pe, int device, int other) {
    BENCH_CUDA(cudaSetDevice(device));
    BENCH_CUDA(cudaFree(nullptr));
    if (device != other) BENCH_CUDA(cudaDeviceEnablePeerAccess(other, 0));
    side->pe = pe;
    side->Open();
    BENCH_CUDA(cudaMalloc(&side->dest, kMostBytes + kGuardBytes));
    BENCH_CUDA(cudaMalloc(&side->source, kMostBytes + kGuardBytes));
    BENCH_CUDA(cudaMalloc(&side->words, sizeof(Words)));
    BENCH_CUDA(cudaMemset(side->words, 0, sizeof(Words)));
    side->Finish();
  }

  /// Gigabytes a second of ten copies in a row, `copy()` each, by events.
  template <class F>
  void CopyFigure(const std::string& name, F copy) {
    constexpr int kCopies = 10;
    const Side& near = stage_.near;
    const u32 salt = ++salt_;
    near.FillWith(near.source, kMostBytes, salt);
    stage_.OnFar([&] { stage_.far.Clear(stage_.far.dest, kMostBytes); });
    BENCH_CUDA(cudaSetDevice(near.device));
    std::vector<double> values;
    for (int i = 0; i < kSamples + 1; ++i) {
      const double us = near.EventUs([&] {
        for (int k = 0; k < kCopies; ++k) copy();
      });
      if (i > 0) values.push_back(static_cast<double>(kMostBytes) * kCopies / us / 1e3);
    }
    report_.Add(name, "GB/s", values);
    stage_.OnFar([&] { stage_.far.RequireFilled(name, stage_.far.dest, kMostBytes, salt); });
    BENCH_CUDA(cudaSetDevice(near.device));
  }
  void Copies() {
    const Side& near = stage_.near;
    const Side& far = stage_.far;
    for (const dim3 shape : {dim3(132, 1024), dim3(1056, 512)}) {
      CopyFigure(Name("copy_by_grid", shape.x, shape.y), [&] {
        CopyByGrid<<<shape.x, shape.y, 0, near.stream>>>(
            reinterpret_cast<uint4*>(far.dest), reinterpret_cast<const uint4*>(near.source),
            kMostBytes / sizeof(uint4));
      });
    }
    CopyFigure("copy_by_driver", [&] {
      BENCH_CUDA(
          cudaMemcpyAsync(far.dest, near.source, kMostBytes, cudaMemcpyDefault, near.stream));
    });
  }

  void Launches() {
    constexpr int kLaunches = 200;
    std::vector<double> values;
    for (int i = 0; i < kSamples + 1; ++i) {
      const double us = stage_.near.EventUs([&] {
        for (int k = 0; k < kLaunches; ++k) Nothing<<<1, 32, 0, stage_.near.stream>>>();
      });
      if (i > 0) values.push_back(us / kLaunches);
    }
    report_.Add("launch", "us", values);
  }

  const Options& options_;
  Report report_;
  Stage stage_;
  u32 salt_ = 5000;
};

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  const mori::bench::Options options = mori::bench::Options::Parse(argc, argv);
  mori::bench::EndAfter(options.limit_s);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return mori::bench::Machine(options).Run();
}
