// The device API in kernels, on a GPU. PEs are threads of a process, which share a context and
// whose kernels run side by side; processes do so under MPS only (CUDA_MPS_PIPE_DIRECTORY), and are
// skipped without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::GpuPe;
using testing::Pe;
using testing::Right;

class CudaKernels : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Modes, CudaKernels, ::testing::ValuesIn(testing::CudaShapes({1, 2})),
                         testing::NameOfShape);

TEST_P(CudaKernels, KnowTheirPe) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              int* pes = gpu.Zeroed<int>(2);
              gpu.cuda.Launch("identity", 1, 1, pes);
              PE_CHECK(gpu.Read(pes, 2) == (std::vector<int>{pe.rank, pe.size}));
              PE_CHECK(ShmemModuleInit(nullptr) != 0);
              gpu.End();
            }),
            "");
}

TEST_P(CudaKernels, PutAndGetAtEveryScopeSizeAndAlignment) {
  EXPECT_EQ(
      Run([](const Pe& pe) {
        GpuPe gpu(pe, "kernels");
        constexpr std::size_t kBytes = 5 << 20;
        auto* dest = gpu.Zeroed<std::uint8_t>(kBytes);
        auto* source = gpu.Zeroed<std::uint8_t>(kBytes);
        const int peer = Right(pe);
        int round = 0;
        for (const char* scope : {"thread", "warp", "block"}) {
          const unsigned threads = scope[0] == 't' ? 1 : scope[0] == 'w' ? 32 : 1024;
          std::vector<std::size_t> sizes;
          for (std::size_t bytes = 1; bytes <= 257; bytes += bytes < 34 ? 1 : 37)
            sizes.push_back(bytes);
          for (const std::size_t bytes : {4096, 65'537}) sizes.push_back(bytes);
          if (threads == 1024) sizes.push_back(kBytes - 64);
          for (const std::size_t bytes : sizes) {
            for (const auto& [to, from] :
                 {std::pair{0, 0}, {1, 0}, {3, 7}, {4, 8}, {8, 16}, {16, 5}}) {
              ++round;
              std::vector<std::uint8_t> data(bytes);
              for (std::size_t i = 0; i < bytes; ++i)
                data[i] = static_cast<std::uint8_t>(i * 7 +
                                                    static_cast<std::size_t>(round + 91 * pe.rank));
              PE_CHECK_EQ(ShmemPutMem(source + from, data.data(), bytes, pe.rank), 0);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              gpu.cuda.Launch(fmt::format("put_{}", scope), 1, threads, dest + to, source + from,
                              bytes, peer);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              std::vector<std::uint8_t> around(bytes + 2);
              const std::size_t before = to > 0 ? 1 : 0;
              PE_CHECK_EQ(ShmemGetMem(around.data(), dest + to - before, bytes + before + 1, peer),
                          0);
              PE_CHECK(std::equal(data.begin(), data.end(),
                                  around.begin() + static_cast<std::ptrdiff_t>(before)));
              // And back, from there into the first bytes here.
              gpu.cuda.Launch(fmt::format("get_{}", scope), 1, threads, source + from, dest + to,
                              bytes, peer);
              std::vector<std::uint8_t> back(bytes);
              PE_CHECK_EQ(ShmemGetMem(back.data(), source + from, bytes, pe.rank), 0);
              PE_CHECK(back == data);
            }
          }
        }
        gpu.End();
      }),
      "");
}

TEST_P(CudaKernels, WhoSeesTheSignalSeesTheData) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              for (const char* scope : {"thread", "warp", "block"}) {
                const unsigned threads = scope[0] == 't' ? 1 : scope[0] == 'w' ? 32 : 256;
                constexpr std::uint64_t kWords = 600;
                auto* data = gpu.Zeroed<std::uint64_t>(kWords);
                auto* scratch = gpu.Zeroed<std::uint64_t>(kWords);
                auto* signal = gpu.Zeroed<std::uint64_t>(1);
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                gpu.cuda.Launch(fmt::format("ping_pong_{}", scope), 1, threads, data, scratch,
                                kWords, signal, 2000, Right(pe), gpu.errors);
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
              }
              gpu.End();
            }),
            "");
}

TEST_P(CudaKernels, AtomicsReturnWhatWasThere) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              auto* words = gpu.Zeroed<std::uint64_t>(4);
              auto* small = gpu.Zeroed<std::uint32_t>(4);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              gpu.cuda.Launch("atomics", 1, 1, words + pe.rank, small + pe.rank, Right(pe),
                              gpu.errors);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              gpu.End();
            }),
            "");
}

TEST_P(CudaKernels, AtomicsSumExactly) {
  // Three PEs, so that they do not come in pairs; or one where one is asked for.
  EXPECT_EQ(Run(GetParam().size == 1 ? 1 : 3,
                [](const Pe& pe) {
                  GpuPe gpu(pe, "kernels");
                  auto* counter = gpu.Zeroed<std::uint64_t>(1);
                  auto* small = gpu.Zeroed<std::uint32_t>(1);
                  const auto n_pes = static_cast<std::uint32_t>(pe.size);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.cuda.Launch("add_everywhere", 8, 256, counter, small, 50);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(gpu.Read(counter, 1)[0], n_pes * 8 * 256 * 50);
                  PE_CHECK_EQ(gpu.Read(small, 1)[0], n_pes * 3 * 8 * 256 * 50);
                  gpu.End();
                }),
            "");
}

// That they end, and keep the PEs in step. A fence that is missing is seen by the litmus tests
// alone.
TEST_P(CudaKernels, AHundredThousandBarriersKeepInStep) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              auto* rounds = gpu.Zeroed<std::uint64_t>(1);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              gpu.cuda.Launch("barriers", 1, 64, rounds, 50'000, gpu.errors);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              gpu.End();
            }),
            "");
}

// Lanes that a block does not have had a part of each copy, which nobody put.
TEST_P(CudaKernels, WarpsOfABlockThatIsNoWholeNumberOfWarpsPutAll) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              constexpr std::uint64_t kWords = 601;  // of each warp
              auto* dest = gpu.Zeroed<std::uint64_t>(8 * kWords);
              auto* source = gpu.Zeroed<std::uint64_t>(8 * kWords);
              std::uint64_t value = 0;
              for (const unsigned threads : {1U, 31U, 33U, 40U, 95U, 250U}) {
                value += 1'000'001;
                gpu.cuda.Launch("put_by_warps", 1, threads, dest, source, kWords, value, Right(pe),
                                gpu.errors);
                gpu.ExpectNoErrors();
              }
              gpu.End();
            }),
            "");
}

}  // namespace
}  // namespace mori::shmem
