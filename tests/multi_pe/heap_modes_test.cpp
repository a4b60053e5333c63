// The heap modes of MORI_SHMEM_MODE, seen from a program.
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/fault_point.hpp"
#include "base/machine.hpp"
#include "support/limit.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Failures;
using testing::Options;
using testing::Pe;

constexpr std::size_t kChunk = 64 << 10;

std::string ModeName(const ::testing::TestParamInfo<const char*>& mode) { return mode.param; }

Options InMode(const char* mode) {
  Options options;
  options.environment = {{"MORI_SHMEM_MODE", mode},
                         {"MORI_SHMEM_VMM_CHUNK_SIZE", std::to_string(kChunk)}};
  return options;
}

HeapStats Stats() {
  HeapStats stats{};
  PE_CHECK_EQ(ShmemHeapStats(&stats), 0);
  return stats;
}

/// Bytes of heap memory that this process has mapped, all PEs' together, and the board.
std::size_t MappedBytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t total = 0;
  for (std::string line; std::getline(maps, line);) {
    std::size_t from = 0, to = 0;
    if (line.find("memfd:mori_shmem_heap") != std::string::npos &&
        std::sscanf(line.c_str(), "%zx-%zx", &from, &to) == 2) {
      total += to - from;
    }
  }
  return total;
}

/// Whether all bytes are `value`; quick under a sanitizer too.
bool IsAll(const void* block, std::size_t bytes, std::uint8_t value) {
  const auto* first = static_cast<const std::uint8_t*>(block);
  return bytes == 0 || (first[0] == value && std::memcmp(first, first + 1, bytes - 1) == 0);
}

bool LastErrorHas(const std::string& part) {
  return std::string(ShmemLastError()).find(part) != std::string::npos;
}

class EveryMode : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Heap, EveryMode, ::testing::Values("static", "vmm", "isolation"),
                         ModeName);

class Growing : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Heap, Growing, ::testing::Values("vmm", "isolation"), ModeName);

/// A random program of allocations, frees and writes by all PEs, against a model of every block's
/// contents on every PE.
void RandomProgram(const Pe& pe, int steps) {
  struct Block {
    std::byte* address;
    std::size_t bytes;
    std::vector<std::uint8_t> values;  ///< by PE
  };
  pe.Init();
  std::mt19937 shared(11);  // the same draws on every PE
  std::vector<Block> blocks;
  std::size_t live_bytes = 0;
  for (int step = 0; step < steps; ++step) {
    const auto draw = shared() % 8;
    if (draw < 3 && live_bytes < (4u << 20)) {
      const std::size_t bytes =
          shared() % 3 == 0 ? shared() % (3 * kChunk) + 1 : shared() % 500 + 1;
      const std::size_t alignment = std::size_t{1} << shared() % 18;
      auto* address = static_cast<std::byte*>(ShmemMallocAlign(alignment, bytes));
      PE_CHECK(address != nullptr);
      PE_CHECK_EQ(reinterpret_cast<std::uintptr_t>(address) % alignment, 0u);
      std::memset(address, 0, bytes);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      blocks.push_back(
          {address, bytes, std::vector<std::uint8_t>(static_cast<std::size_t>(pe.size))});
      live_bytes += bytes;
    } else if (draw < 5 && !blocks.empty()) {
      const auto victim = blocks.begin() + static_cast<std::ptrdiff_t>(shared() % blocks.size());
      live_bytes -= victim->bytes;
      PE_CHECK_EQ(ShmemFree(victim->address), 0);
      blocks.erase(victim);
    } else if (!blocks.empty()) {
      Block& block = blocks[shared() % blocks.size()];
      const int writer = static_cast<int>(shared() % static_cast<unsigned>(pe.size));
      const int target = static_cast<int>(shared() % static_cast<unsigned>(pe.size));
      const auto value = static_cast<std::uint8_t>(shared());
      block.values[static_cast<std::size_t>(target)] = value;
      if (pe.rank == writer) {
        const std::vector<std::uint8_t> data(block.bytes, value);
        PE_CHECK_EQ(ShmemPutMem(block.address, data.data(), data.size(), target), 0);
      }
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      std::vector<std::uint8_t> seen(block.bytes);
      const int from = (pe.rank + step) % pe.size;
      PE_CHECK_EQ(ShmemGetMem(seen.data(), block.address, seen.size(), from), 0);
      const std::uint8_t wanted = block.values[static_cast<std::size_t>(from)];
      PE_CHECK(IsAll(seen.data(), seen.size(), wanted));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
    PE_CHECK_EQ(Stats().live_blocks, static_cast<std::uint64_t>(blocks.size()));
  }
  for (const Block& block : blocks) PE_CHECK_EQ(ShmemFree(block.address), 0);
  PE_CHECK_EQ(Stats().used_bytes, 0u);
  PE_CHECK_EQ(ShmemFinalize(), 0);
}

TEST_P(EveryMode, ARandomProgramOfProcesses) {
  EXPECT_EQ(Failures(testing::RunProcesses(
                3, [](const Pe& pe) { RandomProgram(pe, 400); }, InMode(GetParam()))),
            "");
}

TEST_P(EveryMode, ARandomProgramOfThreads) {
  EXPECT_EQ(Failures(testing::RunThreads(
                3, [](const Pe& pe) { RandomProgram(pe, 400); }, InMode(GetParam()))),
            "");
}

/// Sizes around one and two chunks, at offsets before, on and after their borders.
TEST_P(EveryMode, TransfersCrossChunkBorders) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = 4 * kChunk;
    auto* block = static_cast<std::uint8_t*>(ShmemMalloc(kBytes));
    PE_CHECK(block != nullptr);
    const int peer = 1 - pe.rank;
    std::vector<std::uint8_t> data(kBytes), seen(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i)
      data[i] = static_cast<std::uint8_t>(i * 31 + 7 + static_cast<std::size_t>(pe.rank));
    for (const std::size_t border : {kChunk, 2 * kChunk}) {
      for (const std::size_t before : {0, 1, 2, 63, 64, 65}) {
        for (const std::size_t bytes :
             {std::size_t{1}, std::size_t{2}, std::size_t{130}, kChunk - 1, kChunk, kChunk + 1}) {
          PE_CHECK_EQ(ShmemPutMem(block + border - before, data.data(), bytes, peer), 0);
          PE_CHECK_EQ(ShmemGetMem(seen.data(), block + border - before, bytes, peer), 0);
          PE_CHECK(std::memcmp(seen.data(), data.data(), bytes) == 0);
        }
      }
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, InMode(GetParam()))), "");
}

TEST_P(EveryMode, AnUnsetSizeIsTheMemoryOfTheDeviceWhereTheHeapGrows) {
  Options options = InMode(GetParam());
  options.environment.emplace_back("MORI_SHMEM_HEAP_SIZE", "");
  const bool grows = std::strcmp(GetParam(), "static") != 0;
  const auto body = [&](const Pe& pe) {
    PE_CHECK_EQ(pe.TryInit() == 0, grows);
    if (!grows) return;
    PE_CHECK(Stats().total_bytes > (64u << 20));
    PE_CHECK(ShmemMalloc(1000) != nullptr);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, options)), "");
}

TEST_P(EveryMode, FinalizeUnmapsEverything) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    PE_CHECK(ShmemMalloc(3 * kChunk) != nullptr);
    PE_CHECK(ShmemMalloc(10) != nullptr);
    PE_CHECK(MappedBytes() > 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
    PE_CHECK_EQ(MappedBytes(), 0u);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, InMode(GetParam()))), "");
}

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kSlackPages = 100'000;  // it keeps what is freed for a while
#else
constexpr std::size_t kSlackPages = 64;
#endif

TEST_P(EveryMode, RegisteredBuffersLeaveMemoryFlat) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    std::vector<char> buffer(1 << 16);
    const auto resident = [] {
      std::ifstream statm("/proc/self/statm");
      std::size_t total = 0, pages = 0;
      statm >> total >> pages;
      return pages;
    };
    std::size_t after_first = 0;
    for (int i = 0; i < 100'000; ++i) {
      char* start = buffer.data() + i % 1000;  // overlapping ranges
      PE_CHECK_EQ(ShmemBufferRegister(start, 1000), 0);
      PE_CHECK_EQ(ShmemBufferRegister(start, 1000), 0);
      PE_CHECK_EQ(ShmemBufferDeregister(start, 1000), 0);
      PE_CHECK_EQ(ShmemBufferDeregister(start, 1000), 0);
      if (i == 1000) after_first = resident();
    }
    PE_CHECK(ShmemBufferDeregister(buffer.data(), 1000) != 0);
    PE_CHECK(ShmemBufferRegister(buffer.data(), 1000) == 0);
    PE_CHECK(ShmemBufferDeregister(buffer.data(), 999) != 0);  // a part is another range
    PE_CHECK(resident() <= after_first + kSlackPages);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(1, body, InMode(GetParam()))), "");
}

TEST_P(Growing, MemoryComesAndGoesWithTheBlocks) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    const auto n = static_cast<std::size_t>(pe.size);
    const std::size_t board = MappedBytes();
    PE_CHECK_EQ(board, 4096u);  // no memory before the first allocation
    void* small = ShmemMalloc(64);
    PE_CHECK(MappedBytes() <= board + n * kChunk);
    void* large = ShmemMalloc(10 * kChunk);
    PE_CHECK(MappedBytes() >= board + n * 10 * kChunk);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFree(large), 0);
    PE_CHECK(MappedBytes() <= board + n * 2 * kChunk);
    PE_CHECK_EQ(ShmemFree(small), 0);
    PE_CHECK(MappedBytes() <= board + n * kChunk);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(3, body, InMode(GetParam()))), "");
}

TEST_P(Growing, NoDescriptorIsLeftByGrowth) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    const auto lowest_free = [] {
      const int fd = ::dup(0);
      ::close(fd);
      return fd;
    };
    const int before = lowest_free();
    for (int cycle = 0; cycle < 1000; ++cycle) {
      void* block = ShmemMalloc(2 * kChunk);
      PE_CHECK(block != nullptr);
      PE_CHECK_EQ(ShmemFree(block), 0);
    }
    PE_CHECK_EQ(lowest_free(), before);
    std::vector<void*> blocks;
    for (int i = 0; i < 50; ++i) blocks.push_back(ShmemMalloc(kChunk));
    PE_CHECK_EQ(lowest_free(), before);
    for (void* block : blocks) PE_CHECK_EQ(ShmemFree(block), 0);
    PE_CHECK_EQ(lowest_free(), before);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, InMode(GetParam()))), "");
}

TEST_P(Growing, AccessBeyondTheBlocksIsAnError) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    auto* block = static_cast<std::byte*>(ShmemMalloc(kChunk));
    PE_CHECK(block != nullptr);
    int value = 0;
    PE_CHECK(ShmemPutMem(block + kChunk, &value, sizeof value, 0) != 0);
    PE_CHECK(LastErrorHas("are in no live block of the heap"));
    PE_CHECK(ShmemPutMem(block + kChunk - 2, &value, sizeof value, 0) != 0);
    PE_CHECK(LastErrorHas("are in no live block of the heap"));
    PE_CHECK(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block), pe.rank, 1 - pe.rank) != 0);
    PE_CHECK_EQ(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block) + kChunk, pe.rank, 1 - pe.rank),
                0u);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, InMode(GetParam()))), "");
}

/// All PEs get the error of the one that has no memory to give, and go on as if nothing had
/// happened.
TEST_P(Growing, MemoryExhaustedOnOnePeIsAnErrorOnAll) {
  const bool has_chunks = std::strcmp(GetParam(), "vmm") == 0;
  Options options = InMode(GetParam());
  // A file may not be this large on PE 1: no chunk in vmm mode, no large block in isolation.
  const rlim_t limit = has_chunks ? kChunk / 2 : 2 * kChunk;
  const auto body = [&](const Pe& pe) {
    pe.Init();
    void* first = ShmemMalloc(has_chunks ? kChunk / 2 : 64);
    PE_CHECK(first != nullptr);
    const HeapStats before = Stats();
    const std::size_t mapped = MappedBytes();
    {
      std::optional<testing::Limit> limited;
      if (pe.rank == 1) limited.emplace(RLIMIT_FSIZE, limit);
      PE_CHECK(ShmemMalloc(4 * kChunk) == nullptr);
      PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kOutOfMemory));
      PE_CHECK(LastErrorHas("ulimit -f"));
      PE_CHECK_EQ(LastErrorHas("PE 1 (host "), pe.rank != 1);
      PE_CHECK_EQ(Stats().used_bytes, before.used_bytes);
      PE_CHECK_EQ(MappedBytes(), mapped);
      void* smaller = ShmemMalloc(1000);
      PE_CHECK(smaller != nullptr);
      PE_CHECK_EQ(ShmemFree(smaller), 0);
    }
    PE_CHECK(ShmemMalloc(4 * kChunk) != nullptr);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(3, body, options)), "");
}

/// At every limit from none to enough, on the first PE, which hands the descriptors around, and on
/// another.
TEST_P(Growing, ADescriptorLimitOnOnePeIsAnErrorOnAll) {
  for (const int victim : {0, 1}) {
    const auto body = [&](const Pe& pe) {
      pe.Init();
      void* first = ShmemMalloc(64);
      PE_CHECK(first != nullptr);
      const int lowest = ::dup(0);
      ::close(lowest);
      int failed = 0;
      for (int more = 0; more <= 40; ++more) {
        void* block = nullptr;
        {
          std::optional<testing::Limit> limited;
          if (pe.rank == victim) limited.emplace(RLIMIT_NOFILE, static_cast<rlim_t>(lowest + more));
          block = ShmemMalloc(3 * kChunk);
        }
        if (block == nullptr) {
          ++failed;
          PE_CHECK(LastErrorHas("open files"));
        } else {
          PE_CHECK_EQ(ShmemFree(block), 0);
        }
        PE_CHECK_EQ(Stats().live_blocks, 1u);
      }
      PE_CHECK(failed >= 3 && failed <= 40);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    };
    EXPECT_EQ(Failures(testing::RunProcesses(3, body, InMode(GetParam()))), "") << victim;
  }
}

const char* kill_point = nullptr;
void KillAtPoint(const char* point) {
  if (std::strcmp(point, kill_point) == 0) ::kill(::getpid(), SIGKILL);
}

TEST_P(Growing, APeKilledDuringGrowthIsNamed) {
  for (const char* point : {"heap: memory made", "heap: memory mapped"}) {
    for (const int victim : {0, 2}) {
      const auto body = [&](const Pe& pe) {
        pe.Init();
        if (pe.rank == victim) {
          kill_point = point;
          fault_hook = KillAtPoint;
        }
        PE_CHECK(ShmemMalloc(2 * kChunk) == nullptr);
        PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kPeerLost));
        PE_CHECK(LastErrorHas(fmt::format("PE {}", victim)) ||
                 LastErrorHas(fmt::format("rank {}", victim)));
        ShmemFinalize();
      };
      auto outcomes = testing::RunProcesses(3, body, InMode(GetParam()));
      EXPECT_EQ(outcomes[static_cast<std::size_t>(victim)].signal, SIGKILL);
      outcomes[static_cast<std::size_t>(victim)] = {};
      EXPECT_EQ(Failures(outcomes), "") << point << ", PE " << victim;
    }
  }
}

TEST_P(EveryMode, FlagsAreHonouredWhereMemoryIsOfItsOwn) {
  Options options = InMode(GetParam());
  options.environment.emplace_back("MORI_SHMEM_HEAP_TYPE", "normal");
  const bool is_isolation = std::strcmp(GetParam(), "isolation") == 0;
  const auto body = [&](const Pe& pe) {
    pe.Init();
    for (const unsigned flags : {0x0u, 0x1u}) {
      PE_CHECK(ShmemExtMallocWithFlags(100, flags) != nullptr);
    }
    PE_CHECK_EQ(ShmemExtMallocWithFlags(100, MORI_SHMEM_MALLOC_UNCACHED) != nullptr, is_isolation);
    if (!is_isolation) PE_CHECK(LastErrorHas("MORI_SHMEM_HEAP_TYPE=uncached"));
    PE_CHECK(ShmemExtMallocWithFlags(100, 0x40) == nullptr);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, options)), "");
}

/// A program that trains a network in PyTorch, allocation by allocation (benchmarks/torch_trace.py
/// records it). Every block holds its number until its end.
TEST_P(EveryMode, ATraceOfPyTorchReplays) {
  Options options = InMode(GetParam());
  options.deadline = std::chrono::seconds(240);  // without optimisation, beside other tests
  options.environment.emplace_back("MORI_SHMEM_HEAP_SIZE", "64M");
  const auto body = [](const Pe& pe) {
    pe.Init();
    std::ifstream trace(MORI_SOURCE_DIR "/tests/data/digits_cnn.trace");
    std::map<int, std::pair<std::byte*, std::size_t>> blocks;
    std::byte* base = nullptr;
    std::size_t live = 0, peak = 0, reach = 0, events = 0;
    char action = 0;
    for (int id = 0; trace >> action >> id; ++events) {
      if (action == 'a') {
        std::size_t bytes = 0;
        trace >> bytes;
        auto* block = static_cast<std::byte*>(ShmemMalloc(bytes));
        PE_CHECK(block != nullptr);
        if (base == nullptr) base = block;
        std::memset(block, id % 251, bytes);
        blocks[id] = {block, bytes};
        live += bytes;
        peak = std::max(peak, live);
        reach = std::max(reach, static_cast<std::size_t>(block - base) + bytes);
      } else {
        const auto [block, bytes] = blocks.at(id);
        PE_CHECK(IsAll(block, bytes, static_cast<std::uint8_t>(id % 251)));
        PE_CHECK_EQ(ShmemFree(block), 0);
        blocks.erase(id);
        live -= bytes;
      }
    }
    PE_CHECK(events > 1000);
    if (pe.rank == 0) {
      std::printf("%zu events, peak %zu bytes, heap reached %zu bytes\n", events, peak, reach);
    }
    // Placement depends on the calls alone, so this is the same everywhere; small blocks take a
    // page each in isolation.
    PE_CHECK(static_cast<double>(reach) < 1.5 * static_cast<double>(peak));
    for (const auto& [id, block] : blocks) PE_CHECK_EQ(ShmemFree(block.first), 0);
    PE_CHECK_EQ(Stats().used_bytes, 0u);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, options)), "");
}

/// Owners drop in another order on every PE; every block goes once, when all have dropped it.
TEST_P(EveryMode, DroppedBlocksAreFreedOnceAllPesHaveDroppedThem) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    constexpr int kBlocks = 12;
    std::vector<void*> owners;
    for (int i = 0; i < kBlocks; ++i) {
      void* block = ShmemMalloc(static_cast<std::size_t>(1000 * i + 1));
      owners.push_back(ShmemOwnBlock(block));
      PE_CHECK(owners.back() != nullptr);
      PE_CHECK(ShmemOwnBlock(block) == nullptr);
    }
    int local = 0;
    PE_CHECK(ShmemOwnBlock(&local) == nullptr);
    for (int step = 0; step < kBlocks; ++step) {
      // By then PE 0 has dropped blocks 0 to step, the others step blocks from the other end.
      const int mine = pe.rank == 0 ? step : kBlocks - 1 - step;
      ShmemDropBlock(owners[static_cast<std::size_t>(mine)]);
      if (step % 3 == 0) {
        void* block = ShmemMalloc(64);
        PE_CHECK(block != nullptr);
        PE_CHECK_EQ(ShmemFree(block), 0);
      } else {
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
      const int common = std::max(0, 2 * (step + 1) - kBlocks);
      PE_CHECK_EQ(Stats().live_blocks, static_cast<std::uint64_t>(kBlocks - common));
    }
    void* last = ShmemMalloc(64);
    void* owner = ShmemOwnBlock(last);
    PE_CHECK_EQ(ShmemFinalize(), 0);
    ShmemDropBlock(owner);
    ShmemDropBlock(nullptr);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(3, body, InMode(GetParam()))), "");
  EXPECT_EQ(Failures(testing::RunThreads(3, body, InMode(GetParam()))), "");
}

TEST(Isolation, ThousandsOfBlocksStayApart) {
  const auto body = [](const Pe& pe) {
    pe.Init();
    constexpr int kBlocks = 1500;
    const std::size_t board = MappedBytes();
    std::vector<std::uint64_t*> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(static_cast<std::uint64_t*>(ShmemMalloc(8)));
      PE_CHECK(blocks.back() != nullptr);
      PE_CHECK_EQ(ShmemP(blocks.back(), static_cast<std::uint64_t>(i), 1 - pe.rank), 0);
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int i = 0; i < kBlocks; ++i)
      PE_CHECK_EQ(*blocks[static_cast<std::size_t>(i)], static_cast<std::uint64_t>(i));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (std::uint64_t* block : blocks) PE_CHECK_EQ(ShmemFree(block), 0);
    PE_CHECK_EQ(MappedBytes(), board);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, InMode("isolation"))), "");
}

/// A descriptor for each would be beyond the limit; memory comes some chunks at a time.
TEST(Vmm, ChunksBeyondTheLimitOfDescriptorsComeAndGo) {
  Options options = InMode("vmm");
  options.environment.emplace_back("MORI_SHMEM_HEAP_SIZE", "64M");
  const auto body = [](const Pe& pe) {
    pe.Init();
    const int lowest = ::dup(0);
    ::close(lowest);
    const testing::Limit limit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest + 280));
    constexpr std::size_t kBlock = 800 * kChunk;
    for (int cycle = 0; cycle < 2; ++cycle) {
      auto* block = static_cast<std::uint8_t*>(ShmemMalloc(kBlock));
      PE_CHECK(block != nullptr);
      std::memset(block, pe.rank + 1, kBlock);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      const std::uintptr_t other =
          ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block), pe.rank, 1 - pe.rank);
      PE_CHECK(IsAll(reinterpret_cast<const void*>(other), kBlock,
                     static_cast<std::uint8_t>(2 - pe.rank)));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemFree(block), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  EXPECT_EQ(Failures(testing::RunProcesses(2, body, options)), "");
}

TEST(Static, HeapsThatTogetherExceedTheMachineAreALineOfOnePe) {
  Options options = InMode("static");
  options.environment.emplace_back("MORI_SHMEM_HEAP_SIZE", std::to_string(MemoryBytes() / 5 * 2));
  const auto body = [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  const std::string line = "the heaps of the 3 PEs of this node";
  for (const int pes : {2, 3}) {
    const auto outcomes = testing::RunProcesses(pes, body, options);
    EXPECT_EQ(Failures(outcomes), "");
    for (std::size_t pe = 0; pe < outcomes.size(); ++pe)
      EXPECT_EQ(outcomes[pe].output.find(line) != std::string::npos, pes == 3 && pe == 0);
  }
}

TEST(Vmm, AnOddChunkSizeIsRoundedUpWithANote) {
  Options options = InMode("vmm");
  options.environment.emplace_back("MORI_SHMEM_VMM_CHUNK_SIZE", "5000");
  const auto body = [](const Pe& pe) {
    pe.Init();
    auto* block = static_cast<std::uint8_t*>(ShmemMalloc(20'000));
    PE_CHECK(block != nullptr);
    std::memset(block, pe.rank, 20'000);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  };
  const auto outcomes = testing::RunProcesses(2, body, options);
  EXPECT_EQ(Failures(outcomes), "");
  EXPECT_NE(outcomes[0].output.find("MORI_SHMEM_VMM_CHUNK_SIZE is 4.88 KiB, chunks are 8 KiB"),
            std::string::npos)
      << outcomes[0].output;
  EXPECT_EQ(outcomes[1].output.find("MORI_SHMEM_VMM_CHUNK_SIZE"), std::string::npos);
}

}  // namespace
}  // namespace mori::shmem
