// Where the shapes run: the near side, which measures, and the far side, whose memory it reaches.
// PEs play one side each; a program without a library plays both.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "crew.hpp"
#include "report.hpp"
#include "shapes.cuh"

namespace mori::bench {

inline void RequireCuda(cudaError_t code, const char* file, int line) {
  if (code != cudaSuccess)
    Require(false,
            std::string(file) + ":" + std::to_string(line) + ": " + cudaGetErrorString(code));
}
#define BENCH_CUDA(call) ::mori::bench::RequireCuda((call), __FILE__, __LINE__)

inline constexpr u64 kKiB = 1024;
inline constexpr u64 kMiB = 1024 * kKiB;
inline constexpr u64 kMostBytes = 256 * kMiB;
inline constexpr u64 kGuardBytes = 64 * kKiB;  // behind each destination: no put may touch it
inline constexpr u64 kFarRange = 64 * kMiB;    // over which words and parts are read
inline constexpr u64 kChainWords = kFarRange / sizeof(u64);
inline constexpr int kMostBlocks = 132;
inline constexpr int kSamples = 7;
inline constexpr unsigned char kCleared = 0xee;
inline constexpr u32 kClearedWord = 0xeeeeeeee;

inline std::string Name(const std::string& what, u64 a) { return what + "/" + std::to_string(a); }
inline std::string Name(const std::string& what, u64 a, u64 b) { return Name(Name(what, a), b); }
/// 8, and the powers of 4 from 16 on.
inline std::vector<u64> Sizes(u64 most) {
  std::vector<u64> sizes = {8};
  for (u64 bytes = 16; bytes <= most; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

/// Words of a side that others reach.
struct Words {
  u64 word;
  u64 pad0[15];
  u64 counters[kCounters * kCounterWords];
  u64 signal;
  u64 pad2[15];
};

/// A PE's memory, and what it runs kernels with.
struct Side {
  int pe = 0;
  int device = 0;
  cudaStream_t stream = nullptr;
  // Reached by the other side too. `kMostBytes` and the guard each.
  char* dest = nullptr;
  char* source = nullptr;
  Words* words = nullptr;
  // Its own.
  Span* spans = nullptr;
  u64* result = nullptr;

  /// Allocates what is its own, on the current device.
  void Open() {
    BENCH_CUDA(cudaGetDevice(&device));
    BENCH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    BENCH_CUDA(cudaMalloc(&spans, kMostBlocks * sizeof(Span)));
    BENCH_CUDA(cudaMalloc(&result, sizeof(u64)));
    BENCH_CUDA(cudaMemset(result, 0, sizeof(u64)));
    for (int i = 0; i < 30; ++i) Spin<<<1, 1, 0, stream>>>(10'000'000);
    Finish();
  }
  void Finish() const {
    BENCH_CUDA(cudaGetLastError());
    BENCH_CUDA(cudaStreamSynchronize(stream));
  }
  void SetResult(u64 value) const {
    BENCH_CUDA(cudaMemcpy(result, &value, sizeof value, cudaMemcpyHostToDevice));
  }
  u64 Result() const {
    u64 value = 0;
    BENCH_CUDA(cudaMemcpy(&value, result, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }
  /// From the first block's begin to the last block's end.
  double SpanUs(int blocks) const {
    Finish();
    Span read[kMostBlocks];
    BENCH_CUDA(
        cudaMemcpy(read, spans, static_cast<u64>(blocks) * sizeof(Span), cudaMemcpyDeviceToHost));
    u64 start = read[0].start_ns;
    u64 end = read[0].end_ns;
    for (int i = 1; i < blocks; ++i) {
      start = std::min(start, read[i].start_ns);
      end = std::max(end, read[i].end_ns);
    }
    return static_cast<double>(end - start) / 1e3;
  }

  /// What `work()` puts on the stream, by the GPU's events.
  template <class Work>
  double EventUs(Work work) const {
    cudaEvent_t start;
    cudaEvent_t end;
    BENCH_CUDA(cudaEventCreate(&start));
    BENCH_CUDA(cudaEventCreate(&end));
    BENCH_CUDA(cudaEventRecord(start, stream));
    work();
    BENCH_CUDA(cudaEventRecord(end, stream));
    Finish();
    float ms = 0;
    BENCH_CUDA(cudaEventElapsedTime(&ms, start, end));
    BENCH_CUDA(cudaEventDestroy(start));
    BENCH_CUDA(cudaEventDestroy(end));
    return static_cast<double>(ms) * 1e3;
  }

  // Data, and whether it is right.
  void FillWith(char* memory, u64 bytes, u32 salt) const {
    Fill<<<1024, 256, 0, stream>>>(reinterpret_cast<u32*>(memory), bytes / sizeof(u32), salt);
    Finish();
  }
  void Clear(char* memory, u64 bytes) const {
    BENCH_CUDA(cudaMemsetAsync(memory, kCleared, bytes + kGuardBytes, stream));
    Finish();
  }
  /// `launch(wrong)` counts into `*wrong`.
  template <class Launch>
  void RequireNoneWrong(const std::string& figure, Launch launch) const {
    SetResult(0);
    launch(result);
    Finish();
    const u64 wrong = Result();
    Require(wrong == 0, figure + ": " + std::to_string(wrong) + " words are wrong");
  }
  /// `bytes` of the pattern from its word `first` on, and nothing behind them.
  void RequireFilled(const std::string& figure, const char* memory, u64 bytes, u32 salt,
                     u64 first = 0) const {
    const auto* there = reinterpret_cast<const u32*>(memory);
    const u64 count = bytes / sizeof(u32);
    RequireNoneWrong(figure, [&](u64* wrong) {
      CountWrong<<<1024, 256, 0, stream>>>(there, count, first, salt, wrong);
      CountOther<<<64, 256, 0, stream>>>(there + count, kGuardBytes / sizeof(u32), kClearedWord,
                                         wrong);
    });
  }
};

struct Stage {
  Side near;
  Side far;
  bool is_near = false;
  bool is_far = false;
  const Crew* crew = nullptr;  ///< none: one process is both sides
  Report* report = nullptr;    ///< of the near side
  std::string suffix;          ///< of its figures' names

  template <class F>
  void OnNear(F f) const {
    if (!is_near) return;
    BENCH_CUDA(cudaSetDevice(near.device));
    f();
  }
  template <class F>
  void OnFar(F f) const {
    if (!is_far) return;
    BENCH_CUDA(cudaSetDevice(far.device));
    f();
  }
  void Meet() const {
    if (crew != nullptr) crew->Meet();
  }
};

/// Microseconds of one round, of several launches. `launch(rounds)` runs a timed kernel of
/// `blocks`; there are as many rounds as take some milliseconds.
template <class Launch>
std::vector<double> RoundUs(const Side& side, int blocks, Launch launch) {
  constexpr double kLaunchUs = 5000;
  const auto time_us = [&](int rounds) {
    launch(rounds);
    return side.SpanUs(blocks) / rounds;
  };
  time_us(2);
  const double about_us = std::max(0.001, time_us(4));
  const int rounds = static_cast<int>(std::clamp(kLaunchUs / about_us, 4.0, 1000.0));
  time_us(rounds);
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(time_us(rounds));
  return samples;
}

/// The same with a number of rounds that both sides know.
template <class Launch>
std::vector<double> RoundUs(const Side& side, int blocks, int rounds, Launch launch) {
  std::vector<double> samples;
  for (int i = 0; i < kSamples + 1; ++i) {
    launch(rounds);
    const double us = side.SpanUs(blocks) / rounds;
    if (i > 0) samples.push_back(us);
  }
  return samples;
}

}  // namespace mori::bench
