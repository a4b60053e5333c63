// PEs on several nodes of one machine, made by MORI_NODE_ID: what the network has to do that load
// and store do elsewhere.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::Failures;
using testing::Left;
using testing::Pe;
using testing::Right;
using testing::RunProcesses;

using Names = std::vector<std::string>;

/// A placement of PEs, and how the heap has its memory.
struct Placement {
  const char* name;
  Names nodes;
  const char* mode = "static";
};

void InitOn(const Pe& pe, const Names& nodes) {
  const std::string& node = nodes[static_cast<std::size_t>(pe.rank)];
  ::setenv("MORI_NODE_ID", node.c_str(), 1);
  testing::EnterNetworkOf(node);
  pe.Init();
}

template <typename T>
T* Allocate(std::size_t count) {
  auto* block = static_cast<T*>(ShmemMalloc(count * sizeof(T)));
  PE_CHECK(block != nullptr);
  return block;
}

unsigned char Pattern(int from, int to, std::size_t index) {
  return static_cast<unsigned char>(13 * from + 101 * to + 7 * static_cast<int>(index % 251) + 1);
}

class Nodes : public ::testing::TestWithParam<Placement> {
 protected:
  void RunAll(const testing::Body& body) const {
    const Placement& placement = GetParam();
    testing::Options options;
    options.environment = {{"MORI_SHMEM_MODE", placement.mode},
                           {"MORI_SHMEM_VMM_CHUNK_SIZE", "64K"},
                           {"MORI_SHMEM_HEAP_SIZE", "32M"}};
    const auto on_its_node = [&](const Pe& pe) {
      InitOn(pe, placement.nodes);
      body(pe);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    };
    EXPECT_EQ(
        Failures(RunProcesses(static_cast<int>(placement.nodes.size()), on_its_node, options)), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Placements, Nodes,
                         ::testing::Values(Placement{"OneEach", {"a", "b"}},
                                           Placement{"Halves", {"a", "a", "b", "b"}},
                                           Placement{"Scattered", {"a", "b", "a", "b", "a"}},
                                           Placement{"Unequal", {"a", "b", "b", "b", "c", "b"}},
                                           Placement{"Growing", {"a", "b", "a"}, "vmm"},
                                           Placement{"Isolated", {"a", "b", "a"}, "isolation"}),
                         [](const auto& parameter) { return parameter.param.name; });

/// Sizes around what is sent as a message, and ranges that cross pieces of the heap.
TEST_P(Nodes, EveryPePutsToAndGetsFromEveryOther) {
  RunAll([](const Pe& pe) {
    for (const std::size_t bytes : {1ul, 7ul, 64ul, 4096ul, 8191ul, 65537ul, 300'001ul}) {
      const auto size = static_cast<std::size_t>(pe.size);
      auto* all = Allocate<unsigned char>(bytes * size + 3);
      std::vector<unsigned char> mine(bytes);
      for (int to = 0; to < pe.size; ++to) {
        for (std::size_t i = 0; i < bytes; ++i) mine[i] = Pattern(pe.rank, to, i);
        unsigned char* const place = all + 3 + static_cast<std::size_t>(pe.rank) * bytes;
        PE_CHECK_EQ(ShmemPutMem(place, mine.data(), bytes, to), 0);
        std::memset(mine.data(), 0, bytes);  // its own again
      }
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      for (int from = 0; from < pe.size; ++from) {
        const unsigned char* place = all + 3 + static_cast<std::size_t>(from) * bytes;
        for (std::size_t i = 0; i < bytes; ++i) PE_CHECK_EQ(place[i], Pattern(from, pe.rank, i));
        PE_CHECK_EQ(ShmemGetMem(mine.data(), place, bytes, from), 0);
        for (std::size_t i = 0; i < bytes; ++i) PE_CHECK_EQ(mine[i], Pattern(from, from, i));
      }
      PE_CHECK_EQ(ShmemFree(all), 0);
    }
  });
}

TEST_P(Nodes, WhatIsPutNbiIsThereAfterAQuietAndASignal) {
  RunAll([](const Pe& pe) {
    constexpr int kWords = 1000;
    auto* words = Allocate<std::uint64_t>(kWords);
    auto* signal = Allocate<std::uint64_t>(1);
    *signal = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::vector<std::uint64_t> mine(kWords);
    for (std::uint64_t round = 1; round <= 20; ++round) {
      for (int i = 0; i < kWords; ++i) {
        mine[static_cast<std::size_t>(i)] = round * 1'000'000 + static_cast<std::uint64_t>(i);
        PE_CHECK_EQ(ShmemPutMemNbi(&words[i], &mine[static_cast<std::size_t>(i)], 8, Right(pe)), 0);
      }
      PE_CHECK_EQ(ShmemQuiet(), 0);
      PE_CHECK_EQ(ShmemAtomicSet(signal, round, Right(pe)), 0);
      PE_CHECK_EQ(ShmemSignalWaitUntil(signal, Cmp::kGe, round), 0);
      for (int i = 0; i < kWords; ++i)
        PE_CHECK_EQ(words[i], round * 1'000'000 + static_cast<std::uint64_t>(i));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

/// What is too large for a message: its source is read as long as the put is under way.
TEST_P(Nodes, ASourceIsFreeAfterAQuiet) {
  RunAll([](const Pe& pe) {
    constexpr std::size_t kBytes = 24'000'000;  // more than sockets hold
    auto* data = Allocate<unsigned char>(kBytes);
    std::vector<unsigned char> mine(kBytes);
    for (int round = 1; round <= 2; ++round) {
      std::memset(mine.data(), round, kBytes);
      PE_CHECK_EQ(ShmemPutMemNbi(data, mine.data(), kBytes, Right(pe)), 0);
      PE_CHECK_EQ(ShmemQuiet(), 0);
      std::memset(mine.data(), 0xff, kBytes);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK(std::all_of(data, data + kBytes, [&](int byte) { return byte == round; }));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

TEST_P(Nodes, ASignalComesBehindItsData) {
  RunAll([](const Pe& pe) {
    constexpr std::size_t kBytes = 40'000;
    auto* data = Allocate<unsigned char>(kBytes);
    auto* signal = Allocate<std::uint64_t>(1);
    *signal = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::vector<unsigned char> mine(kBytes);
    std::uint64_t expected = 0;
    for (int round = 1; round <= 40; ++round) {
      const std::size_t bytes = round % 2 == 0 ? kBytes : 64;
      std::memset(mine.data(), round, bytes);
      const bool adds = round % 3 == 0;
      expected = adds ? expected + 5 : expected + 1;
      PE_CHECK_EQ(ShmemPutMemSignal(data, mine.data(), bytes, signal, adds ? 5 : expected,
                                    adds ? SignalOp::kAdd : SignalOp::kSet, Right(pe)),
                  0);
      PE_CHECK_EQ(ShmemSignalWaitUntil(signal, Cmp::kEq, expected), 0);
      for (std::size_t i = 0; i < bytes; ++i) PE_CHECK_EQ(int{data[i]}, round);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

template <typename T>
void CountTogether(const Pe& pe) {
  constexpr T kEach = 300;
  auto* words = Allocate<T>(4);
  std::memset(words, 0, 4 * sizeof(T));
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  // A counter on every PE, and on each all PEs add, from two threads, by the network and by the
  // CPU.
  const auto add = [&] {
    for (T i = 0; i < kEach; ++i) {
      const int to = (pe.rank + static_cast<int>(i)) % pe.size;
      ShmemAtomicAdd(&words[0], T{1}, to);
      ShmemAtomicFetchAdd(&words[1], T{3}, to);
    }
  };
  std::thread other(add);
  add();
  other.join();
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  T ones = 0, threes = 0;
  for (int from = 0; from < pe.size; ++from) {
    ones += ShmemAtomicFetch(&words[0], from);
    threes += ShmemG(&words[1], from);
  }
  PE_CHECK_EQ(ones, static_cast<T>(2 * kEach * static_cast<T>(pe.size)));
  PE_CHECK_EQ(threes, static_cast<T>(6 * kEach * static_cast<T>(pe.size)));

  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  const int to = Right(pe);
  const T me = static_cast<T>(pe.rank + 1);
  PE_CHECK_EQ(ShmemAtomicSwap(&words[2], me, to), T{0});
  PE_CHECK_EQ(ShmemAtomicCompareSwap(&words[2], T{0}, T{99}, to), me);
  PE_CHECK_EQ(ShmemAtomicCompareSwap(&words[2], me, static_cast<T>(me + 8), to), me);
  PE_CHECK_EQ(ShmemAtomicFetchOr(&words[2], T{16}, to), static_cast<T>(me + 8));
  PE_CHECK_EQ(ShmemAtomicFetchAnd(&words[2], T{0xF0}, to), static_cast<T>((me + 8) | 16));
  PE_CHECK_EQ(ShmemAtomicXor(&words[2], T{0xFF}, to), 0);
  PE_CHECK_EQ(ShmemAtomicFetchInc(&words[2], to), static_cast<T>((((me + 8) | 16) & 0xF0) ^ 0xFF));
  PE_CHECK_EQ(ShmemP(&words[3], static_cast<T>(me * 2), to), 0);
  PE_CHECK_EQ(ShmemQuiet(), 0);
  PE_CHECK_EQ(ShmemG(&words[3], to), static_cast<T>(me * 2));
}

TEST_P(Nodes, AtomicsOfAllPesCountTogether) {
  RunAll([](const Pe& pe) {
    CountTogether<std::uint64_t>(pe);
    CountTogether<std::uint32_t>(pe);
  });
}

/// A network that keeps the order by itself passes without the fence, too: what sees a missing one
/// is the conformance suite, over a network that reorders.
TEST_P(Nodes, AFenceKeepsTheOrder) {
  RunAll([](const Pe& pe) {
    constexpr std::uint64_t kRounds = 300;
    auto* pairs = Allocate<std::uint64_t>(2 * 64);
    std::memset(pairs, 0, 2 * 64 * 8);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::uint64_t* const data = pairs;
    std::uint64_t* const flag = pairs + 64;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      PE_CHECK_EQ(ShmemP(data, round, Right(pe)), 0);
      PE_CHECK_EQ(ShmemFence(), 0);
      PE_CHECK_EQ(ShmemAtomicSet(flag, round, Right(pe)), 0);
      PE_CHECK_EQ(ShmemWaitUntil(flag, Cmp::kGe, round), 0);
      PE_CHECK(__atomic_load_n(data, __ATOMIC_RELAXED) >= round);
    }
  });
}

TEST_P(Nodes, OnlyPesOfTheNodeHaveAPointer) {
  RunAll([](const Pe& pe) {
    auto* word = Allocate<std::uint64_t>(1);
    for (int other = 0; other < pe.size; ++other) {
      const bool is_near = GetParam().nodes[static_cast<std::size_t>(other)] ==
                           GetParam().nodes[static_cast<std::size_t>(pe.rank)];
      const std::uint64_t pointer =
          ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(word), pe.rank, other);
      PE_CHECK_EQ(pointer != 0, is_near);
    }
  });
}

TEST_P(Nodes, WhatLeavesTheHeapIsRefusedBeforeItIsSent) {
  RunAll([](const Pe& pe) {
    auto* block = Allocate<std::uint64_t>(8);
    std::uint64_t word = 0;
    PE_CHECK(ShmemPutMem(&word, block, 8, Right(pe)) != 0);
    PE_CHECK(std::string(ShmemLastError()).find("no symmetric address") != std::string::npos);
    PE_CHECK(ShmemGetMem(&word, block + (32 << 20), 8, Right(pe)) != 0);
    PE_CHECK(ShmemPutMem(block, &word, std::size_t{1} << 40, Right(pe)) != 0);
    PE_CHECK(ShmemAtomicAdd(reinterpret_cast<std::uint64_t*>(reinterpret_cast<char*>(block) + 1),
                            std::uint64_t{1}, Right(pe)) != 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
  });
}

TEST_P(Nodes, ADisagreementNamesBothSides) {
  RunAll([](const Pe& pe) {
    const int last = pe.size - 1;
    void* block = ShmemMalloc(pe.rank == last ? 128 : 64);
    PE_CHECK(block == nullptr);
    const std::string error = ShmemLastError();
    PE_CHECK(error.find("PE 0 made an allocation of 64 bytes") != std::string::npos);
    PE_CHECK(error.find("PE " + std::to_string(last) + " made an allocation of 128 bytes") !=
             std::string::npos);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
  });
}

TEST(NodesFaults, APeThatDiesIsNamedOnOtherNodes) {
  const Names nodes{"a", "b", "a", "c"};
  const auto outcomes = RunProcesses(4, [&](const Pe& pe) {
    InitOn(pe, nodes);
    auto* word = Allocate<std::uint64_t>(1);
    *word = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 1) ::raise(SIGKILL);
    int code = 0;
    if (pe.rank == 0) code = ShmemWaitUntil(word, Cmp::kEq, std::uint64_t{1});
    if (pe.rank == 2) code = ShmemBarrierAll();
    if (pe.rank == 3) {
      // Puts to it fail, sooner or later.
      while (code == 0) {
        code = ShmemP(word, std::uint64_t{7}, 1);
        if (code == 0) code = ShmemQuiet();
      }
    }
    PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK(std::string(ShmemLastError()).find("PE 1 (host ") != std::string::npos);
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  });
  for (const int survivor : {0, 2, 3})
    EXPECT_EQ(Failures({outcomes[static_cast<std::size_t>(survivor)]}), "") << survivor;
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

TEST(NodesFaults, AStoppedPeIsLateAndNamedAtTheEndOfTheBudget) {
  const Names nodes{"a", "b", "c"};
  testing::Options options;
  options.environment = {{"MORI_SHMEM_TIMEOUT", "1"}};
  const auto outcomes = RunProcesses(
      3,
      [&](const Pe& pe) {
        InitOn(pe, nodes);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        if (pe.rank == 2) ::sleep(4);
        const int code = ShmemBarrierAll();
        PE_CHECK(code == static_cast<int>(ErrorCode::kTimeout) ||
                 code == static_cast<int>(ErrorCode::kPeerLost));
        if (pe.rank != 2) {
          PE_CHECK(std::string(ShmemLastError()).find("PE 2 (host ") != std::string::npos);
          PE_CHECK(std::string(ShmemLastError()).find("MORI_SHMEM_TIMEOUT") != std::string::npos);
        }
        static_cast<void>(ShmemFinalize());
      },
      options);
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(NodesFaults, SixteenNodesOfOnePeMeet) {
  const auto outcomes = RunProcesses(16, [](const Pe& pe) {
    Names nodes;
    for (int i = 0; i < pe.size; ++i) nodes.push_back("n" + std::to_string(i));
    InitOn(pe, nodes);
    auto* words = Allocate<std::uint64_t>(16);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int to = 0; to < pe.size; ++to)
      PE_CHECK_EQ(ShmemP(&words[pe.rank], static_cast<std::uint64_t>(100 + pe.rank), to), 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int from = 0; from < pe.size; ++from)
      PE_CHECK_EQ(words[from], static_cast<std::uint64_t>(100 + from));
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

}  // namespace
}  // namespace mori::shmem
