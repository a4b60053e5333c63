// Put, get, atomics, signals and waits between PEs, as processes and as threads.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Failures;
using testing::Pe;
using testing::RunAs;

struct Shape {
  As as;
  int size;
};

class Operations : public ::testing::TestWithParam<Shape> {
 protected:
  void RunAll(const testing::Body& body) const {
    EXPECT_EQ(Failures(RunAs(GetParam().as, GetParam().size, body)), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Pes, Operations,
                         ::testing::Values(Shape{As::kProcesses, 1}, Shape{As::kProcesses, 2},
                                           Shape{As::kProcesses, 5}, Shape{As::kThreads, 2},
                                           Shape{As::kThreads, 5}),
                         [](const auto& parameter) {
                           return std::string(parameter.param.as == As::kProcesses ? "Processes"
                                                                                   : "Threads") +
                                  std::to_string(parameter.param.size);
                         });

int Next(const Pe& pe) { return (pe.rank + 1) % pe.size; }
int Previous(const Pe& pe) { return (pe.rank + pe.size - 1) % pe.size; }

template <typename T>
T* Allocate(std::size_t count) {
  auto* block = static_cast<T*>(ShmemMalloc(count * sizeof(T)));
  PE_CHECK(block != nullptr);
  return block;
}

/// A byte that tells writer, position and round apart.
unsigned char Pattern(int pe, std::size_t index, int round) {
  return static_cast<unsigned char>(31 * static_cast<std::size_t>(pe) + 7 * index +
                                    static_cast<std::size_t>(131 * round) + 1);
}

TEST_P(Operations, PutOfEverySizeAndOffsetWritesExactlyItsBytes) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = 1024;
    auto* block = Allocate<unsigned char>(kBytes);
    std::vector<unsigned char> source(kBytes);
    int round = 0;
    for (const std::size_t bytes : {0,  1,  2,  3,  4,  7,   8,   9,   15,  16,  17, 31,
                                    32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
      for (const std::size_t offset : {0, 1, 7, 8, 13, 64}) {
        ++round;
        for (std::size_t i = 0; i < bytes; ++i) source[i] = Pattern(pe.rank, i, round);
        std::memset(block, 0, kBytes);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemPutMem(block + offset, source.data(), bytes, Next(pe)), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        for (std::size_t i = 0; i < kBytes; ++i) {
          const bool written = i >= offset && i < offset + bytes;
          PE_CHECK_EQ(static_cast<int>(block[i]),
                      written ? static_cast<int>(Pattern(Previous(pe), i - offset, round)) : 0);
        }
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Sizes and distances in the page at which the copy takes another way than memcpy.
TEST_P(Operations, LargePutsAndGetsAtEveryDistanceWriteExactlyTheirBytes) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = std::size_t{3} << 19;
    auto* block = Allocate<unsigned char>(kBytes);
    auto* page = static_cast<unsigned char*>(std::aligned_alloc(4096, kBytes));
    int round = 0;
    for (const std::size_t bytes : {1023u, 1024u, 1025u, 1279u, 1280u, 1281u, 2047u, 4096u, 4097u,
                                    65535u, (1u << 20) - 1, 1u << 20, (1u << 20) + 1}) {
      for (const std::size_t distance : {0u, 1u, 16u, 31u, 32u, 33u, 2047u, 2048u, 4080u}) {
        ++round;
        for (std::size_t i = 0; i < bytes + distance + 8; ++i) page[i] = Pattern(pe.rank, i, round);
        std::memset(block, 0, bytes + distance + 8);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemPutMem(block + distance, page, bytes, Next(pe)), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        bool right = true;
        for (std::size_t i = 0; i < bytes; ++i)
          right = right && block[distance + i] == Pattern(Previous(pe), i, round);
        for (std::size_t i = 0; i < distance; ++i) right = right && block[i] == 0;
        for (std::size_t i = 0; i < 8; ++i) right = right && block[distance + bytes + i] == 0;
        PE_CHECK(right);
        PE_CHECK_EQ(ShmemGetMem(page + distance, block + distance, bytes, pe.rank), 0);
        PE_CHECK_EQ(std::memcmp(page + distance, block + distance, bytes), 0);
        PE_CHECK_EQ(static_cast<int>(page[distance + bytes]),
                    static_cast<int>(Pattern(pe.rank, distance + bytes, round)));
      }
    }
    std::free(page);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, GetReadsEveryPeer) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* block = Allocate<int>(1000);
    for (int i = 0; i < 1000; ++i) block[i] = pe.rank * 1000 + i;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int peer = 0; peer < pe.size; ++peer) {
      std::array<int, 100> got{};
      PE_CHECK_EQ(ShmemGet(got.data(), block + 37, got.size(), peer), 0);
      for (int i = 0; i < 100; ++i)
        PE_CHECK_EQ(got[static_cast<std::size_t>(i)], peer * 1000 + 37 + i);
      PE_CHECK_EQ(ShmemG(block + 999, peer), peer * 1000 + 999);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, PWritesOneElement) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* value = Allocate<double>(1);
    PE_CHECK_EQ(ShmemP(value, 0.5 + pe.rank, Next(pe)), 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(*value, 0.5 + Previous(pe));
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Every atomic on type T, by all PEs at once on PE 0's words: the totals are exact.
template <typename T>
void AtomicsAddUp(const Pe& pe) {
  constexpr int kRounds = 500;
  auto* words = Allocate<T>(8);
  std::memset(words, 0, 8 * sizeof(T));
  words[5] = static_cast<T>(-1);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  for (int i = 0; i < kRounds; ++i) {
    PE_CHECK_EQ(ShmemAtomicAdd(words, T{3}, 0), 0);
    PE_CHECK_EQ(ShmemAtomicInc(words, 0), 0);
    ShmemAtomicFetchAdd(words + 1, T{2}, 0);
    ShmemAtomicFetchInc(words + 1, 0);
    for (T seen = ShmemAtomicFetch(words + 2, 0);;) {  // increment by compare-swap
      const T found = ShmemAtomicCompareSwap(words + 2, seen, static_cast<T>(seen + 1), 0);
      if (found == seen) break;
      seen = found;
    }
    PE_CHECK_EQ(ShmemAtomicXor(words + 3, static_cast<T>(1 << pe.rank), 0), 0);
    ShmemAtomicFetchXor(words + 6, static_cast<T>(1 << pe.rank), 0);
  }
  ShmemAtomicFetchOr(words + 4, static_cast<T>(1 << pe.rank), 0);
  PE_CHECK_EQ(ShmemAtomicOr(words + 4, static_cast<T>(256 << pe.rank), 0), 0);
  ShmemAtomicFetchAnd(words + 5, static_cast<T>(~(T{1} << pe.rank)), 0);
  PE_CHECK_EQ(ShmemAtomicAnd(words + 5, static_cast<T>(~(T{256} << pe.rank)), 0), 0);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  const T all = static_cast<T>((1 << pe.size) - 1);
  PE_CHECK_EQ(ShmemAtomicFetch(words, 0), static_cast<T>(4 * kRounds * pe.size));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 1, 0), static_cast<T>(3 * kRounds * pe.size));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 2, 0), static_cast<T>(kRounds * pe.size));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 3, 0), T{0});  // an even number of flips
  PE_CHECK_EQ(ShmemAtomicFetch(words + 4, 0), static_cast<T>(all | all << 8));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 5, 0), static_cast<T>(~(all | all << 8)));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 6, 0), T{0});
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemAtomicSet(words, static_cast<T>(pe.rank + 10), Next(pe)), 0);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemAtomicSwap(words, T{99}, pe.rank), static_cast<T>(Previous(pe) + 10));
  PE_CHECK_EQ(words[0], T{99});
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
}

TEST_P(Operations, AtomicsOfAllTypesAddUpExactly) {
  RunAll([](const Pe& pe) {
    pe.Init();
    AtomicsAddUp<std::int32_t>(pe);
    AtomicsAddUp<std::uint32_t>(pe);
    AtomicsAddUp<std::int64_t>(pe);
    AtomicsAddUp<std::uint64_t>(pe);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, SignalSeenMeansDataSeen) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr int kRounds = 2000;
    auto* data = Allocate<std::uint64_t>(16);
    auto* signal = Allocate<std::uint64_t>(2);
    std::memset(data, 0, 16 * sizeof *data);
    signal[0] = signal[1] = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      std::array<std::uint64_t, 16> source;
      source.fill(round);
      const bool add = round % 2 == 0;
      PE_CHECK_EQ(ShmemPutMemSignal(data, source.data(), sizeof source, signal, add ? 1 : round,
                                    add ? SignalOp::kAdd : SignalOp::kSet, Next(pe)),
                  0);
      std::uint64_t seen = 0;
      PE_CHECK_EQ(ShmemSignalWaitUntil(signal, Cmp::kGe, round, &seen), 0);
      PE_CHECK_EQ(seen, round);
      for (int i = 0; i < 16; ++i) PE_CHECK_EQ(data[i], round);
      // The next PE has read before we write again.
      PE_CHECK_EQ(ShmemAtomicSet(signal + 1, round, Previous(pe)), 0);
      PE_CHECK_EQ(ShmemWaitUntil(signal + 1, Cmp::kEq, round), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, PutThenFenceThenFlagArrivesInOrder) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::uint32_t kRounds = 2000;
    auto* data = Allocate<std::uint32_t>(1);
    auto* flags = Allocate<std::uint32_t>(2);
    *data = flags[0] = flags[1] = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      PE_CHECK_EQ(ShmemPut(data, &round, 1, Next(pe)), 0);
      ShmemFence();
      PE_CHECK_EQ(ShmemAtomicSet(flags, round, Next(pe)), 0);
      PE_CHECK_EQ(ShmemWaitUntil(flags, Cmp::kGe, round), 0);
      PE_CHECK_EQ(*data, round);
      PE_CHECK_EQ(ShmemAtomicSet(flags + 1, round, Previous(pe)), 0);
      PE_CHECK_EQ(ShmemWaitUntil(flags + 1, Cmp::kGe, round), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Store, quiet, load the other's: both PEs reading the old value would show a quiet that does not
/// complete.
TEST(Quiet, StoresOfBothPesAreNeverBothMissed) {
  EXPECT_EQ(Failures(testing::RunProcesses(2,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             auto* flag = Allocate<std::uint64_t>(1);
                                             auto* missed = Allocate<std::uint64_t>(1);
                                             for (int round = 0; round < 5000; ++round) {
                                               *flag = 0;
                                               *missed = 0;
                                               PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                               PE_CHECK_EQ(
                                                   ShmemP(flag, std::uint64_t{1}, 1 - pe.rank), 0);
                                               ShmemQuiet();
                                               if (ShmemAtomicFetch(flag, pe.rank) == 0)
                                                 ShmemAtomicInc(missed, 0);
                                               PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                               PE_CHECK(ShmemAtomicFetch(missed, 0) < 2);
                                               PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                             }
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

template <typename T>
void ComparisonsHold() {
  auto* word = Allocate<T>(1);
  *word = T{5};
  const T low = static_cast<T>(-1) < T{0} ? static_cast<T>(-1)
                                          : T{1};  // below 5 in signed and unsigned alike
  struct Row {
    Cmp cmp;
    T value;
    bool holds;
  };
  for (const Row& row :
       {Row{Cmp::kEq, 5, true}, Row{Cmp::kEq, 6, false}, Row{Cmp::kNe, 6, true},
        Row{Cmp::kNe, 5, false}, Row{Cmp::kGt, low, true}, Row{Cmp::kGt, 5, false},
        Row{Cmp::kGe, 5, true}, Row{Cmp::kGe, 6, false}, Row{Cmp::kLt, 6, true},
        Row{Cmp::kLt, low, false}, Row{Cmp::kLe, 5, true}, Row{Cmp::kLe, low, false}}) {
    PE_CHECK_EQ(ShmemTest(word, row.cmp, row.value), row.holds);
    if (row.holds) PE_CHECK_EQ(ShmemWaitUntil(word, row.cmp, row.value), 0);
  }
}

TEST(WaitUntil, EveryComparisonOnEveryType) {
  EXPECT_EQ(Failures(testing::RunProcesses(1,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             ComparisonsHold<std::int32_t>();
                                             ComparisonsHold<std::uint32_t>();
                                             ComparisonsHold<std::int64_t>();
                                             ComparisonsHold<std::uint64_t>();
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

TEST(WaitUntil, SleepingWaitOfEveryTypeIsEndedByAPeer) {
  EXPECT_EQ(Failures(testing::RunProcesses(
                2,
                [](const Pe& pe) {
                  pe.Init();
                  auto* narrow = Allocate<std::int32_t>(1);
                  auto* wide = Allocate<std::int64_t>(1);
                  *narrow = 0;
                  *wide = 0;
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  if (pe.rank == 0) {
                    ::usleep(30'000);  // long enough for the other to sleep
                    PE_CHECK_EQ(ShmemAtomicSet(narrow, -7, 1), 0);
                    ::usleep(30'000);
                    PE_CHECK_EQ(ShmemAtomicSet(wide, std::int64_t{-1} << 40, 1), 0);
                  } else {
                    PE_CHECK_EQ(ShmemWaitUntil(narrow, Cmp::kLt, 0), 0);
                    PE_CHECK_EQ(ShmemWaitUntil(wide, Cmp::kLt, std::int64_t{-5}), 0);
                    PE_CHECK_EQ(*wide, std::int64_t{-1} << 40);
                  }
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                })),
            "");
}

TEST_P(Operations, PeerPointersReachThePeersMemory) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* block = Allocate<int>(64);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int peer = 0; peer < pe.size; ++peer) {
      const auto address = ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block), pe.rank, peer);
      PE_CHECK(address != 0);
      if (peer == pe.rank) PE_CHECK_EQ(address, reinterpret_cast<std::uintptr_t>(block));
      reinterpret_cast<int*>(address)[pe.rank] = 100 * pe.rank + peer;
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int writer = 0; writer < pe.size; ++writer)
      PE_CHECK_EQ(block[writer], 100 * writer + pe.rank);
    int outside = 0;
    PE_CHECK_EQ(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(&outside), pe.rank, 0),
                std::uint64_t{0});
    PE_CHECK_EQ(ShmemLastErrorCode(), 0);  // "no symmetric address" is an answer, not an error
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

}  // namespace
}  // namespace mori::shmem
