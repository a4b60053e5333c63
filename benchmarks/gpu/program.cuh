// The program of a library: its PEs as processes, every figure, and a checked end.
//
// For the host, a library has: Token, SetEnvironment(), Version(), MakeToken(Token*),
// Init(rank, size, token), Finalize(), Malloc(bytes), Free(pointer), Barrier(),
// BarrierOnStream(stream); each ends the process where it fails.
#pragma once

#include <chrono>

#include "figures.cuh"

namespace mori::bench {

template <class L>
class Program {
 public:
  explicit Program(const Options& options)
      : options_(options), processes_(Processes::Start(options.pes, options.limit_s)) {}

  int Run() {
    int devices = 0;
    BENCH_CUDA(cudaGetDeviceCount(&devices));
    BENCH_CUDA(cudaSetDevice(rank() % devices));
    BENCH_CUDA(cudaFree(nullptr));
    const double init_ms = Init();
    Report report(L::kName, rank() == 0 ? options_.json : "");
    report.Fact("version", L::Version());
    report.Fact("pes", std::to_string(size()));
    report.Fact("gpus", std::to_string(devices));
    report_ = &report;
    Add("init", "ms", {init_ms});

    Open();
    Figures<L>(stage_).All(options_);
    if (options_.Wants("barrier")) BarrierFigures();
    if (options_.Wants("malloc")) MallocFigure();
    if (options_.Wants("collectives")) CollectiveFigures();
    Close();
    Add("finalize", "ms", {Finalize()});
    return processes_.End();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double UsSince(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  int rank() const { return processes_.rank(); }
  int size() const { return processes_.size(); }
  void Add(const std::string& name, const char* unit, const std::vector<double>& values) {
    if (rank() == 0) report_->Add(name, unit, values);
  }

  double Init() {
    typename L::Token token{};
    processes_.Meet();  // the driver is up on all
    const auto start = Clock::now();
    if (rank() == 0) L::MakeToken(&token);
    processes_.FromFirst(&token);
    L::Init(rank(), size(), token);
    return UsSince(start) / 1e3;
  }
  double Finalize() {
    L::Barrier();
    const auto start = Clock::now();
    L::Finalize();
    const double ms = UsSince(start) / 1e3;
    processes_.Meet();
    return ms;
  }

  void Open() {
    self_.pe = rank();
    self_.Open();
    self_.dest = static_cast<char*>(L::Malloc(kMostBytes + kGuardBytes));
    self_.source = static_cast<char*>(L::Malloc(kMostBytes + kGuardBytes));
    self_.words = static_cast<Words*>(L::Malloc(sizeof(Words)));
    BENCH_CUDA(cudaMemset(self_.words, 0, sizeof(Words)));
    BENCH_CUDA(cudaDeviceSynchronize());
    L::Barrier();
    // Symmetric: both sides have the same addresses as each PE itself.
    stage_.near = self_;
    stage_.near.pe = 0;
    stage_.far = self_;
    stage_.far.pe = 1;
    stage_.is_near = rank() == 0;
    stage_.is_far = rank() == 1;
    stage_.processes = &processes_;
    stage_.report = report_;
  }
  void Close() {
    L::Free(self_.words);
    L::Free(self_.source);
    L::Free(self_.dest);
  }

  // ---- what all PEs do together

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

  /// What each puts to the next before a barrier is there after it.
  template <class Barrier>
  void RequireComplete(const std::string& name, Barrier barrier) {
    const u64 value = ++value_;
    PutWord<L><<<1, 1, 0, self_.stream>>>(&self_.words->word, value * 64 + rank(), Next());
    barrier();
    u64 found = 0;
    BENCH_CUDA(cudaMemcpyAsync(&found, &self_.words->word, sizeof found, cudaMemcpyDeviceToHost,
                               self_.stream));
    self_.Finish();
    Require(found == value * 64 + Previous(), name + ": a put is missing behind the barrier");
    L::Barrier();
  }
  int Next() const { return (rank() + 1) % size(); }
  u64 Previous() const { return static_cast<u64>((rank() + size() - 1) % size()); }

  void BarrierFigures() {
    constexpr int kRounds = 1000;
    processes_.Meet();
    HostFigure("barrier/host", 15, 100, [](int operations) {
      for (int i = 0; i < operations; ++i) L::Barrier();
    });
    RequireComplete("barrier/host", [&] {
      self_.Finish();
      L::Barrier();
    });
    HostFigure("barrier/stream", 15, 20, [&](int operations) {
      for (int i = 0; i < operations; ++i) L::BarrierOnStream(self_.stream);
      self_.Finish();
    });
    RequireComplete("barrier/stream", [&] { L::BarrierOnStream(self_.stream); });

    for (const unsigned threads : {32u, 1024u}) {
      processes_.Meet();
      const std::string name = Name("barrier/block", threads);
      const std::vector<double> values = RoundUs(self_, 1, kRounds, [&](int rounds) {
        const u64 value = ++value_;
        Barriers<L><<<1, threads, 0, self_.stream>>>(
            rounds, &self_.words->word, value * 64 + rank(), Next(), self_.spans, self_.result);
        self_.Finish();
        Require(self_.Result() == value * 64 + Previous(), name + ": a put is missing behind it");
      });
      Add(name, "us", values);
    }
  }

  void MallocFigure() {
    processes_.Meet();
    HostFigure("malloc_free", 10, 20, [](int operations) {
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
    const u32 salt = 1000 * ++salt_;
    const u32 me = static_cast<u32>(rank());
    const u32 n_pes = static_cast<u32>(size());
    const u64 per_pe = bytes / sizeof(u32);
    if (C == Collective::kSumReduce) {
      FillNumbers<<<64, 256, 0, self_.stream>>>(reinterpret_cast<float*>(self_.source), per_pe,
                                                salt + me);
    } else {
      self_.FillWith(self_.source, bytes * n_pes, salt + me);
    }
    self_.Clear(self_.dest, bytes * n_pes);
    L::Barrier();
    const std::vector<double> values = RoundUs(self_, 1, kRounds, [&](int rounds) {
      Collectives<L, C>
          <<<1, 1024, 0, self_.stream>>>(self_.dest, self_.source, bytes, rounds, self_.spans);
    });
    // Of a broadcast, what the root itself has is not compared.
    const bool is_checked = C != Collective::kBroadcast || me != 0;
    self_.RequireNoneWrong(name, [&](u64* wrong) {
      if (!is_checked) return;
      CountWrongOf<C><<<64, 256, 0, self_.stream>>>(reinterpret_cast<const u32*>(self_.dest),
                                                    per_pe, salt, me, n_pes, wrong);
    });
    Add(name, "us", values);
    L::Barrier();
  }

  const Options& options_;
  Processes processes_;
  Report* report_ = nullptr;
  Side self_;
  Stage stage_;
  u64 value_ = 0;
  u32 salt_ = 0;
};

template <class L>
int Main(int argc, char** argv) {
  const Options options = Options::Parse(argc, argv);
  // All kernels are loaded before one waits for another.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  L::SetEnvironment();
  return Program<L>(options).Run();
}

}  // namespace mori::bench
