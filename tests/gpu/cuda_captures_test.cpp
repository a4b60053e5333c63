// Graphs that a program captures in one thread, while another makes calls of the host; and memory
// that is dropped, or freed, under kernels that run. One PE in each mode, and two.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "gpu/cuda_streams.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::CudaShape;
using testing::CudaStreamPe;
using testing::CudaTest;
using testing::Pe;

class CudaCaptures : public testing::CudaStreams {};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaCaptures,
                         ::testing::Values(CudaShape{"static", As::kProcesses, 1},
                                           CudaShape{"static", As::kProcesses}),
                         testing::NameOfShape);

struct HostCall {
  const char* name;
  std::function<int(CudaStreamPe& p, std::uint64_t* words)> make;
};
/// Each that waits for the device, or maps; collective ones are made by all PEs.
const HostCall kHostCalls[] = {
    {"p", [](CudaStreamPe& p,
             std::uint64_t* w) { return ShmemP(w, std::uint64_t{7}, testing::Right(p.pe)); }},
    {"g", [](CudaStreamPe& p,
             std::uint64_t* w) { return static_cast<int>(ShmemG(w + 1, testing::Right(p.pe))); }},
    {"atomic",
     [](CudaStreamPe& p, std::uint64_t* w) {
       return ShmemAtomicAdd(w + 2, std::uint64_t{1}, testing::Right(p.pe));
     }},
    {"a put on another stream, and a barrier behind it",
     [](CudaStreamPe& p, std::uint64_t* w) {
       void* stream = p.cuda.CreateStream();
       const int put = ShmemPutMemOnStream(w + 3, w, 8, testing::Right(p.pe), stream);
       return put != 0 ? put : ShmemBarrierAll();
     }},
    {"malloc and free",
     [](CudaStreamPe&, std::uint64_t*) {
       void* block = ShmemMalloc(1 << 20);
       return block == nullptr ? 1 : ShmemFree(block);
     }},
};

/// As torch captures: in global mode, which concerns every thread.
TEST_P(CudaCaptures, OutliveHostCallsInAnotherThread) {
  RunOn([](CudaStreamPe& p) {
    auto* words = p.Zeroed<std::uint64_t>(8);
    auto* filled = p.Local<std::uint64_t>(8);
    for (const HostCall& call : kHostCalls) {
      void* captured = p.cuda.CreateStream();
      constexpr int kGlobal = 0;
      p.cuda.Call<void*, int>("cuStreamBeginCapture_v2", captured, kGlobal);
      p.cuda.LaunchOn(captured, "fill", 1, 32, filled, std::uint64_t{8}, std::uint64_t{3});
      int code = -1;
      std::thread([&] {
        p.cuda.SetCurrent(p.cuda.context());
        code = call.make(p, words);
      }).join();
      void* graph = nullptr;
      const int ended = p.cuda.Try<void*, void**>("cuStreamEndCapture", captured, &graph);
      if (code != 0 || ended != 0)
        throw testing::PeFailure(
            fmt::format("{}: {}, capture {}: {}", call.name, code, ended, ShmemLastError()));
      PE_CHECK_EQ(p.cuda.CountNodes(graph), std::size_t{1});
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

/// CU_STREAM_PER_THREAD is one handle for a stream of each thread.
TEST_P(CudaCaptures, ABarrierWaitsForThePerThreadStreamOfEveryThread) {
  RunOn([](CudaStreamPe& p) {
    constexpr std::uint64_t kWords = 1 << 18;
    void* const per_thread = reinterpret_cast<void*>(2);
    auto* data = p.Zeroed<std::uint64_t>(kWords);
    auto* source = p.Local<std::uint64_t>(kWords);
    p.Fill(source, kWords, 5);
    p.Sync(p.stream());
    const auto post = [&](std::uint64_t count, bool is_late) {
      std::thread([&] {
        p.cuda.SetCurrent(p.cuda.context());
        if (is_late) p.SpinOn(per_thread);
        PE_CHECK_EQ(ShmemPutMemOnStream(data, source, count * 8, testing::Right(p.pe), per_thread),
                    0);
      }).join();
    };
    post(kWords, true);
    post(1, false);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    p.Check(data, kWords, 5);
    p.Sync(p.stream());
  });
}

class CudaDrops : public testing::CudaStreams {};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaDrops,
                         ::testing::Values(CudaShape{"static", As::kProcesses},
                                           CudaShape{"vmm", As::kProcesses},
                                           CudaShape{"isolation", As::kProcesses}),
                         testing::NameOfShape);

/// A kernel that reads the block still runs when its owner drops it.
TEST_P(CudaDrops, ABlockIsNotGivenOutUnderAKernelThatReadsIt) {
  RunOn([](CudaStreamPe& p) {
    constexpr std::uint64_t kWords = 1 << 18;
    for (std::uint64_t round = 1; round <= 20; ++round) {
      auto* block = static_cast<std::uint64_t*>(ShmemMalloc(kWords * 8));
      void* owner = ShmemOwnBlock(block);
      PE_CHECK(owner != nullptr);
      p.Fill(block, kWords, round);
      p.SpinOn(p.stream());
      p.Check(block, kWords, round);
      ShmemDropBlock(owner);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      auto* other = static_cast<std::uint64_t*>(ShmemMalloc(kWords * 8));
      PE_CHECK(other != nullptr);
      void* side = p.cuda.CreateStream();
      p.FillOn(side, other, kWords, 1000 + round);
      p.Sync(side);
      p.Sync(p.stream());
      PE_CHECK_EQ(ShmemFree(other), 0);
    }
    // All of it comes back.
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    HeapStats stats;
    PE_CHECK_EQ(ShmemHeapStats(&stats), 0);
    PE_CHECK_EQ(stats.live_blocks, std::uint64_t{1});  // the counter of errors
  });
}

/// The kernel of one PE waits for what the other does behind the same free: neither waits for ever.
TEST_P(CudaDrops, AFreeUnderAKernelThatWaitsForAPeerReturns) {
  RunOn([](CudaStreamPe& p) {
    auto* flag = p.Zeroed<std::uint64_t>(1);
    void* block = ShmemMalloc(4 << 20);
    PE_CHECK(block != nullptr);
    p.cuda.LaunchOn(p.stream(), "await_flag", 1, 1, flag, std::uint64_t{1});
    PE_CHECK_EQ(ShmemFree(block), 0);
    void* side = p.cuda.CreateStream();
    p.cuda.LaunchOn(side, "set_flag", 1, 1, flag, std::uint64_t{1}, testing::Right(p.pe));
    p.Sync(side);
    p.Sync(p.stream());
    PE_CHECK(ShmemMalloc(4 << 20) != nullptr);
  });
}

class CudaPatience : public CudaTest {};

/// A wait on a stream whose signal never comes.
TEST_F(CudaPatience, ABarrierGivesUpAStreamAfterItsTime) {
  auto options = OptionsOf("static", As::kProcesses);
  options.environment.emplace_back("MORI_SHMEM_TIMEOUT", "1");
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  testing::CudaStreamPe p(pe);
                  auto* words = p.Zeroed<std::uint64_t>(2);
                  PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(words, Cmp::kEq, 1, p.stream()), 0);
                  PE_CHECK_EQ(ShmemPutMemOnStream(words + 1, words, 8, 0, p.stream()), 0);
                  PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kTimeout));
                  PE_CHECK(std::strstr(ShmemLastError(), "MORI_SHMEM_TIMEOUT") != nullptr);
                  PE_CHECK(std::strstr(ShmemLastError(), "a put or get") != nullptr);
                  void* side = p.cuda.CreateStream();
                  PE_CHECK_EQ(ShmemSignalOpOnStream(words, 1, SignalOp::kSet, 0, side), 0);
                  p.Sync(p.stream());
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                options)),
            "");
}

}  // namespace
}  // namespace mori::shmem
