// Tests, waits, signals and completion of the device API in kernels, on a GPU.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "gpu/gpu_pe.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::CudaShape;
using testing::GpuPe;
using testing::kScopes;
using testing::Pe;
using testing::Right;
using testing::Scope;

class CudaWaits : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Kinds, CudaWaits,
                         ::testing::Values(CudaShape{"static", As::kProcesses, 1},
                                           CudaShape{"static", As::kProcesses},
                                           CudaShape{"static", As::kThreads}),
                         testing::NameOfShape);

// ---- one word

template <typename T>
void CheckComparisons(GpuPe* gpu, const std::string& type) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> words, values;
  for (const T word : {Limits::min(), static_cast<T>(-1), T{0}, T{1}, Limits::max()}) {
    for (const T value : {Limits::min(), static_cast<T>(-1), T{0}, T{1}, Limits::max()}) {
      words.push_back(word);
      values.push_back(value);
    }
  }
  auto* seen = gpu->Zeroed<std::uint32_t>(words.size());
  gpu->cuda.Launch("compare_" + type, 1, 1, gpu->Filled(words), gpu->Filled(values),
                   std::uint64_t{words.size()}, seen);
  const auto found = gpu->Read(seen, words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (int cmp = 0; cmp < 6; ++cmp) {
      PE_CHECK_EQ((found[i] >> cmp & 1) != 0,
                  detail::Holds(words[i], static_cast<Cmp>(cmp), values[i]));
    }
  }
}
TEST_P(CudaWaits, TestComparesAsTheTypeDoes) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              CheckComparisons<std::int32_t>(&gpu, "int32");
              CheckComparisons<std::uint32_t>(&gpu, "uint32");
              CheckComparisons<std::int64_t>(&gpu, "int64");
              CheckComparisons<std::uint64_t>(&gpu, "uint64");
              gpu.End();
            }),
            "");
}

/// A word that does not compare as wanted, though it would if the type had a sign, or none; and one
/// that does.
template <typename T>
struct WaitCase {
  Cmp cmp;
  T initial;
  T value;
  T last;
};
template <typename T>
std::vector<WaitCase<T>> WaitCases() {
  const T top = static_cast<T>(-2);  // of unsigned ones nearly the largest
  std::vector<WaitCase<T>> cases = {{Cmp::kEq, 1, top, top}, {Cmp::kNe, top, top, 1}};
  if constexpr (std::is_signed_v<T>) {
    cases.push_back({Cmp::kGt, top, 1, 2});
    cases.push_back({Cmp::kGe, top, 1, 1});
    cases.push_back({Cmp::kLt, 1, -1, top});
    cases.push_back({Cmp::kLe, 1, top, top});
  } else {
    cases.push_back({Cmp::kGt, 1, top, std::numeric_limits<T>::max()});
    cases.push_back({Cmp::kGe, 1, top, top});
    cases.push_back({Cmp::kLt, top, 5, 4});
    cases.push_back({Cmp::kLe, top, 5, 5});
  }
  return cases;
}

/// Kernels of both PEs wait, until a kernel of the other one sets the word.
template <typename T>
void CheckWaits(const Pe& pe, GpuPe* gpu, const std::string& type) {
  void* setting = gpu->cuda.CreateStream();
  T* word = gpu->Zeroed<T>(1);
  T* seen = gpu->Zeroed<T>(1);
  auto* is_done = gpu->Zeroed<std::uint32_t>(1);
  for (const Scope& scope : kScopes) {
    for (const WaitCase<T>& one : WaitCases<T>()) {
      gpu->Write<T>(word, {one.initial});
      gpu->Write<T>(seen, {one.initial});
      gpu->Write<std::uint32_t>(is_done, {0});
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      gpu->cuda.LaunchOn(gpu->cuda.stream(), fmt::format("wait_{}_{}", type, scope.name), 1,
                         scope.threads, word, static_cast<int>(one.cmp), one.value, seen, is_done);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      PE_CHECK_EQ(gpu->ReadOne(is_done), 0u);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      gpu->cuda.LaunchOn(setting, "set_" + type, 1, 1, word, one.last, Right(pe));
      gpu->cuda.Sync(setting);
      gpu->cuda.Sync(gpu->cuda.stream());
      PE_CHECK_EQ(gpu->ReadOne(seen), one.last);
      PE_CHECK_EQ(gpu->ReadOne(is_done), 1u);
    }
  }
}
TEST_P(CudaWaits, AWaitEndsWhenItsWordComparesSoAndNotBefore) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              CheckWaits<std::int32_t>(pe, &gpu, "int32");
              CheckWaits<std::uint32_t>(pe, &gpu, "uint32");
              CheckWaits<std::int64_t>(pe, &gpu, "int64");
              CheckWaits<std::uint64_t>(pe, &gpu, "uint64");
              gpu.End();
            }),
            "");
}

// ---- several words

TEST_P(CudaWaits, TestsOfSeveralWordsLeaveOutWhatTheirStatusSays) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              gpu.cuda.Launch("test_sets", 1, 1, gpu.Zeroed<std::uint64_t>(5), gpu.Zeroed<int>(5),
                              gpu.errors);
              gpu.End();
            }),
            "");
}

/// 64 words, some of them left out; while one kernel waits for them, another one sets those of the
/// peer, but for the ones left out.
class SeveralWords {
 public:
  static constexpr std::size_t kCount = 64;

  SeveralWords(const Pe& pe, GpuPe* gpu) : gpu_(*gpu), peer_(Right(pe)) {
    std::vector<int> status(kCount);
    for (std::size_t i = 0; i < kCount; i += 5) status[i] = 1;
    taking_part = kCount - (kCount + 4) / 5;
    words = gpu->Zeroed<std::uint64_t>(kCount);
    asked = gpu->Zeroed<std::uint64_t>(1);
    setter_status_ = gpu->Filled(status);
    waiter_status = gpu->Filled(status);
    setting_ = gpu->cuda.CreateStream();
  }

  template <typename... Arguments>
  void Run(const std::string& kernel, unsigned threads, Arguments... arguments) {
    gpu_.cuda.LaunchOn(setting_, "set_in_turn", 1, 1, words, setter_status_, asked, peer_);
    gpu_.cuda.LaunchOn(gpu_.cuda.stream(), kernel, 1, threads, words, waiter_status, arguments...,
                       asked, peer_, gpu_.errors);
    gpu_.cuda.Sync(gpu_.cuda.stream());
    gpu_.cuda.Sync(setting_);
    gpu_.ExpectNoErrors();
  }

  std::uint64_t* words;
  std::uint64_t* asked;
  int* waiter_status;
  std::uint64_t taking_part;

 private:
  GpuPe& gpu_;
  int peer_;
  int* setter_status_;
  void* setting_;
};

TEST_P(CudaWaits, WaitingForAnyFindsEachWordWhenItIsSet) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              SeveralWords(pe, &gpu).Run("wait_for_any", 1);
              gpu.End();
            }),
            "");
}
TEST_P(CudaWaits, WaitingForSomeFindsEachWordOnce) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              SeveralWords several(pe, &gpu);
              several.Run("wait_for_some", 1, several.taking_part);
              gpu.End();
            }),
            "");
}
TEST_P(CudaWaits, WaitingForAllLeavesNoneOut) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              for (const Scope& scope : kScopes)
                SeveralWords(pe, &gpu).Run(fmt::format("wait_for_all_{}", scope.name),
                                           scope.threads);
              gpu.End();
            }),
            "");
}

// ---- completion

constexpr std::uint64_t kWords = 300;

/// Without the fence of quiet, a flag overtakes data, which shows as words of an earlier round.
TEST_P(CudaWaits, WhatWasPutBeforeQuietIsThereAfterIt) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              for (const Scope& scope : kScopes) {
                auto* data = gpu.Zeroed<std::uint64_t>(kWords);
                auto* scratch = gpu.Zeroed<std::uint64_t>(kWords);
                auto* flag = gpu.Zeroed<std::uint64_t>(1);
                gpu.cuda.Launch(fmt::format("quiet_then_flag_{}", scope.name), 1, scope.threads,
                                data, scratch, kWords, flag, 1000, Right(pe), gpu.errors);
                gpu.ExpectNoErrors();
              }
              gpu.End();
            }),
            "");
}
TEST_P(CudaWaits, WhatAGetBringsIsThereAfterQuiet) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              for (const Scope& scope : kScopes) {
                auto* data = gpu.Zeroed<std::uint64_t>(kWords);
                auto* scratch = gpu.Zeroed<std::uint64_t>(kWords);
                gpu.cuda.Launch(fmt::format("get_then_quiet_{}", scope.name), 1, scope.threads,
                                data, scratch, kWords, 500, Right(pe), gpu.errors);
                gpu.ExpectNoErrors();
              }
              gpu.End();
            }),
            "");
}
TEST_P(CudaWaits, SignalsThatAddTellHowMuchHasCome) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              constexpr int kRounds = 1000;
              for (const Scope& scope : kScopes) {
                auto* data = gpu.Zeroed<std::uint64_t>(kWords * kRounds);
                auto* scratch = gpu.Zeroed<std::uint64_t>(kWords * kRounds);
                auto* signal = gpu.Zeroed<std::uint64_t>(1);
                gpu.cuda.Launch(fmt::format("add_signals_{}", scope.name), 1, scope.threads, data,
                                scratch, kWords, signal, kRounds, Right(pe), gpu.errors);
                gpu.ExpectNoErrors();
                PE_CHECK_EQ(ShmemFree(signal), 0);
                PE_CHECK_EQ(ShmemFree(scratch), 0);
                PE_CHECK_EQ(ShmemFree(data), 0);
              }
              gpu.End();
            }),
            "");
}
TEST_P(CudaWaits, ASignalComesAfterWhatItsThreadPutBefore) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "waits");
              auto* data = gpu.Zeroed<std::uint64_t>(8);
              auto* signal = gpu.Zeroed<std::uint64_t>(1);
              gpu.cuda.Launch("put_then_signal", 1, 1, data, signal, 2000, Right(pe), gpu.errors);
              gpu.End();
            }),
            "");
}

}  // namespace
}  // namespace mori::shmem
