// The host's operations on memory of a GPU, while kernels are at work on the same words; and what
// the host's calls leave alone.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Cuda;
using testing::CudaShape;
using testing::GpuPe;
using testing::Left;
using testing::Pe;
using testing::Right;

class CudaHostOps : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaHostOps,
                         ::testing::Values(CudaShape{"static", As::kProcesses, 1},
                                           CudaShape{"static", As::kProcesses},
                                           CudaShape{"static", As::kThreads, 3}),
                         testing::NameOfShape);

// ---- atomics

/// On the word of this PE's own on each PE, which nobody else touches.
template <typename T>
void CheckAtomics(const Pe& pe, GpuPe* gpu) {
  T* words = gpu->Zeroed<T>(static_cast<std::size_t>(pe.size));
  T* word = words + pe.rank;
  for (int to = 0; to < pe.size; ++to) {
    const T seven = 7;
    const T minus_twenty = static_cast<T>(-20);
    PE_CHECK_EQ(ShmemAtomicSet(word, T{6}, to), 0);
    PE_CHECK_EQ(ShmemAtomicFetch(word, to), T{6});
    PE_CHECK_EQ(ShmemAtomicSwap(word, seven, to), T{6});
    PE_CHECK_EQ(ShmemAtomicCompareSwap(word, T{6}, T{1}, to), seven);
    PE_CHECK_EQ(ShmemAtomicCompareSwap(word, seven, T{8}, to), seven);
    PE_CHECK_EQ(ShmemAtomicFetchInc(word, to), T{8});
    PE_CHECK_EQ(ShmemAtomicInc(word, to), 0);
    PE_CHECK_EQ(ShmemAtomicFetchAdd(word, minus_twenty, to), T{10});
    PE_CHECK_EQ(ShmemAtomicFetch(word, to), static_cast<T>(-10));
    PE_CHECK_EQ(ShmemAtomicAdd(word, T{17}, to), 0);
    PE_CHECK_EQ(ShmemAtomicFetchAnd(word, T{6}, to), seven);
    PE_CHECK_EQ(ShmemAtomicAnd(word, T{2}, to), 0);
    PE_CHECK_EQ(ShmemAtomicFetchOr(word, T{8}, to), T{2});
    PE_CHECK_EQ(ShmemAtomicOr(word, T{1}, to), 0);
    PE_CHECK_EQ(ShmemAtomicFetchXor(word, T{3}, to), T{11});
    PE_CHECK_EQ(ShmemAtomicXor(word, T{8}, to), 0);
    PE_CHECK_EQ(ShmemAtomicFetch(word, to), T{0});
    PE_CHECK_EQ(ShmemAtomicSet(word, static_cast<T>(~T{0}), to), 0);
    PE_CHECK_EQ(ShmemG(word, to), static_cast<T>(~T{0}));
  }
}
TEST_P(CudaHostOps, AtomicsReturnWhatWasThere) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              CheckAtomics<std::int32_t>(pe, &gpu);
              CheckAtomics<std::uint32_t>(pe, &gpu);
              CheckAtomics<std::int64_t>(pe, &gpu);
              CheckAtomics<std::uint64_t>(pe, &gpu);
              gpu.End();
            }),
            "");
}

TEST_P(CudaHostOps, AtomicsOfHostsAndKernelsAddUpExactly) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              constexpr unsigned kBlocks = 4, kThreads = 64;
              constexpr int kByKernel = 3000;
              constexpr std::uint64_t kByHost = 100;
              auto* sum = gpu.Zeroed<std::uint64_t>(1);
              auto* small_sum = gpu.Zeroed<std::uint32_t>(1);
              auto* bits = gpu.Zeroed<std::uint64_t>(1);
              auto* small_bits = gpu.Zeroed<std::uint32_t>(1);
              // Kernels flip the low 16 bits, each PE's host one of its own.
              const std::uint32_t small_mine = 1u << (16 + pe.rank);
              const std::uint64_t mine = small_mine;
              gpu.cuda.LaunchOn(gpu.cuda.stream(), "atomics_everywhere", kBlocks, kThreads, sum,
                                small_sum, bits, small_bits, kByKernel);
              std::vector<std::uint64_t> last(static_cast<std::size_t>(pe.size));
              for (std::uint64_t i = 1; i <= kByHost; ++i) {
                for (int to = 0; to < pe.size; ++to) {
                  std::uint64_t& before = last[static_cast<std::size_t>(to)];
                  const std::uint64_t now = ShmemAtomicFetchAdd(sum, std::uint64_t{1}, to);
                  PE_CHECK(i == 1 || now > before);
                  before = now;
                  PE_CHECK_EQ(ShmemAtomicAdd(small_sum, std::uint32_t{5}, to), 0);
                  PE_CHECK_EQ(ShmemAtomicFetchOr(bits, mine, to) & mine, i == 1 ? 0 : mine);
                  PE_CHECK_EQ(ShmemAtomicFetchAnd(bits, ~mine, to) & mine, mine);
                  PE_CHECK_EQ(ShmemAtomicFetchXor(bits, mine, to) & mine, 0u);
                  PE_CHECK_EQ(ShmemAtomicXor(small_bits, small_mine, to), 0);
                }
              }
              gpu.cuda.Sync(gpu.cuda.stream());
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              const auto n_pes = static_cast<std::uint64_t>(pe.size);
              constexpr std::uint64_t kOfKernel = std::uint64_t{kBlocks} * kThreads * kByKernel;
              PE_CHECK_EQ(gpu.ReadOne(sum), n_pes * (kOfKernel + kByHost));
              PE_CHECK_EQ(gpu.ReadOne(small_sum),
                          static_cast<std::uint32_t>(n_pes * (3 * kOfKernel + 5 * kByHost)));
              PE_CHECK_EQ(gpu.ReadOne(bits), ((std::uint64_t{1} << pe.size) - 1) << 16);
              PE_CHECK_EQ(gpu.ReadOne(small_bits), 0u);  // flipped an even number of times
              gpu.End();
            }),
            "");
}

// ---- waits and signals

constexpr std::uint64_t kSoonNs = 2'000'000;

/// The host of each PE waits for a word that a kernel of its left neighbour sets.
template <typename T>
void CheckWaits(const Pe& pe, GpuPe* gpu, const char* kernel) {
  struct Case {
    Cmp cmp;
    T initial, value, last;
  };
  const T odd = static_cast<T>(-3);  // negative, or nearly the largest
  std::vector<Case> cases = {{Cmp::kEq, 1, odd, odd}, {Cmp::kNe, odd, odd, 1}};
  if (std::is_signed_v<T>) {
    cases.push_back({Cmp::kGt, odd, 0, 1});
    cases.push_back({Cmp::kGe, odd, 1, 1});
    cases.push_back({Cmp::kLt, 1, 0, odd});
    cases.push_back({Cmp::kLe, 1, odd, odd});
  } else {
    cases.push_back({Cmp::kGt, 1, 2, odd});
    cases.push_back({Cmp::kGe, 1, odd, odd});
    cases.push_back({Cmp::kLt, odd, 2, 1});
    cases.push_back({Cmp::kLe, odd, 2, 2});
  }
  T* word = gpu->Zeroed<T>(1);
  for (const Case& one : cases) {
    gpu->Write<T>(word, {one.initial});
    PE_CHECK(!ShmemTest(word, one.cmp, one.value));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    gpu->cuda.LaunchOn(gpu->cuda.stream(), kernel, 1, 1, kSoonNs, word,
                       static_cast<std::make_unsigned_t<T>>(one.last), Right(pe));
    PE_CHECK_EQ(ShmemWaitUntil(word, one.cmp, one.value), 0);
    PE_CHECK(ShmemTest(word, one.cmp, one.value));
    PE_CHECK_EQ(gpu->ReadOne(word), one.last);
    gpu->cuda.Sync(gpu->cuda.stream());
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
  }
}
TEST_P(CudaHostOps, TheHostWaitsForWhatAKernelWrites) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              CheckWaits<std::int32_t>(pe, &gpu, "spin_then_set_32");
              CheckWaits<std::uint32_t>(pe, &gpu, "spin_then_set_32");
              CheckWaits<std::int64_t>(pe, &gpu, "spin_then_set");
              CheckWaits<std::uint64_t>(pe, &gpu, "spin_then_set");
              gpu.End();
            }),
            "");
}

TEST_P(CudaHostOps, TheHostSeesASignalOfAKernelByEachOfItsCalls) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              auto* signal = gpu.Zeroed<std::uint64_t>(1);
              const auto set_soon = [&](std::uint64_t value) {
                gpu.cuda.LaunchOn(gpu.cuda.stream(), "spin_then_set", 1, 1, kSoonNs, signal, value,
                                  Right(pe));
              };
              set_soon(5);
              while (ShmemSignalFetch(signal) != 5) PE_CHECK_EQ(ShmemSignalFetch(signal) % 5, 0u);
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              set_soon(6);
              while (!ShmemTest(signal, Cmp::kGt, std::uint64_t{5})) std::this_thread::yield();
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
              set_soon(9);
              std::uint64_t fetched = 0;
              PE_CHECK_EQ(ShmemSignalWaitUntil(signal, Cmp::kGe, 7, &fetched), 0);
              PE_CHECK_EQ(fetched, std::uint64_t{9});
              gpu.cuda.Sync(gpu.cuda.stream());
              gpu.End();
            }),
            "");
}

// Were the signal not ordered behind the data, the kernel that waits for it would find words of an
// earlier round.
TEST_P(CudaHostOps, AKernelThatSeesTheHostsSignalSeesItsData) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "streams");
              constexpr std::uint64_t kWords = 5000;
              constexpr int kRounds = 300;
              auto* data = gpu.Zeroed<std::uint64_t>(kWords);
              auto* signal = gpu.Zeroed<std::uint64_t>(1);
              auto* consumed = gpu.Zeroed<std::uint64_t>(1);
              gpu.cuda.LaunchOn(gpu.cuda.stream(), "consume", 1, 256, data, kWords, signal, kRounds,
                                consumed, Left(pe), gpu.errors);
              std::vector<std::uint64_t> source(kWords);
              for (std::uint64_t round = 1; round <= kRounds; ++round) {
                for (std::uint64_t i = 0; i < kWords; ++i) source[i] = round * 7 + i;
                const bool adds = round % 2 == 1;
                PE_CHECK_EQ(
                    ShmemPutMemSignal(data, source.data(), kWords * 8, signal, adds ? 1 : round,
                                      adds ? SignalOp::kAdd : SignalOp::kSet, Right(pe)),
                    0);
                PE_CHECK_EQ(ShmemWaitUntil(consumed, Cmp::kGe, round), 0);
              }
              gpu.cuda.Sync(gpu.cuda.stream());
              gpu.End();
            }),
            "");
}

// ---- the caller's context

/// Makes calls of every kind while `current` is the thread's context, after init `later`, and looks
/// after each whether it still is.
void CheckContextIsKept(const Pe& pe, Cuda* cuda, void* current, void* later) {
  cuda->SetCurrent(current);
  int call = 0;
  const auto kept = [&](auto result) {
    ++call;
    if (cuda->Current() != current)
      throw testing::PeFailure(fmt::format("call {} left another context", call));
    return result;
  };
  const int right = Right(pe);
  PE_CHECK_EQ(kept(pe.TryInit()), 0);
  current = later;
  cuda->SetCurrent(current);
  auto* words = static_cast<std::uint64_t*>(kept(ShmemMalloc(4096)));
  PE_CHECK(words != nullptr);
  const std::uint64_t value = 40;
  const std::uint64_t initial[16] = {value};
  PE_CHECK_EQ(kept(ShmemPutMem(words, initial, sizeof initial, pe.rank)), 0);
  PE_CHECK_EQ(kept(ShmemBarrierAll()), 0);
  PE_CHECK_EQ(kept(ShmemAtomicFetchAdd(words, std::uint64_t{2}, right)), value);
  PE_CHECK_EQ(kept(ShmemWaitUntil(words, Cmp::kEq, value + 2)), 0);
  PE_CHECK_EQ(kept(ShmemPutMemSignal(words + 1, &value, 8, words + 2, 1, SignalOp::kSet, right)),
              0);
  PE_CHECK_EQ(kept(ShmemSignalWaitUntil(words + 2, Cmp::kGe, 1)), 0);
  PE_CHECK_EQ(kept(ShmemG(words + 1, pe.rank)), value);

  // A stream and a module of the PE's device, wherever the thread is.
  cuda->SetCurrent(cuda->context());
  void* module = cuda->Load("streams");
  void* stream = cuda->CreateStream();
  cuda->SetCurrent(current);
  PE_CHECK_EQ(kept(ShmemModuleInit(module)), 0);
  PE_CHECK_EQ(kept(ShmemBarrierAll()), 0);  // loading a module waits for kernels that run
  PE_CHECK_EQ(kept(ShmemPutMemOnStream(words + 3, words, 8, right, stream)), 0);
  PE_CHECK_EQ(kept(ShmemSignalOpOnStream(words + 2, 7, SignalOp::kSet, right, stream)), 0);
  PE_CHECK_EQ(kept(ShmemSignalWaitUntilOnStream(words + 2, Cmp::kEq, 7, stream)), 0);
  PE_CHECK_EQ(kept(ShmemQuietOnStream(stream)), 0);
  PE_CHECK_EQ(kept(ShmemBarrierAllOnStream(stream)), 0);
  PE_CHECK_EQ(kept(ShmemSumReduceOnStream(words + 8, words + 3, 1, stream)), 0);
  PE_CHECK_EQ(kept(ShmemBarrierAll()), 0);
  PE_CHECK_EQ(kept(ShmemG(words + 8, right)), (value + 2) * static_cast<std::uint64_t>(pe.size));
  PE_CHECK(kept(ShmemPutMem(words, &value, 8, pe.size)) != 0);
  PE_CHECK_EQ(kept(ShmemFree(words)), 0);
  PE_CHECK_EQ(kept(ShmemFinalize()), 0);
}

TEST_P(CudaHostOps, CallsLeaveAThreadWithoutAContextWithoutOne) {
  EXPECT_EQ(Run([](const Pe& pe) {
              // With no context to tell its device, a PE takes the one of MORI_LOCAL_RANK.
              const bool is_process = GetParam().as == testing::As::kProcesses;
              Cuda cuda(Pe{is_process ? pe.rank : 0, pe.size, pe.id, pe.blackboard});
              CheckContextIsKept(pe, &cuda, nullptr, nullptr);
            }),
            "");
}
TEST_P(CudaHostOps, CallsLeaveTheThreadsOwnContextCurrent) {
  EXPECT_EQ(Run([](const Pe& pe) {
              Cuda cuda(pe);
              CheckContextIsKept(pe, &cuda, cuda.context(), cuda.context());
            }),
            "");
}
TEST_P(CudaHostOps, CallsLeaveTheContextOfAnotherGpuCurrent) {
  if (testing::GpuCount() < 2) GTEST_SKIP() << "no second GPU";
  EXPECT_EQ(Run([](const Pe& pe) {
              Cuda cuda(pe);
              void* other = nullptr;
              cuda.Call<void**, int>("cuDevicePrimaryCtxRetain", &other,
                                     (cuda.device() + 1) % testing::GpuCount());
              CheckContextIsKept(pe, &cuda, cuda.context(), other);
            }),
            "");
}
// One that is not the device's primary context, in which the library has its memory.
TEST_P(CudaHostOps, CallsLeaveAnyOtherContextCurrent) {
  EXPECT_EQ(Run([](const Pe& pe) {
              Cuda cuda(pe);
              void* other = nullptr;
              cuda.Call<void**, unsigned, int>("cuCtxCreate_v2", &other, 0, cuda.device());
              PE_CHECK(other != cuda.context());
              CheckContextIsKept(pe, &cuda, other, other);
            }),
            "");
}

}  // namespace
}  // namespace mori::shmem
