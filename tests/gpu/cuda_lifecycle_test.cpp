// Worlds on a GPU that come, go, and end in other ways than they should.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Cuda;
using testing::CudaShape;
using testing::Outcome;
using testing::Pe;

/// Processes, in every mode and by each way of sharing; without MPS, under which what happens to
/// one happens to all.
class CudaLifecycle : public testing::CudaTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static std::vector<Outcome> RunProcesses(int size, const testing::Body& body) {
    auto options = OptionsOf(GetParam(), As::kProcesses);
    options.environment.emplace_back("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    options.environment.emplace_back("MORI_GLOBAL_LOG_LEVEL", "WARN");
    return RunInTurn(As::kProcesses, size, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, CudaLifecycle,
                         ::testing::Values("static", "vmm", "isolation", "ipc"),
                         [](const auto& parameter) { return std::string(parameter.param); });

/// A word of every PE that names it and the world.
int* Word(int world) {
  auto* word = static_cast<int*>(ShmemMalloc(sizeof(int)));
  PE_CHECK(word != nullptr);
  const int mine = 100 * world + ShmemMyPe();
  PE_CHECK_EQ(ShmemPutMem(word, &mine, sizeof mine, ShmemMyPe()), 0);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  return word;
}

TEST_P(CudaLifecycle, WorldsFollowOneAnother) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    for (int world = 1; world <= 5; ++world) {
                                      Pe now = pe;
                                      now.id = pe.FreshId(world);
                                      now.Init();
                                      const int* word = Word(world);
                                      const int other = 1 - pe.rank;
                                      PE_CHECK_EQ(ShmemG(word, other), 100 * world + other);
                                      PE_CHECK_EQ(ShmemFinalize(), 0);
                                    }
                                  })),
            "");
}

TEST_P(CudaLifecycle, AProcessThatEndsWithoutFinalizeSaysNothing) {
  const auto outcomes = RunProcesses(1, [](const Pe& pe) {
    pe.Init();
    Word(1);
    std::exit(0);  // with all destructors and exit handlers, unlike the end of a test's process
  });
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].output;
  EXPECT_EQ(outcomes[0].output, "");
}

/// As by cudaDeviceReset(): contexts, memory and streams are gone, ours among them.
TEST_P(CudaLifecycle, FinalizeReturnsWhenTheDeviceWasReset) {
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    const Cuda cuda(pe);
                                    pe.Init();
                                    Word(1);
                                    cuda.Call<int>("cuDevicePrimaryCtxReset_v2", cuda.device());
                                    ShmemFinalize();
                                    PE_CHECK(!ShmemInitialized());
                                  })),
            "");
}

TEST_P(CudaLifecycle, SurvivorsKeepTheirMemoryAndLearnWhoWasLost) {
  const auto outcomes = RunProcesses(3, [](const Pe& pe) {
    pe.Init();
    const int* word = Word(1);
    if (pe.rank == 1) ::_exit(0);
    while (ShmemBarrierAll() == 0) {
    }
    PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK(std::strstr(ShmemLastError(), "PE 1 (host ") != nullptr);
    PE_CHECK_EQ(ShmemG(word, pe.rank), 100 + pe.rank);
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
  });
  EXPECT_EQ(Failures(outcomes), "");
}

/// Without a current device, and without MORI_LOCAL_RANK.
TEST_P(CudaLifecycle, ProcessesOfTorchrunTakeTheGpusInTurn) {
  if (testing::GpuCount() < 2) GTEST_SKIP() << "no second GPU";
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [](const Pe& pe) {
                                    const std::string rank = std::to_string(pe.rank);
                                    ::unsetenv("MORI_LOCAL_RANK");
                                    ::setenv("MASTER_PORT", "1", 1);
                                    ::setenv("LOCAL_RANK", rank.c_str(), 1);
                                    pe.Init();
                                    PE_CHECK_EQ(ShmemDevice(), pe.rank);
                                    PE_CHECK_EQ(ShmemFinalize(), 0);
                                  })),
            "");
}

/// As launchers start them that give each process a GPU: device 0 of each is another one.
TEST_P(CudaLifecycle, ProcessesThatSeeOneGpuEachReachEachOther) {
  if (testing::GpuCount() < 2) GTEST_SKIP() << "no second GPU";
  if (testing::KernelFolder().empty()) GTEST_SKIP() << "no nvcc to compile kernels with";
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::stringstream names(visible == nullptr ? "0,1" : visible);
  std::vector<std::string> gpus(2);
  for (std::string& gpu : gpus) std::getline(names, gpu, ',');
  EXPECT_EQ(Failures(RunProcesses(2,
                                  [&gpus](const Pe& pe) {
                                    ::setenv("CUDA_VISIBLE_DEVICES",
                                             gpus[static_cast<std::size_t>(pe.rank)].c_str(), 1);
                                    testing::GpuPe gpu(pe, "kernels");
                                    PE_CHECK_EQ(ShmemDevice(), 0);
                                    constexpr std::uint64_t kWords = 600;
                                    auto* data = gpu.Zeroed<std::uint64_t>(kWords);
                                    auto* scratch = gpu.Zeroed<std::uint64_t>(kWords);
                                    auto* signal = gpu.Zeroed<std::uint64_t>(1);
                                    gpu.cuda.Launch("ping_pong_block", 1, 256, data, scratch,
                                                    kWords, signal, 2000, testing::Right(pe),
                                                    gpu.errors);
                                    const int* word = Word(1);
                                    PE_CHECK_EQ(ShmemG(word, 1 - pe.rank), 101 - pe.rank);
                                    gpu.End();
                                  })),
            "");
}

TEST_P(CudaLifecycle, AModuleWithoutTheSymbolIsAnErrorAndLeavesNoneBehind) {
  EXPECT_EQ(
      Failures(RunProcesses(
          1,
          [](const Pe& pe) {
            constexpr const char* kPtx =
                ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry none() { ret; }";
            const Cuda cuda(pe);
            pe.Init();
            void* module = nullptr;
            cuda.Call<void**, const void*>("cuModuleLoadData", &module, kPtx);
            PE_CHECK_EQ(ShmemModuleInit(module), static_cast<int>(ErrorCode::kInvalidArgument));
            PE_CHECK(std::strstr(ShmemLastError(), "globalGpuStates") != nullptr);
            Word(1);
            cuda.Sync(cuda.stream());
            PE_CHECK_EQ(ShmemFinalize(), 0);
          })),
      "");
}

}  // namespace
}  // namespace mori::shmem
