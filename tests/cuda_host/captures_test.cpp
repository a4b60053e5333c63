// Graphs that a program captures, while calls of the library are made in the same thread or
// another.
#include <functional>

#include "cuda_host/cuda_pe.hpp"
#include "mori/shmem/device/context.hpp"

extern "C" {
int cuModuleLoadData(void** module, const void* image);
int cuThreadExchangeStreamCaptureMode(int* mode);
int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream);
}
namespace mori::shmem::detail {
extern "C" void MoriShmemAddLinkedStateV2(LinkedState* state);
extern "C" void MoriShmemRemoveLinkedStateV2(LinkedState* state);
}  // namespace mori::shmem::detail

namespace mori::shmem {
namespace {

using fake_cuda::Capture;
using testing::CudaOptions;
using testing::Failures;
using testing::Pe;

struct HostCall {
  const char* name;
  std::function<int(std::uint64_t* words)> make;
};
const HostCall kHostCalls[] = {
    {"quiet", [](std::uint64_t*) { return ShmemQuiet(), 0; }},
    {"get", [](std::uint64_t* w) { return ShmemGetMem(w + 100, w, 8, 0) * 0; }},
    {"g", [](std::uint64_t* w) { return static_cast<int>(ShmemG(w, 0)) - 7; }},
    {"p", [](std::uint64_t* w) { return ShmemP(w, std::uint64_t{7}, 0); }},
    {"atomic", [](std::uint64_t* w) { return ShmemAtomicAdd(w + 1, std::uint64_t{1}, 0); }},
    {"barrier", [](std::uint64_t*) { return ShmemBarrierAll(); }},
    {"malloc and free",
     [](std::uint64_t*) {
       void* block = ShmemMalloc(64);
       return block == nullptr ? 1 : ShmemFree(block);
     }},
    {"heap",
     [](std::uint64_t*) {
       HeapStats stats;
       return ShmemHeapStats(&stats);
     }},
    {"put on another stream",
     [](std::uint64_t* w) { return ShmemPutMemOnStream(w + 2, w, 8, 0, nullptr); }},
    {"module",
     [](std::uint64_t*) {
       void* module = nullptr;
       int mode = 2;
       cuThreadExchangeStreamCaptureMode(&mode);
       cuModuleLoadData(&module, "image");
       cuThreadExchangeStreamCaptureMode(&mode);
       return ShmemModuleInit(module);
     }},
};

/// As torch captures: in global mode, which concerns every thread.
TEST(CudaCaptures, OutliveHostCallsInAnotherThread) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  std::uint64_t* words = testing::Words(200);
                  PE_CHECK_EQ(ShmemP(words, std::uint64_t{7}, 0), 0);
                  for (const HostCall& call : kHostCalls) {
                    void* stream = fake_cuda::MakeStream();
                    fake_cuda::BeginCapture(stream, Capture::kGlobal);
                    int code = -1;
                    std::thread([&] { code = call.make(words); }).join();
                    const bool is_whole = fake_cuda::EndCapture(stream);
                    if (code != 0 || !is_whole)
                      throw testing::PeFailure(fmt::format("{}: {}, capture {}: {}", call.name,
                                                           code, is_whole, ShmemLastError()));
                  }
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

/// Of linked kernels: its publication loads their module, as the CUDA runtime does.
struct Unit : detail::LinkedState {
  Unit() : LinkedState{device::kStateOfNobody.header, &Take} {}
  static int Take(const device::DeviceContext* context, device::u64 bytes, void* stream) {
    void* module = nullptr;
    if (cuModuleLoadData(&module, "image") != 0) return 1;
    if (cuMemcpyAsync(reinterpret_cast<std::uint64_t>(&seen),
                      reinterpret_cast<std::uint64_t>(context), bytes, stream) != 0)
      return 1;
    ++times;
    return 0;
  }
  static inline device::DeviceContext seen{};
  static inline int times = 0;
};

TEST(CudaCaptures, AUnitOfKernelsIsToldBehindTheCaptureOfItsThread) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  std::uint64_t* words = testing::Words(2);
                  Unit unit;
                  detail::MoriShmemAddLinkedStateV2(&unit);
                  void* stream = fake_cuda::MakeStream();
                  fake_cuda::BeginCapture(stream, Capture::kGlobal);
                  PE_CHECK_EQ(ShmemPutMemOnStream(words, words + 1, 8, 0, stream), 0);
                  PE_CHECK_EQ(Unit::times, 0);
                  PE_CHECK(fake_cuda::EndCapture(stream));
                  // A call that puts nothing on a stream may tell it, whatever is captured.
                  fake_cuda::BeginCapture(stream, Capture::kGlobal);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(Unit::times, 1);
                  PE_CHECK_EQ(Unit::seen.n_pes, 1u);
                  PE_CHECK(fake_cuda::EndCapture(stream));
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                  PE_CHECK_EQ(Unit::seen.n_pes, 0u);
                  detail::MoriShmemRemoveLinkedStateV2(&unit);
                },
                CudaOptions())),
            "");
}

/// The driver ends the capture; what is freed goes later, and its place can be used again.
TEST(CudaCaptures, MemoryThatIsFreedMeanwhileIsUnmappedLater) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  void* block = ShmemMalloc(2 << 20);
                  const auto mapped = fake_cuda::MappedBytes();
                  void* stream = fake_cuda::MakeStream();
                  fake_cuda::BeginCapture(stream, Capture::kGlobal);
                  PE_CHECK_EQ(ShmemFree(block), 0);
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), mapped);
                  PE_CHECK(!fake_cuda::EndCapture(stream));
                  PE_CHECK_EQ(ShmemMalloc(2 << 20), block);
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), mapped);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions("isolation"))),
            "");
}

/// What runs cannot be waited for then: it may use all of it.
TEST(CudaCaptures, FinalizeMeanwhileGivesNothingBack) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  testing::Words(2);
                  const auto mapped = fake_cuda::MappedBytes();
                  fake_cuda::BeginCapture(fake_cuda::MakeStream(), Capture::kGlobal);
                  PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kUnsupported));
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), mapped);
                },
                CudaOptions())),
            "");
}

/// The attribute of early launches is none that graphs knew before CUDA 12.3.
TEST(CudaCaptures, OfEarlierDriversHaveNoEarlyLaunches) {
  for (const int version : {12020, 12030}) {
    EXPECT_EQ(Failures(RunProcesses(
                  1,
                  [version](const Pe& pe) {
                    fake_cuda::machine().version = version;
                    pe.Init();
                    void* stream = fake_cuda::MakeStream();
                    PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                    PE_CHECK_EQ(fake_cuda::Launches().back(), "early MoriShmemMeetFew");
                    fake_cuda::BeginCapture(stream, Capture::kGlobal);
                    PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
                    PE_CHECK(fake_cuda::EndCapture(stream));
                    PE_CHECK_EQ(fake_cuda::Launches().back(),
                                std::string(version < 12030 ? "" : "early ") + "MoriShmemMeetFew");
                    PE_CHECK_EQ(ShmemFinalize(), 0);
                  },
                  CudaOptions())),
              "")
        << version;
  }
}

}  // namespace
}  // namespace mori::shmem
