// Each name of shmem_device_api.hpp does what it says, on a GPU.
#include <gtest/gtest.h>

#include <string>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::CudaShape;
using testing::GpuPe;
using testing::Pe;
using testing::Right;
using testing::Scope;

class CudaNames : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Kinds, CudaNames,
                         ::testing::Values(CudaShape{"static", As::kProcesses, 1},
                                           CudaShape{"static", As::kProcesses},
                                           CudaShape{"static", As::kThreads}),
                         testing::NameOfShape);

TEST_P(CudaNames, OfEveryScope) {
  constexpr std::uint64_t kCount = 64;
  struct Area {
    std::int32_t source[kCount];
    std::int32_t dest[2 * kCount];
    std::uint64_t signal;
    std::uint64_t words[4];
  };
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "names");
              for (const Scope& scope : testing::kScopes) {
                auto* area = gpu.Zeroed<Area>(1);
                gpu.cuda.Launch(fmt::format("names_{}", scope.name), 1, scope.threads, area, kCount,
                                gpu.errors);
                gpu.ExpectNoErrors();
              }
              gpu.End();
            }),
            "");
}

template <typename T>
void CheckNames(const Pe& pe, GpuPe* gpu, const std::string& type) {
  // Nobody else touches a PE's word on the other.
  T* words = gpu->Zeroed<T>(6);
  gpu->cuda.Launch("names_" + type, 1, 1, words + pe.rank, words + 2, Right(pe), gpu->errors);
  gpu->ExpectNoErrors();
}
TEST_P(CudaNames, OfWordsOfEveryType) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "names");
              CheckNames<std::int32_t>(pe, &gpu, "int32");
              CheckNames<std::uint32_t>(pe, &gpu, "uint32");
              CheckNames<std::int64_t>(pe, &gpu, "int64");
              CheckNames<std::uint64_t>(pe, &gpu, "uint64");
              CheckNames<std::uint64_t>(pe, &gpu, "ulong");
              gpu.End();
            }),
            "");
}

TEST_P(CudaNames, OfSignalsAndQueries) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "names");
              auto* words = gpu.Zeroed<std::uint64_t>(2);
              gpu.cuda.Launch("names_of_signals", 1, 1, words, Right(pe), gpu.errors);
              gpu.cuda.Launch("names_of_queries", 1, 1, words + 1, pe.size, gpu.errors);
              gpu.End();
            }),
            "");
}

}  // namespace
}  // namespace mori::shmem
