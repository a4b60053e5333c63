// The CUDA backend on a GPU: heaps of every mode in its memory, put and get by the host. PEs share
// the GPUs there are. Skipped without one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpu/cuda_pes.hpp"

namespace mori::shmem {
namespace {

using testing::Pe;

class CudaBackend : public testing::CudaPes {};
INSTANTIATE_TEST_SUITE_P(Heap, CudaBackend, ::testing::ValuesIn(testing::CudaShapes({2})),
                         testing::NameOfShape);

/// Bytes that tell PE, round and place apart.
std::vector<std::uint8_t> Pattern(int pe, int round, std::size_t bytes) {
  std::vector<std::uint8_t> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] =
        static_cast<std::uint8_t>(i * 7 + i / 256 + static_cast<std::size_t>(pe * 31 + round));
  }
  return data;
}

TEST_P(CudaBackend, PutsAndGetsOfEverySizeArrive) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  pe.Init();
                  PE_CHECK(ShmemDevice() >= 0);
                  constexpr std::size_t kBytes = 9 << 20;
                  auto* block = static_cast<std::uint8_t*>(ShmemMalloc(kBytes));
                  PE_CHECK(block != nullptr);
                  const int peer = 1 - pe.rank;
                  int round = 0;
                  for (const std::size_t bytes :
                       {std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{2 << 20},
                        std::size_t{(2 << 20) + 1}, kBytes - 65}) {
                    for (const std::size_t offset : {0, 1, 64}) {
                      const auto data = Pattern(pe.rank, ++round, bytes);
                      PE_CHECK_EQ(ShmemPutMem(block + offset, data.data(), bytes, peer), 0);
                      PE_CHECK_EQ(ShmemBarrierAll(), 0);
                      std::vector<std::uint8_t> mine(bytes), theirs(bytes);
                      PE_CHECK_EQ(ShmemGetMem(mine.data(), block + offset, bytes, pe.rank), 0);
                      PE_CHECK(mine == Pattern(peer, round, bytes));
                      PE_CHECK_EQ(ShmemGetMem(theirs.data(), block + offset, bytes, peer), 0);
                      PE_CHECK(theirs == data);
                      PE_CHECK_EQ(ShmemBarrierAll(), 0);
                    }
                  }
                  PE_CHECK_EQ(ShmemFree(block), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                }),
            "");
}

TEST_P(CudaBackend, ARandomProgramIsAsItsModel) {
  EXPECT_EQ(
      Run(3,
          [](const Pe& pe) {
            struct Block {
              std::uint8_t* address;
              std::size_t bytes;
              int value;  ///< of the last put, which is the same on all PEs
            };
            pe.Init();
            std::mt19937 shared(5);
            std::vector<Block> blocks;
            for (int step = 0; step < 60; ++step) {
              const auto draw = shared() % 4;
              if (draw == 0 && blocks.size() < 6) {
                const std::size_t bytes = shared() % (5 << 20) + 1;
                auto* address = static_cast<std::uint8_t*>(
                    ShmemMallocAlign(std::size_t{1} << shared() % 20, bytes));
                PE_CHECK(address != nullptr);
                const auto data = Pattern(pe.rank, step, bytes);
                PE_CHECK_EQ(ShmemPutMem(address, data.data(), bytes, (pe.rank + 1) % pe.size), 0);
                blocks.push_back({address, bytes, step});
              } else if (draw == 1 && !blocks.empty()) {
                const auto victim =
                    blocks.begin() + static_cast<std::ptrdiff_t>(shared() % blocks.size());
                PE_CHECK_EQ(ShmemFree(victim->address), 0);
                blocks.erase(victim);
              } else if (!blocks.empty()) {
                const Block& block = blocks[shared() % blocks.size()];
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                std::vector<std::uint8_t> seen(block.bytes);
                const int from = (pe.rank + step) % pe.size;
                PE_CHECK_EQ(ShmemGetMem(seen.data(), block.address, block.bytes, from), 0);
                PE_CHECK(seen == Pattern((from + pe.size - 1) % pe.size, block.value, block.bytes));
              }
            }
            PE_CHECK_EQ(ShmemFinalize(), 0);
          }),
      "");
}

TEST_P(CudaBackend, WhatIsNoAddressOrNoPeIsAnError) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  pe.Init();
                  auto* word = static_cast<std::uint64_t*>(ShmemMalloc(64));
                  PE_CHECK(ShmemPutMem(word + (1 << 20), &pe.rank, 8, 0) != 0 ||
                           std::getenv("MORI_SHMEM_MODE") == std::string("static"));
                  PE_CHECK(ShmemPutMem(word, &pe.rank, 8, 7) != 0);
                  PE_CHECK(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(word), pe.rank,
                                       1 - pe.rank) != 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                }),
            "");
}

TEST_P(CudaBackend, MoreThanTheDeviceHasIsAnErrorAndChangesNothing) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  pe.Init();
                  PE_CHECK(ShmemMalloc(std::size_t{1} << 30) == nullptr);
                  PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kOutOfMemory));
                  PE_CHECK(ShmemMalloc(1000) != nullptr);
                  for (int i = 0; i < 50; ++i) {
                    void* block = ShmemMalloc(3 << 20);
                    PE_CHECK(block != nullptr);
                    PE_CHECK_EQ(ShmemFree(block), 0);
                  }
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                }),
            "");
}

// ---- shared by CUDA IPC ----

class CudaIpcHeap : public testing::CudaPes {};
INSTANTIATE_TEST_SUITE_P(Heap, CudaIpcHeap,
                         ::testing::Values(testing::CudaShape{"ipc", testing::As::kProcesses},
                                           testing::CudaShape{"ipc", testing::As::kThreads}),
                         testing::NameOfShape);

TEST_P(CudaIpcHeap, AlignsToTwoMebibytesAndNoFurther) {
  EXPECT_EQ(
      Run(3,
          [](const Pe& pe) {
            constexpr std::size_t kMost = 2 << 20;
            pe.Init();
            auto* block = static_cast<std::uint8_t*>(ShmemMallocAlign(kMost, 100));
            PE_CHECK(block != nullptr);
            for (int other = 0; other < pe.size; ++other)
              PE_CHECK_EQ(
                  ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block), pe.rank, other) % kMost, 0u);
            PE_CHECK(ShmemMallocAlign(2 * kMost, 100) == nullptr);
            PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kInvalidArgument));
            PE_CHECK(std::strstr(ShmemLastError(), "more than 2 MiB") != nullptr);
            PE_CHECK_EQ(ShmemFinalize(), 0);
          }),
      "");
}

TEST_P(CudaIpcHeap, WorldsFollowOneAnother) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  for (int round = 1; round <= 5; ++round) {
                    Pe now = pe;
                    now.id = pe.FreshId(round);
                    now.Init();
                    auto* word = static_cast<int*>(ShmemMalloc(sizeof(int)));
                    PE_CHECK(word != nullptr);
                    const int sent = 100 * round + pe.rank;
                    PE_CHECK_EQ(ShmemPutMem(word, &sent, sizeof sent, 1 - pe.rank), 0);
                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                    PE_CHECK_EQ(ShmemG(word, pe.rank), 100 * round + 1 - pe.rank);
                    PE_CHECK_EQ(ShmemFinalize(), 0);
                  }
                }),
            "");
}

class CudaSharing : public testing::CudaTest {
 protected:
  /// Two processes whose init fails alike. @return what is not as it should be
  static std::string Refused(const char* mode, const char* first, const char* second,
                             const char* sentence) {
    auto options = OptionsOf(mode, testing::As::kProcesses);
    const auto body = [=](const Pe& pe) {
      ::setenv("MORI_SHMEM_GPU_SHARING", pe.rank == 0 ? first : second, 1);
      PE_CHECK(pe.TryInit() != 0);
      if (std::strstr(ShmemLastError(), sentence) == nullptr)
        throw testing::PeFailure(ShmemLastError());
    };
    return Failures(RunProcesses(2, body, options));
  }
};

TEST_F(CudaSharing, IsTheSameForAllPes) {
  EXPECT_EQ(Refused("static", "fd", "ipc",
                    "MORI_SHMEM_GPU_SHARING must be the same on all PEs: PE 0 has fd, PE 1 has "
                    "ipc"),
            "");
}

TEST_F(CudaSharing, ByIpcServesStaticModeAlone) {
  for (const char* mode : {"vmm", "isolation"}) {
    EXPECT_EQ(Refused(mode, "ipc", "ipc", "set MORI_SHMEM_MODE=static"), "") << mode;
  }
}

}  // namespace
}  // namespace mori::shmem
