// PEs of the CUDA backend over the driver of the tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.hpp"
#include "support/run_pes.hpp"

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

inline std::uint64_t* Words(std::size_t count) {
  auto* words = static_cast<std::uint64_t*>(ShmemMalloc(count * sizeof(std::uint64_t)));
  PE_CHECK(words != nullptr);
  return words;
}

}  // namespace mori::shmem::testing
