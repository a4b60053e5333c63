// The calls on streams on the host backend, where the only stream is null and each call is made at
// once.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "support/collective_data.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Bytes;
using testing::Exchanged;
using testing::Failures;
using testing::Gathered;
using testing::Pe;
using testing::Sent;

class Streams : public ::testing::TestWithParam<std::tuple<As, int>> {
 protected:
  void RunAll(const testing::Body& body) const {
    const auto [as, size] = GetParam();
    EXPECT_EQ(Failures(testing::RunAs(as, size, body)), "");
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

constexpr std::nullptr_t kStream = nullptr;

int Right(const Pe& pe) { return (pe.rank + 1) % pe.size; }
int Left(const Pe& pe) { return (pe.rank + pe.size - 1) % pe.size; }

/// Symmetric memory of zeros, on all PEs.
template <typename T>
T* Zeroed(std::size_t count) {
  auto* block = static_cast<T*>(ShmemMalloc(count * sizeof(T)));
  PE_CHECK(block != nullptr);
  std::memset(block, 0, count * sizeof(T));
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  return block;
}
template <typename T>
std::vector<T> Read(const T* block, std::size_t count) {
  return std::vector<T>(block, block + count);
}
template <typename T>
void Write(T* block, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(block, values.data(), values.size() * sizeof(T));
}

// ---- put, get, signals

TEST_P(Streams, PutsAndGetsOfEverySizeArrive) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kMost = 300'001;
    auto* dest = Zeroed<std::uint8_t>(kMost + 1);
    auto* symmetric = Zeroed<std::uint8_t>(kMost);
    Bytes local(kMost);
    int round = 0;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, kMost}) {
      for (std::uint8_t* source : {local.data(), symmetric}) {
        const Bytes sent = Sent(pe.rank, ++round, bytes);
        if (bytes > 0) std::memcpy(source, sent.data(), bytes);
        dest[bytes] = 0xee;
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemPutMemOnStream(dest, source, bytes, Right(pe), kStream), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK(Read(dest, bytes) == Sent(Left(pe), round, bytes));
        PE_CHECK_EQ(int{dest[bytes]}, 0xee);
        std::memset(source, 0, bytes);
        PE_CHECK_EQ(ShmemGetMemOnStream(source, dest, bytes, Right(pe), kStream), 0);
        PE_CHECK(Read(source, bytes) == sent);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

// Were the signal not ordered behind the data, who waits would find words of an earlier round.
TEST_P(Streams, AfterTheWaitForItsSignalThePutIsThere) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kWords = 500;
    auto* data = Zeroed<std::uint64_t>(kWords);
    auto* signal = Zeroed<std::uint64_t>(1);
    std::vector<std::uint64_t> source(kWords);
    for (std::uint64_t round = 1; round <= 300; ++round) {
      for (std::size_t i = 0; i < kWords; ++i) source[i] = round * 1000 + i;
      const bool adds = round % 2 == 1;
      PE_CHECK_EQ(
          ShmemPutMemSignalOnStream(data, source.data(), kWords * 8, signal, adds ? 1 : round,
                                    adds ? SignalOp::kAdd : SignalOp::kSet, Right(pe), kStream),
          0);
      PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, Cmp::kGe, round, kStream), 0);
      PE_CHECK(Read(data, kWords) == source);
      PE_CHECK_EQ(ShmemBarrierAllOnStream(kStream), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Streams, AWaitTakesEveryComparisonAndDoesNotEndBefore) {
  struct Case {
    Cmp cmp;
    std::uint64_t initial, value, last;
  };
  constexpr std::uint64_t kTop = ~std::uint64_t{0};
  static constexpr Case kCases[] = {{Cmp::kEq, 1, 7, 7},       {Cmp::kNe, 7, 7, 1},
                                    {Cmp::kGt, 7, 7, kTop},    {Cmp::kGe, 6, 7, 7},
                                    {Cmp::kLt, kTop, kTop, 1}, {Cmp::kLe, kTop, 7, 7}};
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* signal = Zeroed<std::uint64_t>(1);
    auto* rounds = Zeroed<int>(1);
    int round = 0;
    for (const Case& one : kCases) {
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
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

// ---- meetings

TEST_P(Streams, AfterABarrierOrASyncWhatAllHavePutIsThere) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* words = Zeroed<std::uint64_t>(static_cast<std::size_t>(pe.size));
    for (std::uint64_t round = 1; round <= 200; ++round) {
      const bool syncs = round % 2 == 0;
      const auto meet = [&] {
        if (!syncs) return ShmemBarrierAllOnStream(kStream);
        PE_CHECK_EQ(ShmemQuietOnStream(kStream), 0);
        return ShmemSyncAllOnStream(kStream);
      };
      for (int to = 0; to < pe.size; ++to)
        PE_CHECK_EQ(ShmemPutMemOnStream(words + pe.rank, &round, sizeof round, to, kStream), 0);
      PE_CHECK_EQ(meet(), 0);
      for (int from = 0; from < pe.size; ++from) PE_CHECK_EQ(words[from], round);
      PE_CHECK_EQ(meet(), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

// ---- collectives

TEST_P(Streams, CollectivesBringEveryByteToEveryPeAndNoneBeside) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kMost = 100'003;
    const std::size_t room = kMost * static_cast<std::size_t>(pe.size) + 1;
    auto* source = Zeroed<std::uint8_t>(room);
    auto* dest = Zeroed<std::uint8_t>(room);
    const auto run = [&](const Bytes& sent, Bytes expected, auto call) {
      Write(source, sent);
      std::memset(dest, 0xee, room);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(call(), 0);
      std::memset(source, 0, room);  // it may be written to from here on
      expected.resize(room, 0xee);
      PE_CHECK(Read(dest, room) == expected);
    };
    int round = 0;
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(pe.size) - 1, std::size_t{4096},
          kMost}) {
      for (int root = 0; root < pe.size; ++root) {
        ++round;
        run(Sent(pe.rank, round, bytes), Sent(root, round, bytes),
            [&] { return ShmemBroadcastMemOnStream(dest, source, bytes, root, kStream); });
      }
      ++round;
      run(Sent(pe.rank, round, bytes), Gathered(pe.size, round, bytes),
          [&] { return ShmemFCollectMemOnStream(dest, source, bytes, kStream); });
      run(Sent(pe.rank, round, bytes * static_cast<std::size_t>(pe.size)),
          Exchanged(pe.rank, pe.size, round, bytes),
          [&] { return ShmemAllToAllMemOnStream(dest, source, bytes, kStream); });
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Streams, ABroadcastFromItsOwnSourceLeavesItThere) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = 5000;
    auto* block = Zeroed<std::uint8_t>(kBytes);
    Write(block, Sent(pe.rank, 1, kBytes));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemBroadcastMemOnStream(block, block, kBytes, pe.size - 1, kStream), 0);
    PE_CHECK(Read(block, kBytes) == Sent(pe.size - 1, 1, kBytes));
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

template <typename T>
int Reduce(T* dest, const T* source, std::size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ShmemSumReduceOnStream(dest, source, count, kStream);
    case ReduceOp::kMin: return ShmemMinReduceOnStream(dest, source, count, kStream);
    case ReduceOp::kMax: return ShmemMaxReduceOnStream(dest, source, count, kStream);
  }
  return -1;
}
template <typename T>
void CheckReductions(const Pe& pe, const char* type) {
  constexpr std::size_t kMost = 20'003;
  T* source = Zeroed<T>(kMost + 1);
  T* dest = Zeroed<T>(kMost + 1);
  unsigned seed = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(pe.size) - 1, std::size_t{1000},
        kMost}) {
    for (const auto& [op, name] : testing::kReduceOps) {
      ++seed;
      const T untouched = testing::ElementOf<T>(pe.rank, count, seed);
      const auto mine = testing::ElementsOf<T>(pe.rank, count + 1, seed);
      auto expected = testing::CombinedElements<T>(op, pe.size, count, seed);
      expected.push_back(untouched);
      for (const bool in_place : {false, true}) {
        Write(dest, in_place ? mine : std::vector<T>(count + 1, untouched));
        Write(source, mine);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(Reduce(dest, in_place ? dest : source, count, op), 0);
        if (!testing::SameBits(Read(dest, count + 1), expected))
          throw testing::PeFailure(fmt::format("{} of {} {}{} is wrong", name, count, type,
                                               in_place ? " in place" : ""));
        PE_CHECK(testing::SameBits(Read(source, count + 1), mine));
      }
    }
  }
  PE_CHECK_EQ(ShmemFree(dest), 0);
  PE_CHECK_EQ(ShmemFree(source), 0);
}
// The same bits on all PEs, which are those of combining in the order of PEs.
TEST_P(Streams, ReductionsCombineInTheOrderOfPesToTheBit) {
  RunAll([](const Pe& pe) {
    pe.Init();
    CheckReductions<std::int32_t>(pe, "int32");
    CheckReductions<std::uint32_t>(pe, "uint32");
    CheckReductions<std::int64_t>(pe, "int64");
    CheckReductions<std::uint64_t>(pe, "uint64");
    CheckReductions<float>(pe, "float32");
    CheckReductions<double>(pe, "float64");
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Only before a destination is used again, all PEs meet.
TEST_P(Streams, CollectivesFollowOneAnother) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = 1000;
    const std::size_t all = kBytes * static_cast<std::size_t>(pe.size);
    auto* source = Zeroed<std::uint8_t>(all);
    auto* sent = Zeroed<std::uint8_t>(kBytes);
    auto* gathered = Zeroed<std::uint8_t>(all);
    auto* exchanged = Zeroed<std::uint8_t>(all);
    auto* sums = Zeroed<std::uint64_t>(100);
    for (int round = 0; round < 100; ++round) {
      const int step = 3 * round;
      const int root = round % pe.size;
      Write(source, Sent(pe.rank, step, kBytes));
      PE_CHECK_EQ(ShmemBroadcastMemOnStream(sent, source, kBytes, root, kStream), 0);
      Write(source, Sent(pe.rank, step + 1, kBytes));
      PE_CHECK_EQ(ShmemFCollectMemOnStream(gathered, source, kBytes, kStream), 0);
      Write(source, Sent(pe.rank, step + 2, all));
      PE_CHECK_EQ(ShmemAllToAllMemOnStream(exchanged, source, kBytes, kStream), 0);
      const auto seed = static_cast<unsigned>(round);
      Write(sums, testing::ElementsOf<std::uint64_t>(pe.rank, 100, seed));
      PE_CHECK_EQ(ShmemSumReduceOnStream(sums, sums, 100, kStream), 0);
      std::memset(source, 0, all);

      PE_CHECK(Read(sent, kBytes) == Sent(root, step, kBytes));
      PE_CHECK(Read(gathered, all) == Gathered(pe.size, step + 1, kBytes));
      PE_CHECK(Read(exchanged, all) == Exchanged(pe.rank, pe.size, step + 2, kBytes));
      PE_CHECK(Read(sums, 100) ==
               testing::CombinedElements<std::uint64_t>(ReduceOp::kSum, pe.size, 100, seed));
      PE_CHECK_EQ(ShmemBarrierAllOnStream(kStream), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

// ---- errors

void ExpectError(int code, ErrorCode expected, const std::string& part) {
  PE_CHECK_EQ(code, static_cast<int>(expected));
  if (std::string(ShmemLastError()).find(part) == std::string::npos)
    throw testing::PeFailure(fmt::format("\"{}\" does not say {}", ShmemLastError(), part));
}
void ExpectInvalid(int code, const char* part) {
  ExpectError(code, ErrorCode::kInvalidArgument, part);
}

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
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* words = Zeroed<std::uint64_t>(16);
    for (int i = 0; i < 16; ++i) words[i] = static_cast<std::uint64_t>(i) + 1;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    int no_stream = 0;
    for (const int code : CallAll(words, &no_stream))
      ExpectInvalid(code, "the only stream is null");
    PE_CHECK_EQ(ShmemBarrierAll(), 0);  // nobody is in a collective
    for (int i = 0; i < 16; ++i) PE_CHECK_EQ(words[i], static_cast<std::uint64_t>(i) + 1);
    PE_CHECK_EQ(ShmemFinalize(), 0);
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
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* word = Zeroed<std::uint64_t>(8);
    std::uint64_t local[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    auto* odd = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uint8_t*>(word) + 4);
    constexpr std::size_t kTooMuch = std::size_t{1} << 40;
    constexpr auto kSet = SignalOp::kSet;
    constexpr auto kInt32 = ElementType::kInt32;
    constexpr auto kSum = ReduceOp::kSum;
    for (const int no_pe : {-1, pe.size, 1 << 30}) {
      ExpectInvalid(ShmemPutMemOnStream(word, local, 8, no_pe, kStream), "out of range");
      ExpectInvalid(ShmemGetMemOnStream(local, word, 8, no_pe, kStream), "out of range");
      ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, word + 1, 1, kSet, no_pe, kStream),
                    "out of range");
      ExpectInvalid(ShmemSignalOpOnStream(word, 1, kSet, no_pe, kStream), "out of range");
      ExpectInvalid(ShmemBroadcastMemOnStream(word, word + 1, 8, no_pe, kStream), "out of range");
    }
    const auto* const no_address = "no symmetric address";
    ExpectInvalid(ShmemPutMemOnStream(local, word, 8, 0, kStream), no_address);
    ExpectInvalid(ShmemGetMemOnStream(word, local, 8, 0, kStream), no_address);
    ExpectInvalid(ShmemPutMemSignalOnStream(local, word, 8, word, 1, kSet, 0, kStream), no_address);
    ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, local, 1, kSet, 0, kStream),
                  no_address);
    ExpectInvalid(ShmemSignalOpOnStream(local, 1, kSet, 0, kStream), no_address);
    ExpectInvalid(ShmemSignalWaitUntilOnStream(local, Cmp::kEq, 1, kStream), no_address);
    ExpectInvalid(ShmemBroadcastMemOnStream(local, word, 8, 0, kStream), no_address);
    ExpectInvalid(ShmemFCollectMemOnStream(local, word, 8, kStream), no_address);
    ExpectInvalid(ShmemAllToAllMemOnStream(local, word, 8, kStream), no_address);
    ExpectInvalid(ShmemReduceOnStream(local, word, 2, kInt32, kSum, kStream), no_address);
    ExpectInvalid(ShmemReduceOnStream(word, local, 2, kInt32, kSum, kStream), no_address);

    ExpectInvalid(ShmemPutMemOnStream(word, local, kTooMuch, 0, kStream), "leave the heap");
    ExpectInvalid(ShmemGetMemOnStream(local, word, kTooMuch, 0, kStream), "leave the heap");
    ExpectInvalid(ShmemBroadcastMemOnStream(word, word, kTooMuch, 0, kStream), "leave the heap");
    ExpectInvalid(ShmemFCollectMemOnStream(word, word, kTooMuch, kStream), "more than the heap");
    ExpectInvalid(ShmemAllToAllMemOnStream(word, word, ~std::size_t{0}, kStream),
                  "more than the heap");
    ExpectInvalid(ShmemReduceOnStream(word, word, ~std::size_t{0}, kInt32, kSum, kStream),
                  "more than the heap");

    ExpectInvalid(ShmemSignalOpOnStream(odd, 1, kSet, 0, kStream), "not aligned");
    ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, odd, 1, kSet, 0, kStream),
                  "not aligned");
    ExpectInvalid(ShmemSignalWaitUntilOnStream(odd, Cmp::kEq, 1, kStream), "not aligned");
    ExpectInvalid(ShmemReduceOnStream(odd, word, 1, ElementType::kFloat64, kSum, kStream),
                  "not aligned");

    for (const int unknown : {-1, 6}) {
      ExpectInvalid(ShmemSignalWaitUntilOnStream(word, static_cast<Cmp>(unknown), 1, kStream),
                    "comparison");
      ExpectInvalid(
          ShmemReduceOnStream(word, word, 1, static_cast<ElementType>(unknown), kSum, kStream),
          "element type");
    }
    for (const int unknown : {-1, 2}) {
      ExpectInvalid(ShmemSignalOpOnStream(word, 1, static_cast<SignalOp>(unknown), 0, kStream),
                    "operation");
      ExpectInvalid(ShmemPutMemSignalOnStream(word, local, 8, word, 1,
                                              static_cast<SignalOp>(unknown), 0, kStream),
                    "operation");
    }
    for (const int unknown : {-1, 3}) {
      ExpectInvalid(
          ShmemReduceOnStream(word, word, 1, kInt32, static_cast<ReduceOp>(unknown), kStream),
          "operation");
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK(Read(word, 8) == std::vector<std::uint64_t>(8));
    PE_CHECK(Read(local, 8) == (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
    PE_CHECK_EQ(ShmemFinalize(), 0);
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
  EXPECT_EQ(Failures(testing::RunProcesses(3,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             auto* words = Zeroed<std::uint64_t>(16);
                                             if (pe.rank == 1) {
                                               ::usleep(20'000);  // the others are in the call
                                               ::_exit(0);
                                             }
                                             ExpectError(GetParam().call(words),
                                                         ErrorCode::kPeerLost, "PE 1 (host ");
                                           })),
            "");
}

}  // namespace
}  // namespace mori::shmem
