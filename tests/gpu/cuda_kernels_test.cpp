// The device API in kernels, on a GPU. PEs are threads of a process, which share a context and
// whose kernels run side by side; processes do so under MPS only (CUDA_MPS_PIPE_DIRECTORY), and are
// skipped without it.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/cuda_pes.hpp"

namespace mori::shmem {
namespace {

using testing::Pe;

/// What the tests themselves need of the driver.
class Cuda {
 public:
  Cuda() {
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW);
    PE_CHECK(library_ != nullptr);
    Call<unsigned>("cuInit", 0);
    Call<void**, int>("cuDevicePrimaryCtxRetain", &context_, 0);
    Call<void*>("cuCtxSetCurrent", context_);
    Call<void**, unsigned>("cuStreamCreate", &stream_, 1);
  }

  void* Load() {
    std::ifstream file(MORI_GPU_KERNELS);
    std::stringstream text;
    text << file.rdbuf();
    PE_CHECK(!text.str().empty());
    Call<void**, const void*>("cuModuleLoadData", &module_, text.str().c_str());
    return module_;
  }

  template <typename... Arguments>
  void Launch(const char* name, unsigned blocks, unsigned threads, Arguments... arguments) {
    void* function = nullptr;
    Call<void**, void*, const char*>("cuModuleGetFunction", &function, module_, name);
    void* addresses[] = {&arguments...};
    Call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
         void**>("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream_, addresses,
                 nullptr);
    Call<void*>("cuStreamSynchronize", stream_);
  }

 private:
  template <typename... Arguments>
  void Call(const char* name, Arguments... arguments) {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
    PE_CHECK(function != nullptr);
    const int result = function(arguments...);
    if (result != 0) throw testing::PeFailure(fmt::format("{}: CUresult {}", name, result));
  }

  void* library_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* module_ = nullptr;
};

/// A PE with its kernels loaded and its state published.
class GpuPe {
 public:
  explicit GpuPe(const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemModuleInit(cuda.Load()), 0);
    errors = Zeroed<std::uint64_t>(1);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
  }

  /// Symmetric memory of zeros.
  template <typename T>
  T* Zeroed(std::size_t count) {
    auto* block = static_cast<T*>(ShmemMalloc(count * sizeof(T)));
    PE_CHECK(block != nullptr);
    const std::vector<T> zeros(count, T{});
    PE_CHECK_EQ(ShmemPut(block, zeros.data(), count, ShmemMyPe()), 0);
    return block;
  }
  template <typename T>
  std::vector<T> Read(const T* block, std::size_t count) {
    std::vector<T> values(count);
    PE_CHECK_EQ(ShmemGet(values.data(), block, count, ShmemMyPe()), 0);
    return values;
  }
  void End() {
    PE_CHECK_EQ(Read(errors, 1)[0], 0u);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  }

  Cuda cuda;
  std::uint64_t* errors;
};

class CudaKernels : public testing::CudaPes {
 protected:
  void SetUp() override {
    CudaPes::SetUp();
    if (IsSkipped()) return;
    if (std::string(MORI_GPU_KERNELS).empty()) GTEST_SKIP() << "no nvcc to compile kernels with";
    if (as() == testing::As::kProcesses && std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr)
      GTEST_SKIP() << "kernels of processes that wait for each other need MPS";
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, CudaKernels, testing::EveryModeAndKind(),
                         testing::NameOfModeAndKind);

TEST_P(CudaKernels, KnowTheirPe) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  GpuPe gpu(pe);
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
      Run(2,
          [](const Pe& pe) {
            GpuPe gpu(pe);
            constexpr std::size_t kBytes = 5 << 20;
            auto* dest = gpu.Zeroed<std::uint8_t>(kBytes);
            auto* source = gpu.Zeroed<std::uint8_t>(kBytes);
            const int peer = 1 - pe.rank;
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
                    data[i] = static_cast<std::uint8_t>(
                        i * 7 + static_cast<std::size_t>(round + 91 * pe.rank));
                  PE_CHECK_EQ(ShmemPutMem(source + from, data.data(), bytes, pe.rank), 0);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.cuda.Launch(fmt::format("put_{}", scope).c_str(), 1, threads, dest + to,
                                  source + from, bytes, peer);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  std::vector<std::uint8_t> around(bytes + 2);
                  const std::size_t before = to > 0 ? 1 : 0;
                  PE_CHECK_EQ(
                      ShmemGetMem(around.data(), dest + to - before, bytes + before + 1, peer), 0);
                  PE_CHECK(std::equal(data.begin(), data.end(),
                                      around.begin() + static_cast<std::ptrdiff_t>(before)));
                  // And back, from there into the first bytes here.
                  gpu.cuda.Launch(fmt::format("get_{}", scope).c_str(), 1, threads, source + from,
                                  dest + to, bytes, peer);
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
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  GpuPe gpu(pe);
                  for (const char* scope : {"thread", "warp", "block"}) {
                    const unsigned threads = scope[0] == 't' ? 1 : scope[0] == 'w' ? 32 : 256;
                    constexpr std::uint64_t kWords = 600;
                    auto* data = gpu.Zeroed<std::uint64_t>(kWords);
                    auto* scratch = gpu.Zeroed<std::uint64_t>(kWords);
                    auto* signal = gpu.Zeroed<std::uint64_t>(1);
                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                    gpu.cuda.Launch(fmt::format("ping_pong_{}", scope).c_str(), 1, threads, data,
                                    scratch, kWords, signal, 2000, 1 - pe.rank, gpu.errors);
                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  }
                  gpu.End();
                }),
            "");
}

TEST_P(CudaKernels, AtomicsReturnWhatWasThere) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  GpuPe gpu(pe);
                  auto* words = gpu.Zeroed<std::uint64_t>(4);
                  auto* small = gpu.Zeroed<std::uint32_t>(4);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.cuda.Launch("atomics", 1, 1, words + pe.rank, small + pe.rank, 1 - pe.rank,
                                  gpu.errors);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.End();
                }),
            "");
}

TEST_P(CudaKernels, AtomicsSumExactly) {
  EXPECT_EQ(Run(3,
                [](const Pe& pe) {
                  GpuPe gpu(pe);
                  auto* counter = gpu.Zeroed<std::uint64_t>(1);
                  auto* small = gpu.Zeroed<std::uint32_t>(1);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.cuda.Launch("add_everywhere", 8, 256, counter, small, 50);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(gpu.Read(counter, 1)[0], std::uint64_t{3 * 8 * 256 * 50});
                  PE_CHECK_EQ(gpu.Read(small, 1)[0], std::uint32_t{3 * 3 * 8 * 256 * 50});
                  gpu.End();
                }),
            "");
}

TEST_P(CudaKernels, AHundredThousandBarriers) {
  EXPECT_EQ(Run(2,
                [](const Pe& pe) {
                  GpuPe gpu(pe);
                  auto* rounds = gpu.Zeroed<std::uint64_t>(1);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.cuda.Launch("barriers", 1, 64, rounds, 50'000, gpu.errors);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  gpu.End();
                }),
            "");
}

}  // namespace
}  // namespace mori::shmem
