// Waits of the host for the device: what they wait for, and what ends them.
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>

#include "cuda_host/cuda_pe.hpp"
#include "runtime/cuda/cuda_kernels.hpp"

namespace mori::shmem {
namespace {

using testing::CudaOptions;
using testing::Failures;
using testing::Pe;

/// Runs `call` in a thread of its own; it must wait, until `release`.
void ExpectWaits(const std::function<int()>& call, const std::function<void()>& release) {
  const unsigned long long before = fake_cuda::Looks();
  std::atomic<int> code = -1;
  std::thread caller([&] { code = call(); });
  while (code == -1 && fake_cuda::Looks() < before + 1200) std::this_thread::yield();
  const bool waited = code == -1;
  release();
  caller.join();
  PE_CHECK(waited);
  PE_CHECK_EQ(code.load(), 0);
}

/// One handle for a stream of each thread.
TEST(CudaHostWaits, ABarrierWaitsForTheStreamOfEveryThread) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  std::uint64_t* words = testing::Words(2);
                  std::atomic<bool> may_release = false;
                  std::atomic<bool> has_posted = false;
                  std::thread first([&] {
                    void* mine = fake_cuda::PerThreadStream();
                    fake_cuda::Block(mine);
                    ShmemPutMemOnStream(words, words + 1, 8, 0, mine);
                    has_posted = true;
                    while (!may_release) std::this_thread::yield();
                    fake_cuda::Release(mine);
                  });
                  while (!has_posted) std::this_thread::yield();
                  std::thread([&] {
                    ShmemPutMemOnStream(words, words + 1, 8, 0, fake_cuda::PerThreadStream());
                  }).join();
                  ExpectWaits([] { return ShmemBarrierAll(); }, [&] { may_release = true; });
                  first.join();
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

/// A program that makes a stream for each put, and no barrier.
TEST(CudaHostWaits, StreamsThatAreDoneAreForgotten) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  std::uint64_t* words = testing::Words(2);
                  void* busy = testing::BusyStream(words);
                  for (int i = 0; i < 500; ++i)
                    PE_CHECK_EQ(
                        ShmemPutMemOnStream(words, words + 1, 8, 0, fake_cuda::MakeStream()), 0);
                  PE_CHECK(fake_cuda::Events() < 100);
                  ExpectWaits([] { return ShmemBarrierAll(); }, [&] { fake_cuda::Release(busy); });
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

TEST(CudaHostWaits, ABarrierThatWaitsForAStreamLearnsWhoIsLost) {
  const auto outcomes = RunProcesses(
      2,
      [](const Pe& pe) {
        pe.Init();
        std::uint64_t* words = testing::Words(2);
        if (pe.rank == 1) ::_exit(0);
        testing::BusyStream(words);
        PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
        PE_CHECK(std::strstr(ShmemLastError(), "PE 1 (host ") != nullptr);
        PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
      },
      CudaOptions());
  EXPECT_EQ(Failures(outcomes), "");
}

/// A wait on a stream whose signal never comes, for example.
TEST(CudaHostWaits, ABarrierGivesUpAStreamAfterItsTimeAndCanBeMadeAgain) {
  auto options = CudaOptions();
  options.environment.emplace_back("MORI_SHMEM_TIMEOUT", "0.3");
  EXPECT_EQ(
      Failures(RunProcesses(
          1,
          [](const Pe& pe) {
            pe.Init();
            void* stream = testing::BusyStream(testing::Words(2));
            for (int again = 0; again < 2; ++again) {
              PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kTimeout));
              PE_CHECK(std::strstr(ShmemLastError(), "MORI_SHMEM_TIMEOUT") != nullptr);
              PE_CHECK(std::strstr(ShmemLastError(), "last call was a put or get") != nullptr);
            }
            fake_cuda::Release(stream);
            PE_CHECK_EQ(ShmemBarrierAll(), 0);
            PE_CHECK_EQ(ShmemFinalize(), 0);
          },
          options)),
      "");
}

/// What still runs keeps its memory, its modules and the context.
TEST(CudaHostWaits, FinalizeGivesUpADeviceThatDoesNotEnd) {
  for (const char* sharing : {"fd", "ipc"}) {
    auto options = CudaOptions();
    options.environment.emplace_back("MORI_SHMEM_TIMEOUT", "0.3");
    options.environment.emplace_back("MORI_SHMEM_GPU_SHARING", sharing);
    EXPECT_EQ(Failures(RunProcesses(
                  1,
                  [](const Pe& pe) {
                    pe.Init();
                    testing::Words(2);
                    void* stream = fake_cuda::MakeStream();
                    fake_cuda::Block(stream);
                    fake_cuda::Post(stream);
                    const volatile device::u32* first_lost = testing::StateOfPe()->first_lost;
                    const auto mapped = fake_cuda::MappedBytes();
                    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kTimeout));
                    PE_CHECK(!ShmemInitialized());
                    PE_CHECK_EQ(fake_cuda::MappedBytes(), mapped);
                    PE_CHECK_EQ(*first_lost, 0u);  // as a late kernel looks
                  },
                  options)),
              "")
        << sharing;
  }
}

/// A late kernel may write it.
TEST(CudaHostWaits, MappedMemoryOfTheHostStaysWhileAKernelMayUseIt) {
  EXPECT_EQ(
      Failures(RunProcesses(
          1,
          [](const Pe&) {
            auto device = CudaDevice::Open(*cuda::OpenDriver(), 0);
            auto kernels = CudaKernels::Create(*device);
            (*device)->SetPatience([](auto) { return Error(ErrorCode::kTimeout, "given up"); });
            void* stream = fake_cuda::MakeStream();
            fake_cuda::Block(stream);
            for (const bool is_busy : {false, true}) {
              if (is_busy) fake_cuda::Post(stream);
              auto word = std::make_shared<std::uint64_t>(0);
              const std::weak_ptr<std::uint64_t> watched = word;
              auto mapped = (*kernels)->MapHost(std::move(word), sizeof(std::uint64_t));
              PE_CHECK(mapped.ok() && !watched.expired());
              mapped->reset();
              PE_CHECK_EQ(watched.expired(), !is_busy);
            }
          },
          CudaOptions())),
      "");
}

/// A put into it is under way: nothing is freed, on any PE.
TEST(CudaHostWaits, ABlockThatAStreamStillUsesIsNotFreed) {
  EXPECT_EQ(Failures(RunProcesses(
                2,
                [](const Pe& pe) {
                  if (pe.rank == 1) ::setenv("MORI_SHMEM_TIMEOUT", "0.3", 1);
                  pe.Init();
                  std::uint64_t* words = testing::Words(2);
                  void* stream = pe.rank == 1 ? testing::BusyStream(words) : nullptr;
                  const auto code = pe.rank == 1 ? ErrorCode::kTimeout : ErrorCode::kMismatch;
                  PE_CHECK_EQ(ShmemFree(words), static_cast<int>(code));
                  if (pe.rank == 0)
                    PE_CHECK(std::strstr(ShmemLastError(), "which its streams still use"));
                  if (pe.rank == 1) fake_cuda::Release(stream);
                  PE_CHECK_EQ(ShmemFree(words), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

/// The kernels that may use the block may wait for one that a peer launches behind its own free.
TEST(CudaHostWaits, AFreeThatUnmapsDoesNotWaitForKernels) {
  EXPECT_EQ(Failures(RunProcesses(
                2,
                [](const Pe& pe) {
                  pe.Init();
                  testing::Words(2);
                  const auto mapped = fake_cuda::MappedBytes();
                  void* block = ShmemMalloc(4 << 20);
                  const auto with_block = fake_cuda::MappedBytes();
                  PE_CHECK(with_block > mapped);
                  void* stream = fake_cuda::MakeStream();
                  fake_cuda::Block(stream);
                  fake_cuda::Post(stream);
                  PE_CHECK_EQ(ShmemFree(block), 0);
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), with_block);  // a kernel may look there
                  // What comes to the same place waits.
                  void* again = nullptr;
                  ExpectWaits([&] { return (again = ShmemMalloc(4 << 20)) == nullptr ? 1 : 0; },
                              [&] { fake_cuda::Release(stream); });
                  PE_CHECK_EQ(again, block);
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), with_block);
                  PE_CHECK_EQ(ShmemFree(again), 0);
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), mapped);  // the device is idle: at once
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions("isolation"))),
            "");
}

/// A program that frees its last block may map nothing again for long.
TEST(CudaHostWaits, WhatWasFreedUnderAKernelGoesByTheNextCollectiveCall) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  const auto mapped = fake_cuda::MappedBytes();
                  void* block = ShmemMalloc(2 << 20);
                  void* stream = fake_cuda::MakeStream();
                  fake_cuda::Block(stream);
                  fake_cuda::Post(stream);
                  PE_CHECK_EQ(ShmemFree(block), 0);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK(fake_cuda::MappedBytes() > mapped);
                  fake_cuda::Release(stream);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(fake_cuda::MappedBytes(), mapped);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions("isolation"))),
            "");
}

/// What was freed under a kernel is still mapped when the device has no more.
TEST(CudaHostWaits, MemoryThatIsShortWaitsForWhatWasFreed) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  void* block = ShmemMalloc(2 << 20);
                  void* other = ShmemMalloc(2 << 20);
                  fake_cuda::LimitMemory(fake_cuda::MappedBytes());
                  PE_CHECK(ShmemMalloc(2 << 20) == nullptr);
                  PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kOutOfMemory));
                  void* stream = fake_cuda::MakeStream();
                  fake_cuda::Block(stream);
                  fake_cuda::Post(stream);
                  PE_CHECK_EQ(ShmemFree(block), 0);
                  ExpectWaits([] { return ShmemMalloc(2 << 20) == nullptr ? 1 : 0; },
                              [&] { fake_cuda::Release(stream); });
                  PE_CHECK_EQ(ShmemFree(other), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions("isolation"))),
            "");
}

TEST(CudaHostWaits, TheTimeOfAWaitCountsOnceForAllThatWasFreed) {
  auto options = CudaOptions("isolation");
  options.environment.emplace_back("MORI_SHMEM_TIMEOUT", "0.2");
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  std::vector<void*> blocks(8);
                  for (void*& block : blocks) block = ShmemMalloc(2 << 20);
                  fake_cuda::LimitMemory(fake_cuda::MappedBytes());
                  void* stream = fake_cuda::MakeStream();
                  fake_cuda::Block(stream);
                  fake_cuda::Post(stream);
                  for (void* block : blocks) PE_CHECK_EQ(ShmemFree(block), 0);
                  const auto before = fake_cuda::Looks();
                  PE_CHECK(ShmemMalloc(2 << 20) == nullptr);
                  PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(ErrorCode::kTimeout));
                  // A wait that is given up has looked a thousand times at least.
                  PE_CHECK(fake_cuda::Looks() - before < 5000);
                  fake_cuda::Release(stream);
                  PE_CHECK(ShmemMalloc(2 << 20) != nullptr);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                options)),
            "");
}

TEST(CudaHostWaits, WhatDoesNotReachTheDeviceIsAnError) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  std::uint64_t* words = testing::Words(2);
                  fake_cuda::FailPushes(true);
                  PE_CHECK_EQ(ShmemP(words, std::uint64_t{1}, 0),
                              static_cast<int>(ErrorCode::kSystem));
                  PE_CHECK(std::strstr(ShmemLastError(), "make CUDA device 0 current") != nullptr);
                  PE_CHECK(ShmemPutMemOnStream(words, words + 1, 8, 0, nullptr) != 0);
                  fake_cuda::FailPushes(false);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

}  // namespace
}  // namespace mori::shmem
