// The figures of the near and the far side: words, puts and gets, bandwidth, signals.
#pragma once

#include <string>
#include <vector>

#include "stage.cuh"

namespace mori::bench {

template <class L>
class Figures {
 public:
  /// Data of different `salt`s, some thousands apart, are different.
  explicit Figures(const Stage& stage, u32 salt = 0) : stage_(stage), salt_(salt) {}

  void All(const Options& options) {
    if (options.Wants("words")) WordFigures();
    if (options.Wants("put")) {
      for (const u64 bytes : {u64{64}, kKiB, 16 * kKiB, 256 * kKiB, 16 * kMiB})
        PutFigure<Scope::kBlock>("put/block", bytes);
      for (const u64 bytes : Sizes(kMiB)) PutFigure<Scope::kWarp>("put/warp", bytes);
      for (const u64 bytes : Sizes(64 * kKiB)) PutFigure<Scope::kThread>("put/thread", bytes);
    }
    if (options.Wants("get")) {
      for (const u64 bytes : {u64{64}, kKiB, 16 * kKiB, 256 * kKiB, 16 * kMiB})
        GetFigure("get/block", bytes);
    }
    if (options.Wants("bandwidth")) {
      for (const int blocks : {1, 8, 32, 132}) {
        for (const u64 bytes : {16 * kMiB, 256 * kMiB}) BandwidthFigure(blocks, bytes);
      }
    }
    if (options.Wants("signal")) {
      for (const unsigned threads : {32u, 1024u}) {
        for (const u64 bytes : {u64{8}, 16 * kKiB}) SignalFigure(threads, bytes);
      }
    }
  }

  void WordFigures() {
    const Side& near = stage_.near;
    const Side& far = stage_.far;
    const auto read = [&](const u64* word) {
      u64 value = 0;
      BENCH_CUDA(cudaMemcpy(&value, word, sizeof value, cudaMemcpyDeviceToHost));
      return value;
    };
    u64 next = 1;
    const auto clear = [&] {
      stage_.OnFar([&] {
        BENCH_CUDA(cudaMemset(far.words, 0, sizeof(Words)));
        BENCH_CUDA(cudaDeviceSynchronize());
      });
    };
    // What the near side has counted, for the far side to compare: through memory that both reach.
    const auto tell = [&](u64 value) {
      PutWord<L><<<1, 1, 0, near.stream>>>(&far.words->signal, value, far.pe);
      near.Finish();
    };

    OneSided(
        clear,
        [&] {
          Add("p", "us", RoundUs(near, 1, [&](int rounds) {
                PutWords<L>
                    <<<1, 1, 0, near.stream>>>(&far.words->word, next, rounds, far.pe, near.spans);
                next += static_cast<u64>(rounds);
              }));
          tell(next);
        },
        [&] {
          stage_.OnFar([&] {
            Require(read(&far.words->word) + 1 == read(&far.words->signal), "p: the word is wrong");
          });
        });

    u64 count = 0;
    OneSided(
        clear,
        [&] {
          Add("fetch_add", "us", RoundUs(near, 1, [&](int rounds) {
                FetchAddWords<L><<<1, 1, 0, near.stream>>>(far.words->counters, rounds, far.pe,
                                                           near.spans, near.result);
                near.Finish();
                count += static_cast<u64>(rounds);
                Require(near.Result() < count, "fetch_add: what was found is wrong");
              }));
          tell(count);
        },
        [&] {
          stage_.OnFar([&] {
            u64 sum = 0;
            for (int i = 0; i < kCounters; ++i) sum += read(far.words->counters + i * kCounterWords);
            Require(sum == read(&far.words->signal), "fetch_add: the counters are wrong");
          });
        });

    OneSided(
        [&] {
          stage_.OnFar([&] {
            FillChain<<<1024, 256, 0, far.stream>>>(reinterpret_cast<u64*>(far.source),
                                                    kChainWords);
            far.Finish();
          });
          stage_.OnNear([&] { near.SetResult(0); });
        },
        [&] {
          u64 at = 0;
          Add("g", "us", RoundUs(near, 1, [&](int rounds) {
                GetWords<L><<<1, 1, 0, near.stream>>>(reinterpret_cast<const u64*>(far.source),
                                                      rounds, far.pe, near.spans, near.result);
                near.Finish();
                for (int i = 0; i < rounds; ++i) at = NextInChain(at, kChainWords);
                Require(near.Result() == at, "g: a word is wrong");
              }));
        },
        [] {});
  }

  template <Scope S>
  void PutFigure(const std::string& what, u64 bytes) {
    const std::string name = Name(what, bytes);
    const Side& near = stage_.near;
    const Side& far = stage_.far;
    OneSided([&] { PreparePut(bytes); },
             [&] {
               Add(name, "us", RoundUs(near, 1, [&](int rounds) {
                     PutAndQuiet<L, S><<<1, kThreadsOf<S>, 0, near.stream>>>(
                         far.dest, near.source, bytes, rounds, far.pe, near.spans);
                   }));
             },
             [&] { stage_.OnFar([&] { far.RequireFilled(name, far.dest, bytes, salt_); }); });
  }

  void GetFigure(const std::string& what, u64 bytes) {
    const std::string name = Name(what, bytes);
    const Side& near = stage_.near;
    const Side& far = stage_.far;
    const u64 slots = kFarRange / bytes;
    u64 last = 0;
    OneSided(
        [&] {
          stage_.OnFar([&] { far.FillWith(far.source, kFarRange, salt_); });
          stage_.OnNear([&] { near.Clear(near.dest, bytes); });
        },
        [&] {
          Add(name, "us", RoundUs(near, 1, [&](int rounds) {
                GetBlocking<L, Scope::kBlock><<<1, 1024, 0, near.stream>>>(
                    near.dest, far.source, bytes, slots, rounds, far.pe, near.spans);
                last = static_cast<u64>(rounds - 1) % slots;
              }));
          near.RequireFilled(name, near.dest, bytes, salt_, last * bytes / sizeof(u32));
        },
        [] {});
  }

  void BandwidthFigure(int blocks, u64 total) {
    constexpr int kRounds = 10;
    const std::string name = Name("bandwidth", static_cast<u64>(blocks), total);
    const Side& near = stage_.near;
    const Side& far = stage_.far;
    const u64 part = total / static_cast<u64>(blocks) / 128 * 128;
    const u64 bytes = part * static_cast<u64>(blocks);
    OneSided([&] { PreparePut(bytes); },
             [&] {
               std::vector<double> values = RoundUs(near, blocks, kRounds, [&](int rounds) {
                 PutParts<L><<<blocks, 1024, 0, near.stream>>>(far.dest, near.source, part, rounds,
                                                               far.pe, near.spans);
               });
               for (double& value : values) value = static_cast<double>(bytes) / value / 1e3;
               Add(name, "GB/s", values);
             },
             [&] { stage_.OnFar([&] { far.RequireFilled(name, far.dest, bytes, salt_); }); });
  }

  void SignalFigure(unsigned threads, u64 bytes) {
    constexpr int kRounds = 1000;
    ++salt_;
    const std::string name = Name("put_signal", threads, bytes);
    const Side& near = stage_.near;
    const Side& far = stage_.far;
    const auto prepare = [&](const Side& side, u32 salt) {
      side.FillWith(side.source, bytes, salt);
      side.Clear(side.dest, bytes);
      BENCH_CUDA(cudaMemset(side.words, 0, sizeof(Words)));
      BENCH_CUDA(cudaDeviceSynchronize());
    };
    stage_.OnNear([&] { prepare(near, salt_); });
    stage_.OnFar([&] { prepare(far, ~salt_); });
    stage_.Meet();

    u64 first = 1;
    const auto launch = [&](const Side& here, const Side& there, bool leads) {
      const Exchange exchange = {there.dest,          here.source, bytes, &there.words->signal,
                                 &here.words->signal, there.pe,    leads};
      PingPong<L><<<1, threads, 0, here.stream>>>(exchange, first, kRounds, here.spans);
    };
    std::vector<double> values;
    for (int i = 0; i < kSamples + 1; ++i) {
      stage_.OnNear([&] { launch(near, far, true); });
      stage_.OnFar([&] { launch(far, near, false); });
      stage_.OnFar([&] { far.Finish(); });
      stage_.OnNear([&] {
        const double one_way_us = near.SpanUs(1) / kRounds / 2;
        if (i > 0) values.push_back(one_way_us);
      });
      first += kRoundTripsBefore + kRounds;
    }
    stage_.Meet();
    stage_.OnNear([&] {
      near.RequireFilled(name, near.dest, bytes, ~salt_);
      Add(name, "us", values);
    });
    stage_.OnFar([&] { far.RequireFilled(name, far.dest, bytes, salt_); });
    stage_.Meet();
  }

 private:
  void Add(const std::string& name, const char* unit, const std::vector<double>& values) {
    stage_.report->Add(name + stage_.suffix, unit, values);
  }

  /// The near side measures while the far side sleeps.
  template <class Prepare, class Measure, class Check>
  void OneSided(Prepare prepare, Measure measure, Check check) {
    ++salt_;
    prepare();
    stage_.Meet();
    stage_.OnNear(measure);
    stage_.Meet();
    check();
    stage_.Meet();
  }

  void PreparePut(u64 bytes) {
    stage_.OnNear([&] { stage_.near.FillWith(stage_.near.source, bytes, salt_); });
    stage_.OnFar([&] { stage_.far.Clear(stage_.far.dest, bytes); });
  }

  const Stage& stage_;
  u32 salt_;
};

}  // namespace mori::bench
