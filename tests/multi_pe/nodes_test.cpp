// PEs on several nodes of one machine, made by MORI_NODE_ID: what the network has to do that load
// and store do elsewhere.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/forked.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::Failures;
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

/// Without a quiet of the program: that of the barrier is what completes them. Where a node has
/// several PEs, the words of a barrier come from another PE than some of the data, and overtake it.
TEST_P(Nodes, WhatIsPutBeforeABarrierIsThereAfterIt) {
  RunAll([](const Pe& pe) {
    constexpr std::size_t kWords = 3'000'000;  // more than sockets hold
    auto* words = Allocate<std::uint64_t>(kWords);
    std::vector<std::uint64_t> mine(kWords);
    for (std::uint64_t round = 1; round <= 3; ++round) {
      std::fill(mine.begin(), mine.end(), round);
      PE_CHECK_EQ(ShmemPutMemNbi(words, mine.data(), kWords * 8, Right(pe)), 0);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(words[kWords - 1], round);  // before the look at others, which takes its time
      PE_CHECK(std::all_of(words, words + kWords, [&](auto word) { return word == round; }));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

TEST_P(Nodes, CollectiveCallsInARowStayInStep) {
  RunAll([](const Pe& pe) {
    auto* sum = Allocate<std::uint64_t>(1);
    *sum = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (std::uint64_t round = 1; round <= 100; ++round) {
      auto* block = Allocate<std::uint64_t>(round);
      ShmemAtomicAdd(sum, std::uint64_t{1}, Right(pe));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(*sum, round);
      PE_CHECK_EQ(ShmemFree(block), 0);
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

constexpr std::size_t kMost = std::size_t{64} << 20;
constexpr unsigned char kUntouched = 0xA5;

/// Sizes from a byte to 64 MiB: all small ones, then those around powers of two, and the misfits of
/// both ends to a word.
struct Extent {
  std::size_t bytes, there, here;
};
std::vector<Extent> Extents() {
  std::vector<Extent> all;
  for (std::size_t bytes = 1; bytes <= 17; ++bytes)
    for (std::size_t there = 0; there < 8; ++there)
      for (std::size_t here = 0; here < 8; here += 3) all.push_back({bytes, there, here});
  for (std::size_t bytes = 32; bytes <= (1 << 20); bytes *= 2) {
    for (const std::size_t each : {bytes - 1, bytes, bytes + 1}) {
      all.push_back({each, 0, 0});
      all.push_back({each, 5, 3});
    }
  }
  for (const std::size_t bytes : {std::size_t{5} << 20, kMost - 3, kMost})
    all.push_back({bytes, bytes % 2, 1});
  return all;
}

/// Bytes that differ from extent to extent, and from one place to the next.
void Fill(unsigned char* to, std::size_t bytes, std::size_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t i = 0; i < bytes; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t word = state ^ (state >> 31);
    std::memcpy(to + i, &word, std::min<std::size_t>(8, bytes - i));
  }
}

/// That `found` has `expected` and that nobody touched the bytes around it.
void CheckAlone(const unsigned char* found, const unsigned char* expected, const Extent& extent) {
  PE_CHECK_EQ(std::memcmp(found, expected, extent.bytes), 0);
  for (std::size_t i = 1; i <= 16; ++i) PE_CHECK_EQ(int{found[-static_cast<long>(i)]}, kUntouched);
  for (std::size_t i = 0; i < 16; ++i) PE_CHECK_EQ(int{found[extent.bytes + i]}, kUntouched);
}

constexpr std::size_t kAround = 64;
void Untouch(unsigned char* block, const Extent& extent) {
  std::memset(block, kUntouched, kAround + extent.there + extent.bytes + kAround);
}

/// `put` brings every extent from PE 0 to PE 1, whose PE says by a word that it has seen it.
void PutAll(const Pe& pe, const std::function<int(void*, const void*, std::size_t)>& put) {
  auto* block = Allocate<unsigned char>(kMost + 3 * kAround);
  auto* word = Allocate<std::uint64_t>(1);
  *word = 0;
  std::vector<unsigned char> here(kMost + kAround);
  std::memset(block, kUntouched, 3 * kAround);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  std::uint64_t round = 0;
  for (const Extent& extent : Extents()) {
    ++round;
    unsigned char* const to = block + kAround + extent.there;
    unsigned char* const from = here.data() + extent.here;
    Fill(from, extent.bytes, round);
    if (pe.rank == 1) Untouch(block, extent);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 0) {
      PE_CHECK_EQ(put(to, from, extent.bytes), 0);
      PE_CHECK_EQ(ShmemQuiet(), 0);
      PE_CHECK_EQ(ShmemAtomicSet(word, round, 1), 0);
    } else {
      PE_CHECK_EQ(ShmemSignalWaitUntil(word, Cmp::kEq, round), 0);
      CheckAlone(to, from, extent);
    }
  }
  PE_CHECK_EQ(ShmemFinalize(), 0);
}

/// `get` brings every extent of PE 1 to PE 0.
void GetAll(const Pe& pe, const std::function<int(void*, const void*, std::size_t)>& get) {
  auto* block = Allocate<unsigned char>(kMost + 3 * kAround);
  if (pe.rank == 1) Fill(block, kMost + kAround, 7);
  std::vector<unsigned char> all(kMost + kAround), here(kMost + 3 * kAround);
  Fill(all.data(), all.size(), 7);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  for (const Extent& extent : Extents()) {
    if (pe.rank != 0) break;
    const Extent turned{extent.bytes, extent.here, extent.there};
    Untouch(here.data(), turned);
    unsigned char* const to = here.data() + kAround + turned.there;
    PE_CHECK_EQ(get(to, block + turned.here, extent.bytes), 0);
    PE_CHECK_EQ(ShmemQuiet(), 0);
    CheckAlone(to, all.data() + turned.here, turned);
  }
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemFinalize(), 0);
}

/// On two nodes, with room for the largest.
void RunOnTwo(const testing::Body& body) {
  testing::Options options;
  options.environment = {{"MORI_SHMEM_HEAP_SIZE", "80M"}};
  const auto on_its_node = [&](const Pe& pe) {
    InitOn(pe, {"a", "b"});
    body(pe);
  };
  EXPECT_EQ(Failures(RunProcesses(2, on_its_node, options)), "");
}

TEST(NodesSizes, PutBringsAllOfThemAtEveryAlignment) {
  RunOnTwo([](const Pe& pe) {
    PutAll(pe, [](void* to, const void* from, std::size_t bytes) {
      return ShmemPutMem(to, from, bytes, 1);
    });
  });
}

TEST(NodesSizes, PutNbiBringsAllOfThemAtEveryAlignment) {
  RunOnTwo([](const Pe& pe) {
    PutAll(pe, [](void* to, const void* from, std::size_t bytes) {
      return ShmemPutMemNbi(to, from, bytes, 1);
    });
  });
}

TEST(NodesSizes, PutSignalBringsAllOfThemAtEveryAlignment) {
  RunOnTwo([](const Pe& pe) {
    auto* signal = Allocate<std::uint64_t>(1);
    *signal = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::uint64_t puts = 0;
    PutAll(pe, [&](void* to, const void* from, std::size_t bytes) {
      const auto put = ++puts % 2 == 0 ? &ShmemPutMemSignal : &ShmemPutMemSignalNbi;
      const int code = put(to, from, bytes, signal, 1, SignalOp::kAdd, 1);
      std::uint64_t seen = 0;
      while (code == 0 && (seen = ShmemAtomicFetch(signal, 1)) != puts) PE_CHECK(seen == puts - 1);
      return code;
    });
  });
}

TEST(NodesSizes, GetBringsAllOfThemAtEveryAlignment) {
  RunOnTwo([](const Pe& pe) {
    GetAll(pe, [](void* to, const void* from, std::size_t bytes) {
      return ShmemGetMem(to, from, bytes, 1);
    });
  });
}

TEST(NodesSizes, GetNbiBringsAllOfThemAtEveryAlignment) {
  RunOnTwo([](const Pe& pe) {
    GetAll(pe, [](void* to, const void* from, std::size_t bytes) {
      return ShmemGetMemNbi(to, from, bytes, 1);
    });
  });
}

TEST(NodesFaults, APeThatDiesIsNamedOnOtherNodes) {
  const Names nodes{"a", "b", "a", "c"};
  // A loss may be heard of before the last word of a barrier that is over where it happened.
  const testing::Counter out(0);
  const auto outcomes = RunProcesses(4, [&](const Pe& pe) {
    InitOn(pe, nodes);
    auto* word = Allocate<std::uint64_t>(1);
    *word = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    ++*out;
    if (pe.rank == 1) {
      testing::AwaitCount(out, pe.size);
      ::raise(SIGKILL);
    }
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

void MeetOnNodesOfTheirOwn(const Pe& pe, const std::vector<int>& distances) {
  Names nodes;
  for (int i = 0; i < pe.size; ++i) nodes.push_back("n" + std::to_string(i));
  InitOn(pe, nodes);
  const auto size = static_cast<std::size_t>(pe.size);
  auto* words = Allocate<std::uint64_t>(size);
  std::memset(words, 0, size * 8);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  for (const int distance : distances) {
    const int to = (pe.rank + distance) % pe.size;
    PE_CHECK_EQ(ShmemP(&words[pe.rank], static_cast<std::uint64_t>(100 + pe.rank), to), 0);
  }
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  for (const int distance : distances) {
    const int from = (pe.rank + pe.size - distance) % pe.size;
    PE_CHECK_EQ(words[from], static_cast<std::uint64_t>(100 + from));
    PE_CHECK_EQ(ShmemG(&words[pe.rank], (pe.rank + distance) % pe.size),
                static_cast<std::uint64_t>(100 + pe.rank));
  }
  PE_CHECK_EQ(ShmemBarrierAll(), 0);             // PE 0 has looked at the word that now changes
  PE_CHECK_EQ(ShmemAtomicInc(&words[0], 0), 0);  // all of them at one
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  if (pe.rank == 0) PE_CHECK_EQ(words[0] - (distances[0] == 0 ? 100 : 0), size);
  PE_CHECK_EQ(ShmemFinalize(), 0);
}

TEST(NodesFaults, SixteenNodesOfOnePeMeet) {
  const auto outcomes = RunProcesses(16, [](const Pe& pe) {
    std::vector<int> all;
    for (int distance = 0; distance < pe.size; ++distance) all.push_back(distance);
    MeetOnNodesOfTheirOwn(pe, all);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

/// Each reaches others at some distances, as collectives do: connections cost time and memory.
TEST(SoakNodes, SixtyFourNodesOfOnePeMeet) {
  testing::Options options;
  options.deadline = std::chrono::seconds(240);
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "200"}, {"MORI_SHMEM_HEAP_SIZE", "1M"}};
  const auto outcomes = RunProcesses(
      64,
      [](const Pe& pe) {
        MeetOnNodesOfTheirOwn(pe, {1, 2, 4, 8, 16, 32});
      },
      options);
  EXPECT_EQ(Failures(outcomes), "");
}

}  // namespace
}  // namespace mori::shmem
