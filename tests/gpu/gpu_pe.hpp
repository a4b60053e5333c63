// What tests of kernels and streams share: PEs with their kernels loaded.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "gpu/cuda.hpp"
#include "gpu/cuda_pes.hpp"
#include "support/forked.hpp"

namespace mori::shmem::testing {

/// A PE with the kernels of tests/gpu/`kernels`.cu loaded and its state published.
class GpuPe {
 public:
  GpuPe(const Pe& pe, const char* kernels) : cuda(pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemDevice(), cuda.device());
    PE_CHECK_EQ(ShmemModuleInit(cuda.Load(kernels)), 0);
    errors = Zeroed<std::uint64_t>(1);
  }

  /// Symmetric memory of zeros, on all PEs.
  template <typename T>
  T* Zeroed(std::size_t count) {
    return Filled(std::vector<T>(count, T{}));
  }
  /// Symmetric memory with what each PE wants in it.
  template <typename T>
  T* Filled(const std::vector<T>& values) {
    auto* block = static_cast<T*>(ShmemMalloc(values.size() * sizeof(T)));
    PE_CHECK(block != nullptr);
    Write(block, values);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    return block;
  }
  template <typename T>
  void Write(T* block, const std::vector<T>& values) {
    PE_CHECK_EQ(ShmemPut(block, values.data(), values.size(), ShmemMyPe()), 0);
  }
  template <typename T>
  std::vector<T> Read(const T* block, std::size_t count) {
    std::vector<T> values(count);
    PE_CHECK_EQ(ShmemGet(values.data(), block, count, ShmemMyPe()), 0);
    return values;
  }
  template <typename T>
  T ReadOne(const T* word) {
    return ShmemG(word, ShmemMyPe());
  }

  /// What the kernels of all PEs have counted. Collective: all find the same, so that none of them
  /// goes on alone.
  std::uint64_t ErrorsOfAll() {
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::uint64_t sum = 0;
    for (int pe = 0; pe < ShmemNPes(); ++pe) sum += ShmemG(errors, pe);
    return sum;
  }
  void ExpectNoErrors() { PE_CHECK_EQ(ErrorsOfAll(), 0u); }

  /// Kernels have counted no errors, and all PEs leave.
  void End() {
    ExpectNoErrors();
    PE_CHECK_EQ(ShmemFinalize(), 0);
  }

  Cuda cuda;
  std::uint64_t* errors;
};

/// How many GPUs there are, asked once. By a process of its own: the driver does not work in the
/// child of a process that has used it.
inline int GpuCount() {
  static const int gpus = [] {
    const Shared<int> count(0);
    RunAlone([&] { *count = Cuda::CountDevices(); });
    return *count;
  }();
  return gpus;
}

/// Adds one PE for each GPU to every mode and kind that the shapes have, and one more than there
/// are GPUs in static mode, where there are more than two: two and three PEs are there anyway.
inline std::vector<CudaShape> WithEachGpu(std::vector<CudaShape> shapes) {
  const int gpus = GpuCount();
  if (gpus <= 2) return shapes;
  const auto has = [&shapes](const CudaShape& wanted) {
    return std::any_of(shapes.begin(), shapes.end(), [&wanted](const CudaShape& shape) {
      return shape.mode == std::string_view(wanted.mode) && shape.as == wanted.as &&
             shape.size == wanted.size;
    });
  };
  const auto add = [&](const CudaShape& shape) {
    if (!has(shape)) shapes.push_back(shape);
  };
  for (std::size_t i = 0, count = shapes.size(); i < count; ++i) {
    const CudaShape shape = shapes[i];
    add({shape.mode, shape.as, gpus});
    if (std::string_view(shape.mode) == "static") add({shape.mode, shape.as, gpus + 1});
  }
  return shapes;
}

/// PEs whose kernels wait for each other.
class CudaKernelPes : public CudaPes {
 protected:
  void SetUp() override {
    CudaPes::SetUp();
    if (IsSkipped()) return;
    if (KernelFolder().empty()) GTEST_SKIP() << "no nvcc to compile kernels with";
    const bool share_gpus = GetParam().size > std::max(GpuCount(), 1);
    if (GetParam().as == As::kProcesses && share_gpus &&
        std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr)
      GTEST_SKIP() << "kernels of processes that share a GPU and wait for each other need MPS";
  }
};

/// A scope of the device API, and how many threads the tests make it of.
struct Scope {
  const char* name;
  unsigned threads;
};
inline constexpr Scope kScopes[] = {{"thread", 1}, {"warp", 32}, {"block", 256}};

}  // namespace mori::shmem::testing
