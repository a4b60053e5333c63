// Kernels that cannot go on end, not never, and the host's next call says why. Those without the
// state of a PE end with a message; each of these in a process whose context is dead afterwards.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::Cuda;
using testing::GpuPe;
using testing::Outcome;
using testing::Pe;

class CudaFaults : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && testing::KernelFolder().empty())
      GTEST_SKIP() << "no nvcc to compile kernels with";
  }
  /// Without MPS, under which a fault in one process is a fault in all.
  static std::vector<Outcome> RunAlone(int size, const testing::Body& body,
                                       const char* mode = "static") {
    testing::Options options = OptionsOf(mode, testing::As::kProcesses);
    options.environment.emplace_back("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    return RunProcesses(size, body, options);
  }
};

// ---- a PE that is lost

struct Waiting {
  const char* name;
  void (*post)(const GpuPe& gpu, std::uint64_t* signal);
};
void PrintTo(const Waiting& waiting, std::ostream* out) { *out << waiting.name; }

const Waiting kWaiting[] = {
    {"AKernelForASignal",
     [](const GpuPe& gpu, std::uint64_t* signal) {
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "await_flag", 1, 1, signal, std::uint64_t{1});
     }},
    {"AKernelInABarrier",
     [](const GpuPe& gpu, std::uint64_t*) {
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "barrier", 1, 64);
     }},
    {"AStreamForASignal",
     [](const GpuPe& gpu, std::uint64_t* signal) {
       PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, Cmp::kEq, 1, gpu.cuda.stream()), 0);
     }},
    {"AStreamInABarrier",
     [](const GpuPe& gpu, std::uint64_t*) {
       PE_CHECK_EQ(ShmemBarrierAllOnStream(gpu.cuda.stream()), 0);
     }},
};

class CudaLostPe : public CudaFaults, public ::testing::WithParamInterface<Waiting> {};
INSTANTIATE_TEST_SUITE_P(Waiting, CudaLostPe, ::testing::ValuesIn(kWaiting),
                         [](const auto& parameter) { return parameter.param.name; });

/// The wait ends, the context lives, and the next call of the host names who was lost. The
/// survivors leave, and come again in the same processes, as a smaller world whose kernels meet.
TEST_P(CudaLostPe, EndsTheWaitAndTheSurvivorsStartAgain) {
  const auto outcomes = RunAlone(3, [](const Pe& pe) {
    GpuPe gpu(pe, "streams");
    auto* signal = gpu.Zeroed<std::uint64_t>(1);
    if (pe.rank != 2) GetParam().post(gpu, signal);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 2) {
      ::usleep(50'000);  // the others wait
      ::_exit(0);
    }
    gpu.cuda.Sync(gpu.cuda.stream());
    const std::uint64_t value = 1;
    PE_CHECK_EQ(ShmemPutMem(signal, &value, sizeof value, pe.rank),
                static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK(std::string(ShmemLastError()).find("PE 2 (host ") != std::string::npos);
    PE_CHECK(std::string(ShmemLastError()).find("a kernel ended early") != std::string::npos);
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));

    Pe again = pe;
    again.size = 2;
    again.id = pe.FreshId(1);
    GpuPe survivor(again, "streams");
    auto* words = survivor.Zeroed<std::uint64_t>(2);
    survivor.cuda.Launch("tell_all", 1, 32, words, std::uint64_t{7});
    survivor.cuda.Launch("barrier", 1, 32);
    survivor.cuda.Launch("heard_from_all", 1, 32, static_cast<const std::uint64_t*>(words),
                         std::uint64_t{7}, survivor.errors);
    PE_CHECK_EQ(ShmemBarrierAllOnStream(survivor.cuda.stream()), 0);
    survivor.cuda.Sync(survivor.cuda.stream());
    survivor.End();
  });
  EXPECT_EQ(testing::Failures(outcomes), "");
}

/// Calls that return instead of ending tell each thread which PE was lost, and leave no record.
TEST_F(CudaFaults, CallsThatReturnWhereAPeIsLostSayWhich) {
  const auto outcomes = RunAlone(2, [](const Pe& pe) {
    GpuPe gpu(pe, "streams");
    auto* signal = gpu.Zeroed<std::uint64_t>(1);
    constexpr unsigned kThreads[] = {1, 32, 96};
    constexpr const char* kNames[] = {"thread", "warp", "block"};
    auto* found = gpu.cuda.Allocate<std::uint32_t>(2 * 3 * 128);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    if (pe.rank == 1) ::_exit(0);
    for (unsigned i = 0; i < 3; ++i) {
      for (unsigned meets = 0; meets < 2; ++meets) {
        const std::string kernel =
            std::string(meets != 0 ? "meet" : "wait") + "_or_lost_" + kNames[i];
        auto* of_kernel = found + (2 * i + meets) * 128;
        gpu.cuda.Launch(kernel, 1, kThreads[i], static_cast<const std::uint64_t*>(signal),
                        of_kernel);
        std::vector<std::uint32_t> lost(1 + kThreads[i]);
        gpu.cuda.Copy(lost.data(), of_kernel, lost.size() * sizeof lost[0]);
        PE_CHECK(lost == std::vector<std::uint32_t>(1 + kThreads[i], 2U));  // PE 1
      }
    }
    PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
    PE_CHECK(std::string(ShmemLastError()).find("a kernel ended early") == std::string::npos);
    ShmemFinalize();
  });
  EXPECT_EQ(testing::Failures(outcomes), "");
}

// ---- meetings that are not kept apart

struct TwoMeetings {
  const char* name;
  void (*post)(const GpuPe& gpu, void* stream);
};
void PrintTo(const TwoMeetings& meetings, std::ostream* out) { *out << meetings.name; }

const TwoMeetings kTwoMeetings[] = {
    {"InKernels",
     [](const GpuPe& gpu, void* stream) { gpu.cuda.LaunchOn(stream, "barrier", 1, 32); }},
    {"OnStreams",
     [](const GpuPe&, void* stream) { PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0); }},
};

class CudaTwoMeetings : public CudaFaults, public ::testing::WithParamInterface<TwoMeetings> {};
INSTANTIATE_TEST_SUITE_P(Of, CudaTwoMeetings, ::testing::ValuesIn(kTwoMeetings),
                         [](const auto& parameter) { return parameter.param.name; });

/// The second of two that are under way is told to the host, and both end: nobody else has come.
TEST_P(CudaTwoMeetings, AtTheSameTimeAreAnErrorAndNoHang) {
  const auto outcomes = RunAlone(2, [](const Pe& pe) {
    GpuPe gpu(pe, "streams");
    auto* word = gpu.Zeroed<std::uint64_t>(1);
    if (pe.rank == 0) {
      void* const other = gpu.cuda.CreateStream();
      GetParam().post(gpu, gpu.cuda.stream());
      GetParam().post(gpu, other);
      gpu.cuda.Sync(gpu.cuda.stream());
      gpu.cuda.Sync(other);
      const std::uint64_t value = 1;
      PE_CHECK_EQ(ShmemPutMem(word, &value, sizeof value, 0),
                  static_cast<int>(ErrorCode::kInvalidArgument));
      PE_CHECK(std::string(ShmemLastError()).find("in a barrier or collective already") !=
               std::string::npos);
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(testing::Failures(outcomes), "");
}

/// One in a kernel and one on a stream have nothing to do with each other.
TEST_F(CudaFaults, AMeetingInAKernelAndOneOnAStreamAreKeptApart) {
  const auto outcomes = RunAlone(2, [](const Pe& pe) {
    GpuPe gpu(pe, "streams");
    void* const other = gpu.cuda.CreateStream();
    // The PEs post them in other orders: were they one kind, they would wait for each other.
    for (int round = 0; round < 20; ++round) {
      if (pe.rank == 0) gpu.cuda.LaunchOn(gpu.cuda.stream(), "barrier", 1, 32);
      PE_CHECK_EQ(ShmemBarrierAllOnStream(other), 0);
      if (pe.rank == 0) gpu.cuda.Sync(other);
      if (pe.rank == 1) gpu.cuda.LaunchOn(gpu.cuda.stream(), "barrier", 1, 32);
      gpu.cuda.Sync(gpu.cuda.stream());
      gpu.cuda.Sync(other);
    }
    gpu.End();
  });
  EXPECT_EQ(testing::Failures(outcomes), "");
}

// ---- kernels that must not run

/// The kernel ends, the context lives, and the host's next call says what was wrong, once.
void ExpectFault(const GpuPe& gpu) {
  gpu.cuda.Sync(gpu.cuda.stream());
  const std::uint64_t value = 1;
  PE_CHECK_EQ(ShmemPutMem(gpu.errors, &value, sizeof value, ShmemMyPe()),
              static_cast<int>(ErrorCode::kInvalidArgument));
  std::fprintf(stderr, "%s\n", ShmemLastError());
  PE_CHECK_EQ(ShmemPutMem(gpu.errors, &value, sizeof value, ShmemMyPe()), 0);
  PE_CHECK_EQ(ShmemFinalize(), 0);
}
/// Without a state there is no record: the kernel ends as by a failed assertion.
void ExpectAssertion(const GpuPe& gpu) {
  PE_CHECK(gpu.cuda.TrySync(gpu.cuda.stream()) != 0);
  const std::uint64_t value = 1;
  PE_CHECK_EQ(ShmemPutMem(gpu.errors, &value, sizeof value, ShmemMyPe()),
              static_cast<int>(ErrorCode::kSystem));
  ShmemFinalize();
}

struct Fault {
  const char* name;
  const char* message;
  void (*body)(const Pe& pe);
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

/// Leaves and comes again, as another world; the module still has the state of the first.
void ComeAgain(const Pe& pe, GpuPe* gpu) {
  PE_CHECK_EQ(ShmemFinalize(), 0);
  PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, pe.size, pe.FreshId(1)), 0);
  gpu->errors = gpu->Zeroed<std::uint64_t>(1);
}

const Fault kFaults[] = {
    {"OfAModuleWithoutState", "shmem_module_init",
     [](const Pe& pe) {
       GpuPe gpu(pe, "streams");
       int* pes = gpu.Zeroed<int>(2);
       gpu.cuda.Load("streams");  // again, and not published
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "identity", 1, 1, pes);
       ExpectAssertion(gpu);
     }},
    {"PutWithTheStateOfAWorldThatHasEnded", "shmem_module_init",
     [](const Pe& pe) {
       GpuPe gpu(pe, "streams");
       ComeAgain(pe, &gpu);
       auto* words = gpu.Zeroed<std::uint64_t>(2);
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "put_block", 1, 32, words, words + 1, std::uint64_t{8},
                         0);
       ExpectAssertion(gpu);
     }},
    {"BarrierWithTheStateOfAWorldThatHasEnded", "shmem_module_init",
     [](const Pe& pe) {
       GpuPe gpu(pe, "streams");
       ComeAgain(pe, &gpu);
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "barrier", 1, 32);
       ExpectAssertion(gpu);
     }},
    {"PutToAPeThatIsNot", "its put named PE -1, and there are PEs 0 to 0",
     [](const Pe& pe) {
       GpuPe gpu(pe, "streams");
       auto* words = gpu.Zeroed<std::uint64_t>(2);
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "put_block", 1, 32, words, words + 1, std::uint64_t{8},
                         -1);
       ExpectFault(gpu);
     }},
    {"QuietOfAPeThatIsNot", "its quiet named PE 1, and there are PEs 0 to 0",
     [](const Pe& pe) {
       GpuPe gpu(pe, "streams");
       gpu.cuda.LaunchOn(gpu.cuda.stream(), "quiet_of", 1, 1, 1);
       ExpectFault(gpu);
     }},
};

class CudaFault : public CudaFaults, public ::testing::WithParamInterface<Fault> {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaFault, ::testing::ValuesIn(kFaults),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(CudaFault, EndsWithAMessage) {
  const auto outcomes = RunAlone(1, GetParam().body);
  EXPECT_EQ(testing::Failures(outcomes), "");
  EXPECT_NE(outcomes[0].output.find(GetParam().message), std::string::npos) << outcomes[0].output;
}

// Memory cannot be unmapped from a device with a fault, and the others wait for that.
TEST_F(CudaFaults, OfOneDeviceIsAnErrorOfFreeOnAll) {
  const auto outcomes = RunAlone(
      2,
      [](const Pe& pe) {
        GpuPe gpu(pe, "streams");
        auto* block = gpu.Zeroed<std::uint64_t>(1);
        int* pes = gpu.Zeroed<int>(2);
        if (pe.rank == 1) {
          gpu.cuda.Load("streams");  // and not published
          gpu.cuda.LaunchOn(gpu.cuda.stream(), "identity", 1, 1, pes);
          PE_CHECK(gpu.cuda.TrySync(gpu.cuda.stream()) != 0);
        }
        PE_CHECK(ShmemFree(block) != 0);
        if (pe.rank == 0)
          PE_CHECK(std::string(ShmemLastError()).find("PE 1 (host ") != std::string::npos);
        ShmemFinalize();
      },
      "isolation");
  EXPECT_EQ(testing::Failures(outcomes), "");
}

// A module that is published again works in the new world.
TEST_F(CudaFaults, NoneAfterModuleInitInTheNewWorld) {
  EXPECT_EQ(testing::Failures(RunAlone(
                1,
                [](const Pe& pe) {
                  Cuda first(pe);
                  pe.Init();
                  void* module = first.Load("streams");
                  PE_CHECK_EQ(ShmemModuleInit(module), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                  PE_CHECK_EQ(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, pe.FreshId(1)), 0);
                  PE_CHECK_EQ(ShmemModuleInit(module), 0);
                  int* pes = static_cast<int*>(ShmemMalloc(64));
                  first.Launch("identity", 1, 1, pes);
                  first.Launch("barrier", 1, 32);
                  PE_CHECK_EQ(ShmemG(pes + 1, 0), 1);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                })),
            "");
}

}  // namespace
}  // namespace mori::shmem
