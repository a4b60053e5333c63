// What many GPUs do without a library: one process that reaches all. Built and started by scale.py.
#include <vector>

#include "all_at_once.cuh"
#include "bare.cuh"
#include "pairs.cuh"

namespace mori::bench {
namespace {

/// Keeps a stream waiting until the host opens it.
__global__ void AwaitGate(const volatile u32* gate, u32 value) {
  while (*gate < value) {
  }
}

class Machine {
 public:
  explicit Machine(const Options& options)
      : options_(options), report_("bare", options.json), sides_(options.pes) {}

  int Run() {
    int devices = 0;
    BENCH_CUDA(cudaGetDeviceCount(&devices));
    report_.Fact("pes", std::to_string(n_pes()));
    report_.Fact("gpus", std::to_string(devices));
    const int used = std::min(devices, n_pes());
    for (int device = 0; device < used; ++device) {
      BENCH_CUDA(cudaSetDevice(device));
      BENCH_CUDA(cudaFree(nullptr));
      for (int other = 0; other < used; ++other) {
        if (other != device) BENCH_CUDA(cudaDeviceEnablePeerAccess(other, 0));
      }
    }
    for (int pe = 0; pe < n_pes(); ++pe) Open(&sides_[pe], pe, pe % devices);
    BENCH_CUDA(cudaHostAlloc(&gate_, sizeof *gate_, cudaHostAllocPortable));
    *gate_ = 0;

    if (options_.Wants("copy")) Copies();
    PairFigures<Bare>(options_, n_pes(), [&](int from, int to) {
      Stage stage;
      stage.near = sides_[from];
      stage.far = sides_[to];
      stage.is_near = true;
      stage.is_far = true;
      stage.report = &report_;
      return stage;
    });
    if (options_.Wants("all")) {
      AtOnceFigure("all_put", &PutToAll<Bare>);
      AtOnceFigure("all_get", &GetFromAll<Bare>);
    }
    return 0;
  }

 private:
  static constexpr int kCopies = 8;  // a sample

  int n_pes() const { return options_.pes; }

  void Open(Side* side, int pe, int device) const {
    BENCH_CUDA(cudaSetDevice(device));
    const u64 bytes = std::max(kMostBytes, static_cast<u64>(n_pes()) * kSlotStride) + kGuardBytes;
    side->pe = pe;
    side->Open();
    BENCH_CUDA(cudaMalloc(&side->dest, bytes));
    BENCH_CUDA(cudaMalloc(&side->source, bytes));
    BENCH_CUDA(cudaMalloc(&side->words, sizeof(Words)));
    BENCH_CUDA(cudaMemset(side->words, 0, sizeof(Words)));
    BENCH_CUDA(cudaDeviceSynchronize());
  }
  static const Side& On(const Side& side) {
    BENCH_CUDA(cudaSetDevice(side.device));
    return side;
  }

  /// By the copy engine: each pair alone, then in both directions at once.
  void Copies() {
    for (int from = 0; from < n_pes(); ++from) {
      for (int to = 0; to < n_pes(); ++to) {
        if (to != from) CopyFigure("copy" + PairSuffix(from, to), {{from, to}});
      }
    }
    for (int a = 0; a < n_pes(); ++a) {
      for (int b = a + 1; b < n_pes(); ++b)
        CopyFigure("copy_both" + PairSuffix(a, b), {{a, b}, {b, a}});
    }
  }

  struct Way {
    int from;
    int to;
  };
  void CopyFigure(const std::string& name, const std::vector<Way>& ways) {
    const double bytes =
        static_cast<double>(kMostBytes) * kCopies * static_cast<double>(ways.size());
    std::vector<double> rates;
    for (int sample = 0; sample < kSamples + 1; ++sample) {
      const u32 salt = salt_ += 100;
      for (const Way& way : ways) {
        On(sides_[way.from]).FillWith(sides_[way.from].source, kMostBytes, SaltOf(salt, way));
        On(sides_[way.to]).Clear(sides_[way.to].dest, kMostBytes);
      }
      const auto start = Clock::now();
      for (int i = 0; i < kCopies; ++i) {
        for (const Way& way : ways) Copy(sides_[way.from], sides_[way.to]);
      }
      for (const Way& way : ways) On(sides_[way.from]).Finish();
      if (sample > 0) rates.push_back(bytes / UsSince(start) / 1e3);
      for (const Way& way : ways) {
        On(sides_[way.to]).RequireFilled(name, sides_[way.to].dest, kMostBytes, SaltOf(salt, way));
      }
    }
    report_.Add(name, "GB/s", rates);
  }
  static void Copy(const Side& from, const Side& to) {
    BENCH_CUDA(cudaMemcpyPeerAsync(to.dest, to.device, On(from).source, from.device, kMostBytes,
                                   from.stream));
  }
  static u32 SaltOf(u32 salt, const Way& way) { return salt + static_cast<u32>(way.from); }

  template <class Kernel>
  void AtOnceFigure(const std::string& name, Kernel kernel) {
    AtOnce figure(name, n_pes());
    Reach reach{};
    reach.n_pes = n_pes();
    for (int pe = 0; pe < n_pes(); ++pe) {
      reach.dest[pe] = sides_[pe].dest;
      reach.source[pe] = sides_[pe].source;
    }
    for (u32 sample = 0; sample < kSamples + 1; ++sample) {
      for (const Side& side : sides_) figure.Prepare(On(side), sample);
      const u32 opened = *gate_ + 1;
      for (const Side& side : sides_) {
        reach.my_pe = side.pe;
        AwaitGate<<<1, 1, 0, On(side).stream>>>(gate_, opened);
        kernel<<<AtOnce::kBlocks, 1024, 0, side.stream>>>(reach, AtOnce::kPart, figure.rounds(),
                                                          side.spans);
        BENCH_CUDA(cudaGetLastError());
      }
      __atomic_store_n(gate_, opened, __ATOMIC_RELEASE);
      std::vector<double> us;
      for (const Side& side : sides_) us.push_back(On(side).SpanUs(AtOnce::kBlocks));
      for (const Side& side : sides_) figure.RequireRight(On(side), sample);
      if (sample > 0) figure.Took(us);
    }
    figure.Rates([&](const std::string& rate, const char* unit, const std::vector<double>& values) {
      report_.Add(rate, unit, values);
    });
  }

  const Options& options_;
  Report report_;
  std::vector<Side> sides_;
  u32* gate_ = nullptr;
  u32 salt_ = 0;
};

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  const mori::bench::Options options = mori::bench::Options::Parse(argc, argv);
  mori::bench::EndAfter(options.limit_s);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  return mori::bench::Machine(options).Run();
}
