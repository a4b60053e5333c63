// PEs of the CUDA backend over the driver of the tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.hpp"
#include "mori/shmem/device/context.hpp"
#include "support/run_pes.hpp"

extern "C" {
int cuModuleLoadData(void** module, const void* image);
int cuModuleGetGlobal_v2(std::uint64_t* address, std::size_t* bytes, void* module,
                         const char* name);
}

namespace mori::shmem::testing {

inline Options CudaOptions(const char* mode = "static") {
  Options options;
  options.environment = {{"MORI_SHMEM_BACKEND", "cuda"}, {"MORI_SHMEM_MODE", mode}};
  return options;
}

/// A stream with a call of the library on it that is not done.
inline void* BusyStream(std::uint64_t* word) {
  void* stream = fake_cuda::MakeStream();
  fake_cuda::Block(stream);
  PE_CHECK_EQ(ShmemPutMemOnStream(word, word + 1, sizeof *word, ShmemMyPe(), stream), 0);
  return stream;
}

struct Module {
  void* handle = nullptr;
  device::DeviceContext* state = nullptr;
};
inline Module LoadModule() {
  Module module;
  PE_CHECK_EQ(cuModuleLoadData(&module.handle, "image"), 0);
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  PE_CHECK_EQ(cuModuleGetGlobal_v2(&address, &bytes, module.handle, "globalGpuStates"), 0);
  module.state = reinterpret_cast<device::DeviceContext*>(address);
  return module;
}
/// What kernels of this PE find.
inline const device::DeviceContext* StateOfPe() {
  const Module module = LoadModule();
  PE_CHECK_EQ(ShmemModuleInit(module.handle), 0);
  return module.state;
}

inline std::uint64_t* Words(std::size_t count) {
  auto* words = static_cast<std::uint64_t*>(ShmemMalloc(count * sizeof(std::uint64_t)));
  PE_CHECK(words != nullptr);
  return words;
}

}  // namespace mori::shmem::testing
