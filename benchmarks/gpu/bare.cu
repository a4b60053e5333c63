// What the GPU does without a library, in the same shapes: one process that reaches the second GPU
// where there is one, and the first itself where there is not. Built and started by run.py.
#include "figures.cuh"

namespace mori::bench {
namespace {

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
      const double us = EventUs([&] {
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
      const double us = EventUs([&] {
        for (int k = 0; k < kLaunches; ++k) Nothing<<<1, 32, 0, stage_.near.stream>>>();
      });
      if (i > 0) values.push_back(us / kLaunches);
    }
    report_.Add("launch", "us", values);
  }

  template <class F>
  double EventUs(F work) {
    cudaEvent_t start;
    cudaEvent_t end;
    BENCH_CUDA(cudaEventCreate(&start));
    BENCH_CUDA(cudaEventCreate(&end));
    BENCH_CUDA(cudaEventRecord(start, stage_.near.stream));
    work();
    BENCH_CUDA(cudaEventRecord(end, stage_.near.stream));
    stage_.near.Finish();
    float ms = 0;
    BENCH_CUDA(cudaEventElapsedTime(&ms, start, end));
    BENCH_CUDA(cudaEventDestroy(start));
    BENCH_CUDA(cudaEventDestroy(end));
    return static_cast<double>(ms) * 1e3;
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
  ::alarm(options.limit_s);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return mori::bench::Machine(options).Run();
}
