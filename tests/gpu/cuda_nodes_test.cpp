// PEs on several nodes of one machine, made by MORI_NODE_ID: kernels and streams reach those of
// other nodes by the ring and its proxy, and heaps in memory of GPUs go over the network.
#include <gtest/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"
#include "mori/shmem/stream_ops.hpp"

namespace mori::shmem {
namespace {

using testing::GpuPe;
using testing::Left;
using testing::Pe;
using testing::Right;

struct Placement {
  const char* name;
  std::vector<std::string> nodes;
  const char* mode = "static";
};

class CudaNodes : public testing::CudaTest, public ::testing::WithParamInterface<Placement> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (testing::KernelFolder().empty()) GTEST_SKIP() << "no nvcc to compile kernels with";
    if (static_cast<int>(GetParam().nodes.size()) > std::max(testing::GpuCount(), 1) &&
        std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr)
      GTEST_SKIP() << "kernels of processes that share a GPU and wait for each other need MPS";
  }
  static std::string Run(const testing::Body& body) {
    const Placement& placement = GetParam();
    const int size = static_cast<int>(placement.nodes.size());
    const auto on_its_node = [&](const Pe& pe) {
      ::setenv("MORI_NODE_ID", placement.nodes[static_cast<std::size_t>(pe.rank)].c_str(), 1);
      body(pe);
    };
    return Failures(RunInTurn(testing::As::kProcesses, size, on_its_node,
                              OptionsOf(placement.mode, testing::As::kProcesses, size)));
  }
};
INSTANTIATE_TEST_SUITE_P(Placements, CudaNodes,
                         ::testing::Values(Placement{"OneEach", {"a", "b"}},
                                           Placement{"Scattered", {"a", "b", "a"}},
                                           Placement{"Growing", {"a", "b", "a"}, "vmm"},
                                           Placement{"Ipc", {"a", "b"}, "ipc"}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(CudaNodes, KernelsPutAndGetAtEveryScope) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              constexpr std::size_t kBytes = 5 << 20;
              auto* dest = gpu.Zeroed<std::uint8_t>(kBytes);
              auto* source = gpu.Zeroed<std::uint8_t>(kBytes);
              for (const testing::Scope& scope : testing::kScopes) {
                for (const std::size_t bytes : {1ul, 64ul, 4097ul, 300'001ul, kBytes - 64}) {
                  std::vector<std::uint8_t> data(bytes);
                  for (std::size_t i = 0; i < bytes; ++i)
                    data[i] = static_cast<std::uint8_t>(i * 7 + bytes +
                                                        91 * static_cast<std::size_t>(pe.rank));
                  PE_CHECK_EQ(ShmemPutMem(source + 3, data.data(), bytes, pe.rank), 0);
                  gpu.cuda.Launch(fmt::format("put_{}", scope.name), 1, scope.threads, dest + 8,
                                  source + 3, bytes, Right(pe));
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  std::vector<std::uint8_t> found(bytes);
                  PE_CHECK_EQ(ShmemGetMem(found.data(), dest + 8, bytes, Right(pe)), 0);
                  PE_CHECK(found == data);
                  gpu.cuda.Launch(fmt::format("get_{}", scope.name), 1, scope.threads, source + 3,
                                  dest + 8, bytes, Right(pe));
                  PE_CHECK_EQ(ShmemGetMem(found.data(), source + 3, bytes, pe.rank), 0);
                  PE_CHECK(found == data);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                }
              }
              gpu.End();
            }),
            "");
}

TEST_P(CudaNodes, WhoSeesTheSignalSeesTheData) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              for (const testing::Scope& scope : testing::kScopes) {
                constexpr std::uint64_t kWords = 600;
                auto* data = gpu.Zeroed<std::uint64_t>(kWords);
                auto* scratch = gpu.Zeroed<std::uint64_t>(kWords);
                auto* signal = gpu.Zeroed<std::uint64_t>(1);
                gpu.cuda.Launch(fmt::format("ping_pong_{}", scope.name), 1, scope.threads, data,
                                scratch, kWords, signal, 200, Right(pe), gpu.errors);
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
              }
              gpu.End();
            }),
            "");
}

TEST_P(CudaNodes, AtomicsReturnWhatWasThereAndSumExactly) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              auto* words = gpu.Zeroed<std::uint64_t>(4);
              auto* small = gpu.Zeroed<std::uint32_t>(4);
              gpu.cuda.Launch("atomics", 1, 1, words + pe.rank, small + pe.rank, Right(pe),
                              gpu.errors);
              auto* counter = gpu.Zeroed<std::uint64_t>(1);
              auto* small_counter = gpu.Zeroed<std::uint32_t>(1);
              constexpr int kTimes = 4;
              constexpr unsigned kThreads = 64;
              gpu.cuda.Launch("add_everywhere", 2, kThreads, counter, small_counter, kTimes);
              for (int n = 0; n < kTimes; ++n)
                PE_CHECK_EQ(ShmemAtomicAdd(counter, std::uint64_t{1}, Right(pe)), 0);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              const auto all = static_cast<unsigned>(2 * kThreads * kTimes * pe.size);
              PE_CHECK_EQ(gpu.ReadOne(counter), all + kTimes);
              PE_CHECK_EQ(gpu.ReadOne(small_counter), 3 * all);
              gpu.End();
            }),
            "");
}

TEST_P(CudaNodes, BarriersOfKernels) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "kernels");
              auto* rounds = gpu.Zeroed<std::uint64_t>(1);
              gpu.cuda.Launch("barriers", 1, 64, rounds, 50, gpu.errors);
              gpu.End();
            }),
            "");
}

TEST_P(CudaNodes, CallsOnStreamsReachOtherNodes) {
  EXPECT_EQ(
      Run([](const Pe& pe) {
        GpuPe gpu(pe, "streams");
        void* const stream = gpu.cuda.stream();
        constexpr std::uint64_t kWords = 30'000;
        const auto n_pes = static_cast<std::uint64_t>(pe.size);
        const auto mark = [](int of) {
          return std::uint64_t{1'000'000} * static_cast<unsigned>(of);
        };
        auto* source = gpu.Zeroed<std::uint64_t>(kWords);
        auto* dest = gpu.Zeroed<std::uint64_t>(kWords * n_pes);
        auto* signal = gpu.Zeroed<std::uint64_t>(1);
        for (std::uint64_t round = 1; round <= 5; ++round) {
          gpu.cuda.LaunchOn(stream, "fill", 4, 256, source, kWords, mark(pe.rank) + round);
          PE_CHECK_EQ(ShmemPutMemSignalOnStream(dest, source, 8 * kWords, signal, round,
                                                SignalOp::kSet, Right(pe), stream),
                      0);
          PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, Cmp::kGe, round, stream), 0);
          gpu.cuda.LaunchOn(stream, "check", 4, 256, dest, kWords, mark(Left(pe)) + round,
                            gpu.errors);
          PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
        }
        gpu.cuda.LaunchOn(stream, "fill", 4, 256, source, kWords, mark(pe.rank));
        PE_CHECK_EQ(ShmemFCollectMemOnStream(dest, source, 8 * kWords, stream), 0);
        for (int from = 0; from < pe.size; ++from)
          gpu.cuda.LaunchOn(stream, "check", 4, 256,
                            dest + static_cast<std::uint64_t>(from) * kWords, kWords, mark(from),
                            gpu.errors);
        PE_CHECK_EQ(
            ShmemReduceOnStream(dest, source, kWords, ElementType::kUint64, ReduceOp::kMax, stream),
            0);
        gpu.cuda.LaunchOn(stream, "check", 4, 256, dest, kWords, mark(pe.size - 1), gpu.errors);
        gpu.cuda.Sync(stream);
        gpu.End();
      }),
      "");
}

}  // namespace
}  // namespace mori::shmem
