// The host's calls on streams of a GPU, beside kernels on the same streams.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/cuda_streams.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::CudaShape;
using testing::CudaStreamPe;
using testing::CudaStreams;
using testing::Left;
using testing::Pe;
using testing::Right;
using testing::StreamPe;

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaStreams,
    ::testing::Values(CudaShape{"static", As::kProcesses, 1}, CudaShape{"static", As::kProcesses},
                      CudaShape{"static", As::kProcesses, 3}, CudaShape{"static", As::kThreads},
                      CudaShape{"vmm", As::kProcesses}, CudaShape{"isolation", As::kThreads},
                      CudaShape{"ipc", As::kProcesses}),
    testing::NameOfShape);

constexpr std::size_t kMost = 5 << 20;

// ---- puts, signals and order

TEST_P(CudaStreams, PutsAndGetsOfHostAndDeviceMemoryArrive) {
  RunOn([](StreamPe& p) { testing::CheckPutsAndGets(p, kMost); });
}
TEST_P(CudaStreams, AfterTheWaitForItsSignalThePutIsThere) {
  RunOn([](StreamPe& p) { testing::CheckSignalledPuts(p, 20'000, 500); });
}

TEST_P(CudaStreams, AWaitGoesOnWhenItsSignalComparesSoAndNotBefore) {
  RunOn([](CudaStreamPe& p) {
    void* waiting = p.stream();
    void* signalling = p.cuda.CreateStream();
    auto* signal = p.Zeroed<std::uint64_t>(1);
    for (const testing::WaitCase& one : testing::kWaitCases) {
      p.Write<std::uint64_t>(signal, {one.initial});
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signal, one.cmp, one.value, waiting), 0);
      p.SpinOn(signalling);
      p.Sync(signalling);
      PE_CHECK(p.cuda.IsBusy(waiting));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(ShmemSignalOpOnStream(signal, one.last, SignalOp::kSet, Right(p.pe), signalling),
                  0);
      p.Sync(waiting);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

// A flag without any order of its own: only quiet keeps it behind the data.
TEST_P(CudaStreams, AfterQuietWhatTheStreamPutIsThere) {
  RunOn([](CudaStreamPe& p) {
    void* stream = p.stream();
    constexpr std::uint64_t kWords = 20'000;
    auto* data = p.Zeroed<std::uint64_t>(kWords);
    auto* source = p.Local<std::uint64_t>(kWords);
    auto* flag = p.Zeroed<std::uint64_t>(1);
    p.Rounds(200, [&](std::uint64_t round) {
      p.Fill(source, kWords, round);
      PE_CHECK_EQ(ShmemPutMemOnStream(data, source, kWords * 8, Right(p.pe), stream), 0);
      PE_CHECK_EQ(ShmemQuietOnStream(stream), 0);
      p.cuda.LaunchOn(stream, "set_flag", 1, 1, flag, round, Right(p.pe));
      p.cuda.LaunchOn(stream, "await_flag", 1, 1, flag, round);
      p.Check(data, kWords, round);
      PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
    });
  });
}

TEST_P(CudaStreams, TwoStreamsOfAPePutAtTheSameTime) {
  RunOn([](CudaStreamPe& p) {
    void* const streams[] = {p.stream(), p.cuda.CreateStream()};
    constexpr std::uint64_t kWords = 100'000;
    auto* data = p.Zeroed<std::uint64_t>(2 * kWords);
    auto* source = p.Local<std::uint64_t>(2 * kWords);
    auto* signals = p.Zeroed<std::uint64_t>(2);
    auto* taken = p.Zeroed<std::uint64_t>(2);
    p.Rounds(100, [&](std::uint64_t round) {
      for (const std::uint64_t i : {0, 1}) {
        p.FillOn(streams[i], source + i * kWords, kWords, 1000 * round + 77 * i);
        PE_CHECK_EQ(
            ShmemPutMemSignalOnStream(data + i * kWords, source + i * kWords, kWords * 8,
                                      signals + i, round, SignalOp::kSet, Right(p.pe), streams[i]),
            0);
      }
      for (const std::uint64_t i : {0, 1}) {
        PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(signals + i, Cmp::kGe, round, streams[i]), 0);
        p.CheckOn(streams[i], data + i * kWords, kWords, 1000 * round + 77 * i);
        // Who put it may put the next.
        PE_CHECK_EQ(ShmemSignalOpOnStream(taken + i, 1, SignalOp::kAdd, Left(p.pe), streams[i]), 0);
        PE_CHECK_EQ(ShmemSignalWaitUntilOnStream(taken + i, Cmp::kEq, round, streams[i]), 0);
      }
      if (round % 20 == 0) p.Sync(streams[1]);
    });
  });
}

// ---- collectives

TEST_P(CudaStreams, CollectivesBringEveryByteToEveryPe) {
  RunOn([](StreamPe& p) { testing::CheckByteCollectives(p, kMost); });
}
TEST_P(CudaStreams, ABroadcastFromItsOwnSourceLeavesItThere) {
  RunOn(testing::CheckBroadcastInPlace);
}
TEST_P(CudaStreams, ReductionsCombineInTheOrderOfPesToTheBit) {
  RunOn([](StreamPe& p) { testing::CheckReductions(p, kMost); });
}
// A kernel must leave the words by which blocks and PEs meet ready for the next one.
TEST_P(CudaStreams, CollectivesFollowOneAnotherOnAStream) {
  RunOn([](StreamPe& p) { testing::CheckCollectivesInARow(p, 30'000, 100); });
}
TEST_P(CudaStreams, SmallCollectivesFollowOneAnotherOnAStream) {
  RunOn([](StreamPe& p) { testing::CheckCollectivesInARow(p, 125, 300); });
}

// ---- graphs and libraries

TEST_P(CudaStreams, AGraphOfPutAndBarrierIsLaunchedAgainAndAgain) {
  RunOn([](CudaStreamPe& p) {
    void* stream = p.stream();
    constexpr std::uint64_t kWords = 10'000;
    auto* data = p.Zeroed<std::uint64_t>(kWords);
    auto* source = p.Local<std::uint64_t>(kWords);
    auto* launches = p.Local<std::uint64_t>(1);
    void* graph = p.cuda.Capture(stream, [&] {
      p.cuda.LaunchOn(stream, "next_fill", 1, 256, source, kWords, launches);
      PE_CHECK_EQ(ShmemPutMemOnStream(data, source, kWords * 8, Right(p.pe), stream), 0);
      PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
      p.cuda.LaunchOn(stream, "next_check", 1, 256, data, kWords, launches, p.gpu.errors);
      PE_CHECK_EQ(ShmemBarrierAllOnStream(stream), 0);
    });
    PE_CHECK_EQ(p.cuda.CountNodes(graph), std::size_t{5});
    void* executable = p.cuda.Instantiate(graph);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int i = 0; i < 10; ++i) p.cuda.LaunchGraph(executable, stream);
    p.Sync(stream);
    PE_CHECK_EQ(p.Read(launches, 1).front(), std::uint64_t{10});
  });
}

TEST_P(CudaStreams, KernelsOfALibraryKnowTheirPe) {
  RunOn([](CudaStreamPe& p) {
    void* library = nullptr;
    p.cuda.Call<void**, const void*, void*, void*, unsigned, void*, void*, unsigned>(
        "cuLibraryLoadData", &library, testing::Cuda::Ptx("streams").c_str(), nullptr, nullptr, 0,
        nullptr, nullptr, 0);
    PE_CHECK_EQ(ShmemLibraryInit(library), 0);
    const auto find = [&](const char* name) {
      void* kernel = nullptr;
      p.cuda.Call<void**, void*, const char*>("cuLibraryGetKernel", &kernel, library, name);
      return kernel;
    };
    int* pes = p.Zeroed<int>(2);
    int* of_left = p.Zeroed<int>(2);
    void* stream = p.stream();
    p.cuda.LaunchFunction(stream, find("identity"), 1, 1, pes);
    p.cuda.LaunchFunction(stream, find("put_block"), 1, 32, of_left, pes,
                          std::uint64_t{2 * sizeof(int)}, Right(p.pe));
    p.Sync(stream);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK(p.Read(pes, 2) == (std::vector<int>{p.pe.rank, p.pe.size}));
    PE_CHECK(p.Read(of_left, 2) == (std::vector<int>{Left(p.pe), p.pe.size}));
    PE_CHECK_EQ(ShmemLibraryInit(nullptr), static_cast<int>(ErrorCode::kInvalidArgument));
  });
}

// ---- errors

TEST_P(CudaStreams, AWrongCallIsAnErrorAndPutsNothingOnTheStream) {
  RunOn([](CudaStreamPe& p) {
    void* stream = p.stream();
    auto* word = p.Zeroed<std::uint64_t>(8);
    auto* local = p.Local<std::uint64_t>(8);
    void* nothing =
        p.cuda.Capture(stream, [&] { testing::CheckWrongCalls(p.pe, word, local, stream); });
    PE_CHECK_EQ(p.cuda.CountNodes(nothing), std::size_t{0});
    // A right one shows in the count.
    void* something = p.cuda.Capture(
        stream, [&] { PE_CHECK_EQ(ShmemPutMemOnStream(word, local, 8, p.pe.rank, stream), 0); });
    PE_CHECK_EQ(p.cuda.CountNodes(something), std::size_t{1});
  });
}

}  // namespace
}  // namespace mori::shmem
