// Which memory a world takes, and what it asks of the links between GPUs.
#include <stdlib.h>

#include <cstring>
#include <functional>

#include "cuda_host/cuda_pe.hpp"

namespace mori::shmem {
namespace {

using testing::CudaOptions;
using testing::Failures;
using testing::Options;
using testing::Outcome;
using testing::Pe;

Options AutoOptions() {
  Options options;
  options.environment = {{"MORI_SHMEM_BACKEND", ""}, {"MORI_GLOBAL_LOG_LEVEL", "DEBUG"}};
  return options;
}

/// The device of a PE that chose by itself, and what it said.
Outcome ChooseOn(const std::function<void()>& make_machine, int device) {
  return RunProcesses(
      1,
      [&](const Pe& pe) {
        make_machine();
        pe.Init();
        PE_CHECK_EQ(ShmemDevice(), device);
        std::uint64_t* words = testing::Words(1);
        PE_CHECK_EQ(ShmemP(words, std::uint64_t{5}, 0), 0);
        PE_CHECK_EQ(ShmemG(words, 0), 5u);
        PE_CHECK_EQ(ShmemFinalize(), 0);
      },
      AutoOptions())[0];
}

TEST(CudaHostBackend, AutoTakesTheGpuThatIsThere) {
  const Outcome outcome = ChooseOn([] {}, 0);
  EXPECT_TRUE(outcome.ok()) << outcome.output;
  EXPECT_NE(outcome.output.find("cuda backend"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("MORI_SHMEM_BACKEND=host"), std::string::npos) << outcome.output;
}

TEST(CudaHostBackend, AutoKeepsTheHostWhereTheDriverSeesNoDevice) {
  const Outcome outcome = ChooseOn([] { fake_cuda::machine().devices = 0; }, -1);
  EXPECT_TRUE(outcome.ok()) << outcome.output;
  EXPECT_NE(outcome.output.find("auto takes the host's memory: the CUDA driver sees no device"),
            std::string::npos)
      << outcome.output;
}

TEST(CudaHostBackend, AutoKeepsTheHostWhereTheDriverIsBroken) {
  const Outcome outcome = ChooseOn([] { fake_cuda::machine().init_result = 803; }, -1);
  EXPECT_TRUE(outcome.ok()) << outcome.output;
  EXPECT_NE(outcome.output.find("initialise the CUDA driver: fake error 803"), std::string::npos)
      << outcome.output;
}

/// What was taken must be the same, not what was asked for.
TEST(CudaHostBackend, PesCompareWhatTheyTook) {
  const auto run = [](int gpus_of_pe_1) {
    return Failures(RunProcesses(
        2,
        [gpus_of_pe_1](const Pe& pe) {
          if (pe.rank == 0) {
            ::setenv("MORI_SHMEM_BACKEND", "cuda", 1);
          } else {
            fake_cuda::machine().devices = gpus_of_pe_1;
          }
          if (gpus_of_pe_1 > 0) return pe.Init();
          PE_CHECK_EQ(pe.TryInit(), static_cast<int>(ErrorCode::kMismatch));
          PE_CHECK(std::strstr(ShmemLastError(),
                               "MORI_SHMEM_BACKEND must be the same on all PEs: PE 0 has cuda, "
                               "PE 1 has host") != nullptr);
        },
        AutoOptions()));
  };
  EXPECT_EQ(run(1), "");
  EXPECT_EQ(run(0), "");
}

/// Two PEs, each with a GPU of its own.
std::string RunOnTwoGpus(const std::function<void()>& make_machine, const testing::Body& body) {
  return Failures(RunProcesses(
      2,
      [&](const Pe& pe) {
        fake_cuda::machine().devices = 2;
        make_machine();
        ::setenv("MORI_LOCAL_RANK", std::to_string(pe.rank).c_str(), 1);
        body(pe);
      },
      CudaOptions()));
}

TEST(CudaHostLinks, GpusThatDoNotReachEachOtherAreRefusedAtInit) {
  EXPECT_EQ(RunOnTwoGpus([] { fake_cuda::machine().can_access_peers = false; },
                         [](const Pe& pe) {
                           PE_CHECK_EQ(pe.TryInit(), static_cast<int>(ErrorCode::kUnsupported));
                           PE_CHECK(std::strstr(ShmemLastError(), "nvidia-smi topo") != nullptr);
                           PE_CHECK(std::strstr(ShmemLastError(), "GPU 0000:01:00.0") != nullptr);
                         }),
            "");
}

TEST(CudaHostLinks, WithoutAtomicsTheHostAddsToItsOwnWordsAlone) {
  EXPECT_EQ(
      RunOnTwoGpus(
          [] { fake_cuda::machine().has_native_atomics = false; },
          [](const Pe& pe) {
            constexpr int kUnsupported = static_cast<int>(ErrorCode::kUnsupported);
            pe.Init();
            const int other = 1 - pe.rank;
            std::uint64_t* words = testing::Words(4);
            PE_CHECK_EQ(ShmemAtomicAdd(words, std::uint64_t{1}, other), kUnsupported);
            PE_CHECK(std::strstr(ShmemLastError(), "has no atomics") != nullptr);
            PE_CHECK_EQ(ShmemPutMemSignal(words, words + 1, 8, words + 2, 1, SignalOp::kAdd, other),
                        kUnsupported);
            PE_CHECK_EQ(ShmemSignalOpOnStream(words, 1, SignalOp::kAdd, other, nullptr),
                        kUnsupported);
            // One store is one store on any link.
            PE_CHECK_EQ(ShmemAtomicSet(words, std::uint64_t{1}, other), 0);
            PE_CHECK_EQ(ShmemPutMemSignal(words, words + 1, 8, words + 2, 1, SignalOp::kSet, other),
                        0);
            PE_CHECK_EQ(ShmemSignalOpOnStream(words, 1, SignalOp::kSet, other, nullptr), 0);
            PE_CHECK_EQ(ShmemAtomicAdd(words + 3, std::uint64_t{1}, pe.rank), 0);
            PE_CHECK_EQ(ShmemFinalize(), 0);
          }),
      "");
}

}  // namespace
}  // namespace mori::shmem
