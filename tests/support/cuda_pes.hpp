// PEs on the CUDA backend, in every heap mode, as processes and as threads.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>

#include "support/run_pes.hpp"

namespace mori::shmem::testing {

/// Skips without a CUDA device.
class CudaPes : public ::testing::TestWithParam<std::tuple<const char*, As>> {
 protected:
  void SetUp() override {
    static const Outcome probe = Probe();
    if (!probe.ok()) GTEST_SKIP() << "no CUDA device: " << probe.output;
  }

  As as() const { return std::get<1>(GetParam()); }

  std::string Run(int size, const Body& body) const {
    Options options;
    // Eager: loading a kernel later waits for kernels that run, and they may wait for this one.
    options.environment = {{"CUDA_MODULE_LOADING", "EAGER"},
                           {"MORI_SHMEM_BACKEND", "cuda"},
                           {"MORI_SHMEM_MODE", std::get<0>(GetParam())},
                           {"MORI_SHMEM_HEAP_SIZE", "64M"},
                           {"MORI_SHMEM_VMM_CHUNK_SIZE", "2M"}};
    return Failures(RunAs(as(), size, body, options));
  }

 private:
  /// In a process of its own: the driver does not work in the child of a process that has used it.
  static Outcome Probe() {
    Options options;
    options.environment = {{"MORI_SHMEM_BACKEND", "cuda"}};
    return RunAlone(
        [] {
          if (ShmemInit() != 0) throw PeFailure(ShmemLastError());
          ShmemFinalize();
        },
        options);
  }
};

inline auto EveryModeAndKind() {
  return ::testing::Combine(::testing::Values("static", "vmm", "isolation"),
                            ::testing::Values(As::kProcesses, As::kThreads));
}
inline std::string NameOfModeAndKind(
    const ::testing::TestParamInfo<std::tuple<const char*, As>>& parameter) {
  const bool are_processes = std::get<1>(parameter.param) == As::kProcesses;
  return std::string(std::get<0>(parameter.param)) + (are_processes ? "Processes" : "Threads");
}

}  // namespace mori::shmem::testing
