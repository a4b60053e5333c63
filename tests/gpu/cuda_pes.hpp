// PEs on the CUDA backend, in every heap mode, as processes and as threads.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/cuda.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem::testing {

/// Skips without a CUDA device.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static const Outcome probe = Probe();
    if (!probe.ok()) GTEST_SKIP() << "no CUDA device: " << probe.output;
  }

  /// `mode` is a value of MORI_SHMEM_MODE, or "ipc": static, shared by CUDA IPC.
  static Options OptionsOf(const std::string& mode, As as, int size = 2) {
    Options options;
    const bool is_ipc = mode == "ipc";
    options.deadline = std::chrono::seconds(150);
    // Eager: loading a kernel later waits for kernels that run, and they may wait for this one.
    options.environment = {{"CUDA_MODULE_LOADING", "EAGER"},
                           {"MORI_SHMEM_BACKEND", "cuda"},
                           {"MORI_SHMEM_MODE", is_ipc ? "static" : mode},
                           {"MORI_SHMEM_GPU_SHARING", is_ipc ? "ipc" : "auto"},
                           {"MORI_SHMEM_HEAP_SIZE", "64M"},
                           {"MORI_SHMEM_VMM_CHUNK_SIZE", "2M"}};
    // PEs that are threads have more streams than the usual 8 connections, and streams that share
    // one wait for each other. A device has few of them for all processes together.
    if (as == As::kThreads)
      options.environment.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", size > 5 ? "32" : "16");
    return options;
  }

  /// PEs take the devices in turn: a process by its local rank, as a launcher counts it, a thread
  /// by its current device.
  static std::vector<Outcome> RunInTurn(As as, int size, const Body& body, const Options& options) {
    const auto with_device = [&body, as](const Pe& pe) {
      if (as == As::kProcesses) {
        ::setenv("MORI_LOCAL_RANK", std::to_string(pe.rank).c_str(), 1);
      } else {
        Cuda::TakeDevice(pe);
      }
      body(pe);
    };
    return RunAs(as, size, with_device, options);
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

/// How the PEs of a test run.
struct CudaShape {
  const char* mode;
  As as;
  int size = 2;
};

class CudaPes : public CudaTest, public ::testing::WithParamInterface<CudaShape> {
 protected:
  std::string Run(const Body& body) const { return Run(GetParam().size, body); }
  std::string Run(int size, const Body& body) const {
    return Failures(
        RunInTurn(GetParam().as, size, body, OptionsOf(GetParam().mode, GetParam().as, size)));
  }
};

/// Two PEs in every mode, and in a heap shared by CUDA IPC, and as many as `static_sizes` say in
/// static mode; of each kind.
inline std::vector<CudaShape> CudaShapes(const std::vector<int>& static_sizes) {
  std::vector<CudaShape> shapes;
  for (const As as : {As::kProcesses, As::kThreads}) {
    for (const int size : static_sizes) shapes.push_back({"static", as, size});
    for (const char* mode : {"vmm", "isolation", "ipc"}) shapes.push_back({mode, as});
  }
  return shapes;
}

/// "staticProcesses", and behind it how many PEs if they are not two.
inline std::string NameOfShape(const ::testing::TestParamInfo<CudaShape>& parameter) {
  const CudaShape& shape = parameter.param;
  return std::string(shape.mode) + (shape.as == As::kProcesses ? "Processes" : "Threads") +
         (shape.size == 2 ? "" : std::to_string(shape.size));
}

}  // namespace mori::shmem::testing
