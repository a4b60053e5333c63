// The calls on streams on the host backend, where the only stream is null and each call is made at
// once.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "support/stream_bodies.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Failures;
using testing::Pe;
using testing::Right;
using testing::StreamPe;

constexpr std::nullptr_t kStream = nullptr;

class HostStreamPe final : public StreamPe {
 public:
  explicit HostStreamPe(const Pe& of) : StreamPe(of) { pe.Init(); }

  std::vector<void*> Streams() const override { return {kStream}; }
  void Sync(void*) override {}
  std::vector<void*> LocalsOfEachKind(std::size_t bytes) override { return {LocalBytes(bytes)}; }
  void* LocalBytes(std::size_t bytes) override {
    return locals_.emplace_back((bytes + 7) / 8).data();
  }
  void Copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void Fill(std::uint64_t* words, std::uint64_t count, std::uint64_t value) override {
    for (std::uint64_t i = 0; i < count; ++i) words[i] = value + i;
  }
  void Check(const std::uint64_t* words, std::uint64_t count, std::uint64_t value) override {
    for (std::uint64_t i = 0; i < count; ++i) PE_CHECK_EQ(words[i], value + i);
  }
  void End() override { PE_CHECK_EQ(ShmemFinalize(), 0); }

 private:
  std::deque<std::vector<std::uint64_t>> locals_;
};

class Streams : public ::testing::TestWithParam<std::tuple<As, int>> {
 protected:
  void RunAll(const testing::Body& body) const {
    const auto [as, size] = GetParam();
    EXPECT_EQ(Failures(testing::RunAs(as, size, body)), "");
  }
  void RunOn(const testing::StreamBody& body) const {
    RunAll([&body](const Pe& pe) {
      HostStreamPe p(pe);
      body(p);
      p.End();
    });
  }
};
std::string NameOfShape(const ::testing::TestParamInfo<std::tuple<As, int>>& parameter) {
  const auto [as, size] = parameter.param;
  return (as == As::kProcesses ? "Processes" : "Threads") + std::to_string(size);
}
INSTANTIATE_TEST_SUITE_P(Pes, Streams,
                         ::testing::Combine(::testing::Values(As::kProcesses, As::kThreads),
                                            ::testing::Values(1, 2, 5)),
                         NameOfShape);

// ---- puts, signals, meetings

TEST_P(Streams, PutsAndGetsOfEverySizeArrive) {
  RunOn([](StreamPe& p) { testing::CheckPutsAndGets(p, 300'001); });
}
TEST_P(Streams, AfterTheWaitForItsSignalThePutIsThere) {
  RunOn([](StreamPe& p) { testing::CheckSignalledPuts(p, 500, 300); });
}
TEST_P(Streams, AfterABarrierOrASyncWhatAllHavePutIsThere) {
  RunOn([](StreamPe& p) {
    testing::CheckPutsToAll(p, 1, 200, [](std::uint64_t round) {
      if (round % 2 == 1) return ShmemBarrierAllOnStream(kStream);
      PE_CHECK_EQ(ShmemQuietOnStream(kStream), 0);
      return ShmemSyncAllOnStream(kStream);
    });
  });
}

TEST_P(Streams, AWaitTakesEveryComparisonAndDoesNotEndBefore) {
  RunOn([](StreamPe& p) {
    const Pe& pe = p.pe;
    auto* signal = p.Zeroed<std::uint64_t>(1);
    auto* rounds = p.Zeroed<int>(1);
    int round = 0;
    for (const testing::WaitCase& one : testing::kWaitCases) {
      *signal = one.initial;
      ++round;
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      const auto signal_right = [&] {
        ::usleep(500);  // the other is in the wait
        PE_CHECK_EQ(ShmemPutMemOnStream(rounds, &round, sizeof round, Right(pe), kStream), 0);
        PE_CHECK_EQ(ShmemSignalOpOnStream(signal, one.last, SignalOp::kSet, Right(pe), kStream), 0);
      };
      // Around the ring.
      if (pe.rank == 0) signal_right();
      PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, one.cmp, one.value, kStream), 0);
      PE_CHECK_EQ(*rounds, round);
      if (pe.rank != 0) signal_right();
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

// ---- collectives

TEST_P(Streams, CollectivesBringEveryByteToEveryPeAndNoneBeside) {
  RunOn([](StreamPe& p) { testing::CheckByteCollectives(p, 100'003); });
}
TEST_P(Streams, ABroadcastFromItsOwnSourceLeavesItThere) { RunOn(testing::CheckBroadcastInPlace); }
TEST_P(Streams, ReductionsCombineInTheOrderOfPesToTheBit) {
  RunOn([](StreamPe& p) { testing::CheckReductions(p, 160'028); });
}
TEST_P(Streams, CollectivesFollowOneAnother) {
  RunOn([](StreamPe& p) { testing::CheckCollectivesInARow(p, 125, 100); });
}

// ---- errors

/// Each call, right but for its stream. `words` are 16, of which the first 8 may be written to.
std::vector<int> CallAll(std::uint64_t* words, void* stream) {
  std::uint64_t* source = words + 8;
  return {ShmemPutMemOnStream(words, source, 8, 0, stream),
          ShmemGetMemOnStream(words, source, 8, 0, stream),
          ShmemPutMemSignalOnStream(words, source, 8, words + 1, 1, SignalOp::kAdd, 0, stream),
          ShmemSignalOpOnStream(words, 1, SignalOp::kSet, 0, stream),
          ShmemSignalWaitUntilOnStream(words, Cmp::kGe, 0, stream),
          ShmemQuietOnStream(stream),
          ShmemBarrierAllOnStream(stream),
          ShmemSyncAllOnStream(stream),
          ShmemBroadcastMemOnStream(words, source, 8, 0, stream),
          ShmemFCollectMemOnStream(words, source, 8, stream),
          ShmemAllToAllMemOnStream(words, source, 8, stream),
          ShmemSumReduceOnStream(words, source, 1, stream)};
}

TEST_P(Streams, OnlyTheNullStreamIsThere) {
  RunOn([](StreamPe& p) {
    auto* words = p.Zeroed<std::uint64_t>(16);
    p.Fill(words, 16, 1);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    int no_stream = 0;
    for (const int code : CallAll(words, &no_stream))
      testing::ExpectInvalid(code, "the only stream is null");
    PE_CHECK_EQ(ShmemBarrierAll(), 0);  // nobody is in a collective
    p.Check(words, 16, 1);
  });
}

TEST_P(Streams, WithoutAPeEveryCallIsAnError) {
  RunAll([](const Pe& pe) {
    std::uint64_t words[16] = {};
    const auto expect_errors = [&] {
      for (const int code : CallAll(words, kStream))
        PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kNotInitialized));
    };
    // Of several threads, one may have its PE before another has made the first call.
    if (pe.size == 1 || std::get<0>(GetParam()) == As::kProcesses) expect_errors();
    pe.Init();
    PE_CHECK_EQ(ShmemFinalize(), 0);
    expect_errors();
  });
}

TEST_P(Streams, AWrongCallIsAnErrorAndDoesNothing) {
  RunOn([](StreamPe& p) {
    auto* word = p.Zeroed<std::uint64_t>(8);
    std::uint64_t local[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    testing::CheckWrongCalls(p.pe, word, local, kStream);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK(p.Read(word, 8) == std::vector<std::uint64_t>(8));
    p.Check(local, 8, 1);
  });
}

// ---- a PE that is lost

struct LostInCall {
  const char* name;
  int (*call)(std::uint64_t* words);
};
void PrintTo(const LostInCall& lost, std::ostream* out) { *out << lost.name; }

class LostInStreams : public ::testing::TestWithParam<LostInCall> {};
INSTANTIATE_TEST_SUITE_P(
    Calls, LostInStreams,
    ::testing::Values(
        LostInCall{"Wait",
                   [](std::uint64_t* words) {
                     return ShmemSignalWaitUntilOnStream(words, Cmp::kEq, 1, kStream);
                   }},
        LostInCall{"Barrier", [](std::uint64_t*) { return ShmemBarrierAllOnStream(kStream); }},
        LostInCall{"Sync", [](std::uint64_t*) { return ShmemSyncAllOnStream(kStream); }},
        LostInCall{"Broadcast",
                   [](std::uint64_t* words) {
                     return ShmemBroadcastMemOnStream(words, words + 8, 8, 0, kStream);
                   }},
        LostInCall{"FCollect",
                   [](std::uint64_t* words) {
                     return ShmemFCollectMemOnStream(words, words + 8, 8, kStream);
                   }},
        LostInCall{"AllToAll",
                   [](std::uint64_t* words) {
                     return ShmemAllToAllMemOnStream(words, words + 8, 8, kStream);
                   }},
        LostInCall{"Reduce",
                   [](std::uint64_t* words) {
                     return ShmemSumReduceOnStream(words, words + 8, 1, kStream);
                   }}),
    [](const auto& parameter) { return parameter.param.name; });

TEST_P(LostInStreams, EndsTheCallWithAnErrorThatNamesIt) {
  const auto outcomes = testing::RunProcesses(3, [](const Pe& pe) {
    HostStreamPe p(pe);
    auto* words = p.Zeroed<std::uint64_t>(16);
    if (pe.rank == 1) {
      ::usleep(20'000);  // the others are in the call
      ::_exit(0);
    }
    testing::ExpectError(GetParam().call(words), ErrorCode::kPeerLost, "PE 1 (host ");
  });
  EXPECT_EQ(Failures(outcomes), "");
}

/// -0.0 and 0.0 are equal: the result is that of the first PE, to the bit, as for all equals.
TEST(Reduction, OfEqualsTheFirstPesIsTaken) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    auto* zeros = static_cast<double*>(ShmemMalloc(3 * sizeof(double)));
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      for (const double first : {0.0, -0.0}) {
        for (int i = 0; i < 3; ++i) zeros[i] = pe.rank == 0 ? first : -first;
        PE_CHECK_EQ(ShmemReduceOnStream(zeros, zeros, 3, ElementType::kFloat64, op, kStream), 0);
        for (int i = 0; i < 3; ++i) PE_CHECK_EQ(std::signbit(zeros[i]), std::signbit(first));
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(3, body)), "");
}

}  // namespace
}  // namespace mori::shmem
