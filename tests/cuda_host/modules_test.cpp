// What modules of kernels are given of their PE's state, and which are refused.
#include <cstring>

#include "cuda_host/cuda_pe.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "mori/shmem/device/context.hpp"
#include "mori/shmem/shmem.hpp"

namespace mori::shmem {
namespace {

using device::DeviceContext;
using testing::CudaOptions;
using testing::Failures;
using testing::LoadModule;
using testing::Module;
using testing::Pe;

void ExpectRefused(const Module& module, const char* sentence) {
  const DeviceContext before = *module.state;
  PE_CHECK_EQ(ShmemModuleInit(module.handle), static_cast<int>(ErrorCode::kMismatch));
  if (std::strstr(ShmemLastError(), sentence) == nullptr)
    throw testing::PeFailure(std::string("the sentence is: ") + ShmemLastError());
  PE_CHECK_EQ(std::memcmp(&before, module.state, sizeof before), 0);
}

TEST(CudaModules, ThoseOfAnotherAbiAreRefusedWithWhatToDo) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  Module older = LoadModule();  // version 1 began with zeros, or its magic
                  std::memset(static_cast<void*>(older.state), 0, sizeof *older.state);
                  fake_cuda::SetStateBytes(older.handle, 1072);
                  ExpectRefused(older, "compile them again with this library's headers");
                  older.state->header.magic = 0x4d4f524953484d33;
                  older.state->header.abi = 0x8000;  // there it had the heap's address
                  ExpectRefused(older, "compiled for version 1 of");
                  Module newer = LoadModule();
                  newer.state->header.abi = device::kContextAbi + 1;
                  ExpectRefused(newer, "load the library that their headers came with");
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

TEST(CudaModules, WhatKnowsLessOrMoreOfTheStateIsGivenWhatBothKnow) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  const Module smaller = LoadModule();
                  const Module larger = LoadModule();
                  constexpr unsigned kLess = sizeof(DeviceContext) - 512;
                  fake_cuda::SetStateBytes(smaller.handle, kLess);
                  fake_cuda::SetStateBytes(larger.handle, sizeof(DeviceContext) + 512);
                  smaller.state->inline_pes[device::kInlinePes - 1] = {7, 7};
                  for (int times = 0; times < 2; ++times) {
                    PE_CHECK_EQ(ShmemModuleInit(smaller.handle), 0);
                    PE_CHECK_EQ(ShmemModuleInit(larger.handle), 0);
                    PE_CHECK_EQ(smaller.state->header.magic, device::kContextMagic);
                    PE_CHECK_EQ(smaller.state->header.bytes, kLess);
                    PE_CHECK_EQ(smaller.state->n_pes, 1u);
                    PE_CHECK_EQ(smaller.state->n_inline, 1u);
                    PE_CHECK_EQ(smaller.state->inline_pes[device::kInlinePes - 1].heap, 7u);
                    PE_CHECK_EQ(larger.state->header.bytes, sizeof(DeviceContext));
                  }
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                  for (const Module& module : {smaller, larger}) {  // it is taken away again
                    PE_CHECK_EQ(module.state->header.magic, 0u);
                    PE_CHECK_EQ(module.state->header.abi, device::kContextAbi);
                    PE_CHECK_EQ(module.state->n_pes, 0u);
                  }
                  PE_CHECK_EQ(smaller.state->header.bytes, kLess);
                  PE_CHECK_EQ(smaller.state->inline_pes[device::kInlinePes - 1].heap, 7u);
                },
                CudaOptions())),
            "");
}

}  // namespace
}  // namespace mori::shmem
