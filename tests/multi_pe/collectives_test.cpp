// Collective allocation, agreement, barrier.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Failures;
using testing::Pe;
using testing::RunProcesses;

bool LastErrorHas(const std::string& part) {
  return std::string(ShmemLastError()).find(part) != std::string::npos;
}

HeapStats Stats() {
  HeapStats stats{};
  PE_CHECK_EQ(ShmemHeapStats(&stats), 0);
  return stats;
}

class Collectives : public ::testing::TestWithParam<As> {
 protected:
  void RunAll(int size, const testing::Body& body) const {
    EXPECT_EQ(Failures(testing::RunAs(GetParam(), size, body)), "");
  }
};
INSTANTIATE_TEST_SUITE_P(Pes, Collectives, ::testing::Values(As::kProcesses, As::kThreads),
                         [](const auto& parameter) {
                           return parameter.param == As::kProcesses ? "Processes" : "Threads";
                         });

TEST_P(Collectives, BlocksHaveTheSameOffsetOnEveryPe) {
  RunAll(3, [](const Pe& pe) {
    pe.Init();
    auto* base = static_cast<std::byte*>(ShmemMalloc(64));
    auto* offsets = static_cast<std::uint64_t*>(ShmemMalloc(64 * sizeof(std::uint64_t)));
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) {
      blocks.push_back(ShmemMalloc(static_cast<std::size_t>(100 * i + 1)));
      PE_CHECK(blocks.back() != nullptr);
      offsets[i] = static_cast<std::uint64_t>(static_cast<std::byte*>(blocks.back()) - base);
      if (i % 3 == 2) {
        PE_CHECK_EQ(ShmemFree(blocks[static_cast<std::size_t>(i) - 1]), 0);
        blocks[static_cast<std::size_t>(i) - 1] = nullptr;
      }
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int i = 0; i < 20; ++i) PE_CHECK_EQ(ShmemG(offsets + i, 0), offsets[i]);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, EveryPowerOfTwoAlignmentIsHonouredHereAndForPeers) {
  RunAll(2, [](const Pe& pe) {
    pe.Init();
    for (std::size_t alignment = 1; alignment <= (4u << 20); alignment *= 2) {
      void* pad = ShmemMalloc(1);
      void* block = ShmemMallocAlign(alignment, 24);
      PE_CHECK(block != nullptr);
      for (int peer = 0; peer < pe.size; ++peer) {
        PE_CHECK_EQ(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block), pe.rank, peer) % alignment,
                    std::uint64_t{0});
      }
      PE_CHECK_EQ(ShmemFree(block), 0);
      PE_CHECK_EQ(ShmemFree(pad), 0);
    }
    PE_CHECK_EQ(Stats().used_bytes, std::uint64_t{0});
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, LargeBlocksStartOnAPage) {
  RunAll(2, [](const Pe& pe) {
    pe.Init();
    PE_CHECK(ShmemMalloc(64) != nullptr);
    for (const std::size_t bytes : {2048u, 4096u, 5000u, 65536u}) {
      PE_CHECK_EQ(reinterpret_cast<std::uintptr_t>(ShmemMalloc(bytes)) % 4096, std::uintptr_t{0});
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, StatisticsFollowTheHeap) {
  RunAll(2, [](const Pe& pe) {
    pe.Init();
    const HeapStats empty = Stats();
    PE_CHECK_EQ(empty.total_bytes, std::uint64_t{8 << 20});
    PE_CHECK_EQ(empty.used_bytes, std::uint64_t{0});
    PE_CHECK_EQ(empty.largest_free_bytes, empty.total_bytes);
    void* blocks[3];
    for (void*& block : blocks) block = ShmemMalloc(1 << 20);
    PE_CHECK_EQ(ShmemFree(blocks[1]), 0);
    const HeapStats holed = Stats();
    PE_CHECK_EQ(holed.live_blocks, std::uint64_t{2});
    PE_CHECK_EQ(holed.used_bytes, std::uint64_t{2 << 20});
    PE_CHECK_EQ(holed.free_bytes, std::uint64_t{6 << 20});
    PE_CHECK(holed.largest_free_bytes < holed.free_bytes);
    PE_CHECK_EQ(ShmemFree(blocks[0]), 0);
    PE_CHECK_EQ(ShmemFree(blocks[2]), 0);
    PE_CHECK_EQ(Stats().largest_free_bytes, empty.total_bytes);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, DifferentSizesAreAnErrorOnEveryPeAndChangeNothing) {
  RunAll(3, [](const Pe& pe) {
    pe.Init();
    PE_CHECK(ShmemMalloc(pe.rank == 2 ? 128 : 64) == nullptr);
    PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kMismatch));
    PE_CHECK(LastErrorHas("PE 0 made an allocation of 64 bytes"));
    PE_CHECK(LastErrorHas("PE 2 made an allocation of 128 bytes"));
    PE_CHECK_EQ(Stats().live_blocks, std::uint64_t{0});
    PE_CHECK(ShmemMalloc(64) != nullptr);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, DifferentCallsAreAnErrorOnEveryPe) {
  RunAll(2, [](const Pe& pe) {
    pe.Init();
    void* block = ShmemMalloc(64);
    const int code = pe.rank == 0 ? ShmemBarrierAll() : ShmemFree(block);
    PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kMismatch));
    PE_CHECK(LastErrorHas("PE 0 made barrier_all()"));
    PE_CHECK(LastErrorHas("PE 1 made a free of heap offset"));
    PE_CHECK_EQ(ShmemFree(block), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, FreeOfDifferentBlocksFreesNothing) {
  RunAll(2, [](const Pe& pe) {
    pe.Init();
    void* blocks[2] = {ShmemMalloc(64), ShmemMalloc(64)};
    PE_CHECK_EQ(ShmemFree(blocks[pe.rank]), static_cast<int>(ErrorCode::kMismatch));
    PE_CHECK_EQ(Stats().live_blocks, std::uint64_t{2});
    PE_CHECK_EQ(ShmemFree(blocks[0]), 0);
    PE_CHECK_EQ(ShmemFree(blocks[1]), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, BarrierPublishesWhatWasWrittenBefore) {
  RunAll(4, [](const Pe& pe) {
    pe.Init();
    auto* values = static_cast<std::uint64_t*>(ShmemMalloc(64 * sizeof(std::uint64_t)));
    for (std::uint64_t round = 1; round <= 500; ++round) {
      for (int peer = 0; peer < pe.size; ++peer)
        PE_CHECK_EQ(ShmemP(values + pe.rank, round, peer), 0);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      for (int writer = 0; writer < pe.size; ++writer) PE_CHECK_EQ(values[writer], round);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Collectives, ManyBarriersBackToBack) {
  RunAll(2, [](const Pe& pe) {
    pe.Init();
    for (int i = 0; i < 20'000; ++i) PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST(Allocation, FlagsOfHipAreHonouredAndOthersRefused) {
  EXPECT_EQ(Failures(RunProcesses(1,
                                  [](const Pe& pe) {
                                    pe.Init();
                                    for (const unsigned flags : {0x0u, 0x1u, 0x3u})
                                      PE_CHECK(ShmemExtMallocWithFlags(64, flags) != nullptr);
                                    PE_CHECK(ShmemExtMallocWithFlags(64, 0x40) == nullptr);
                                    PE_CHECK_EQ(ShmemLastErrorCode(),
                                                static_cast<int>(ErrorCode::kInvalidArgument));
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Buffers, RegistrationIsCounted) {
  EXPECT_EQ(
      Failures(RunProcesses(1,
                            [](const Pe& pe) {
                              pe.Init();
                              std::vector<char> buffer(4096);
                              PE_CHECK_EQ(ShmemBufferRegister(buffer.data(), buffer.size()), 0);
                              PE_CHECK_EQ(ShmemBufferRegister(buffer.data(), buffer.size()), 0);
                              PE_CHECK_EQ(ShmemBufferDeregister(buffer.data(), buffer.size()), 0);
                              PE_CHECK_EQ(ShmemBufferDeregister(buffer.data(), buffer.size()), 0);
                              PE_CHECK_EQ(ShmemBufferDeregister(buffer.data(), buffer.size()),
                                          static_cast<int>(ErrorCode::kInvalidArgument));
                              PE_CHECK_EQ(ShmemBufferRegister(nullptr, 8),
                                          static_cast<int>(ErrorCode::kInvalidArgument));
                              PE_CHECK_EQ(ShmemBufferRegister(buffer.data(), 0),
                                          static_cast<int>(ErrorCode::kInvalidArgument));
                              PE_CHECK_EQ(ShmemBufferRegister(buffer.data(), SIZE_MAX),
                                          static_cast<int>(ErrorCode::kInvalidArgument));
                              PE_CHECK_EQ(ShmemFinalize(), 0);
                            })),
      "");
}

TEST(Threads, AnyThreadOfAProcessWithOnePeUsesIt) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    pe.Init();
                                    auto* counter = static_cast<std::uint64_t*>(ShmemMalloc(8));
                                    *counter = 0;
                                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                    std::atomic<int> failures{0};
                                    std::vector<std::thread> threads;
                                    for (int i = 0; i < 4; ++i) {
                                      threads.emplace_back([&] {
                                        for (int j = 0; j < 1000; ++j)
                                          failures +=
                                              ShmemAtomicAdd(counter, std::uint64_t{1}, 0) != 0;
                                        failures += ShmemMyPe() != pe.rank;
                                      });
                                    }
                                    for (auto& thread : threads) thread.join();
                                    PE_CHECK_EQ(failures.load(), 0);
                                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                    if (pe.rank == 0) PE_CHECK_EQ(*counter, std::uint64_t{8000});
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

TEST(Memory, RetainedMemoryOutlivesFinalize) {
  EXPECT_EQ(
      Failures(RunProcesses(2,
                            [](const Pe& pe) {
                              pe.Init();
                              auto* block = static_cast<int*>(ShmemMalloc(64));
                              *block = 40 + pe.rank;
                              auto* peer = reinterpret_cast<int*>(ShmemPtrP2p(
                                  reinterpret_cast<std::uintptr_t>(block), pe.rank, 1 - pe.rank));
                              void* mine = ShmemRetainMemory(block);
                              void* theirs = ShmemRetainMemory(peer);
                              PE_CHECK(mine != nullptr && theirs != nullptr);
                              PE_CHECK(ShmemRetainMemory(&mine) == nullptr);
                              PE_CHECK_EQ(ShmemFinalize(), 0);
                              PE_CHECK_EQ(*block, 40 + pe.rank);
                              PE_CHECK_EQ(*peer, 41 - pe.rank);
                              ShmemReleaseMemory(mine);
                              ShmemReleaseMemory(theirs);
                              ShmemReleaseMemory(nullptr);
                            })),
      "");
}

}  // namespace
}  // namespace mori::shmem
