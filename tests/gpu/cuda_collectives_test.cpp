// The collectives of the device API in kernels, on a GPU, at every scope.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"
#include "support/collective_data.hpp"

namespace mori::shmem {
namespace {

using testing::Bytes;
using testing::Exchanged;
using testing::Gathered;
using testing::GpuPe;
using testing::kReduceOps;
using testing::kScopes;
using testing::Pe;
using testing::Scope;
using testing::Sent;

class CudaCollectives : public testing::CudaKernelPes {};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaCollectives,
                         ::testing::ValuesIn(testing::WithEachGpu(testing::CudaShapes({1, 2, 3,
                                                                                       4}))),
                         testing::NameOfShape);

/// Runs collectives one after another, each from a fresh source to a fresh destination.
class ByteCollectives {
 public:
  static constexpr std::size_t kMost = 100'003;
  static constexpr std::uint8_t kUntouched = 0xee;

  ByteCollectives(const Pe& pe, GpuPe* gpu)
      : pe_(pe),
        gpu_(*gpu),
        room_(kMost * static_cast<std::size_t>(pe.size) + 1),
        source_(gpu->Zeroed<std::uint8_t>(room_)),
        dest_(gpu->Zeroed<std::uint8_t>(room_)) {}

  /// `kernel` sends `sent` bytes of each PE; `expected` is to be in front of what nobody wrote to.
  template <typename... Arguments>
  void Run(const std::string& kernel, const Scope& scope, const Bytes& sent, const Bytes& expected,
           Arguments... arguments) {
    gpu_.Write(source_, sent.empty() ? Bytes(1) : sent);
    gpu_.Write(dest_, Bytes(room_, kUntouched));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    gpu_.cuda.Launch(fmt::format("{}_{}", kernel, scope.name), 1, scope.threads, dest_, source_,
                     arguments...);
    // No barrier: the kernel returns when everything is here.
    Bytes wanted = expected;
    wanted.resize(room_, kUntouched);
    if (gpu_.Read(dest_, room_) != wanted)
      throw testing::PeFailure(fmt::format("{} of {} bytes by a {} brought something else", kernel,
                                           sent.size(), scope.name));
  }

  void Broadcast(const Scope& scope, std::size_t bytes, int root) {
    const int now = ++count_;
    Run("broadcast", scope, Sent(pe_.rank, now, bytes), Sent(root, now, bytes), bytes, root);
  }
  void FCollect(const Scope& scope, std::size_t bytes) {
    const int now = ++count_;
    Run("fcollect", scope, Sent(pe_.rank, now, bytes), Gathered(pe_.size, now, bytes), bytes);
  }
  void AllToAll(const Scope& scope, std::size_t bytes) {
    const int now = ++count_;
    Run("alltoall", scope, Sent(pe_.rank, now, bytes * static_cast<std::size_t>(pe_.size)),
        Exchanged(pe_.rank, pe_.size, now, bytes), bytes);
  }

 private:
  const Pe& pe_;
  GpuPe& gpu_;
  std::size_t room_;
  std::uint8_t* source_;
  std::uint8_t* dest_;
  int count_ = 0;
};

TEST_P(CudaCollectives, EveryByteComesToEveryPeAndNoneBeside) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "collectives");
              ByteCollectives collectives(pe, &gpu);
              for (const std::size_t bytes :
                   {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(pe.size) - 1,
                    std::size_t{1000}, ByteCollectives::kMost}) {
                for (const Scope& scope : kScopes) {
                  for (int root = 0; root < pe.size; ++root)
                    collectives.Broadcast(scope, bytes, root);
                  collectives.FCollect(scope, bytes);
                  collectives.AllToAll(scope, bytes);
                }
              }
              gpu.End();
            }),
            "");
}

TEST_P(CudaCollectives, ABroadcastFromItsOwnSourceLeavesItThere) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "collectives");
              constexpr std::size_t kBytes = 5000;
              auto* block = gpu.Zeroed<std::uint8_t>(kBytes);
              for (const Scope& scope : kScopes) {
                gpu.Write(block, Sent(pe.rank, 1, kBytes));
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
                gpu.cuda.Launch(fmt::format("broadcast_{}", scope.name), 1, scope.threads, block,
                                block, kBytes, pe.size - 1);
                PE_CHECK(gpu.Read(block, kBytes) == Sent(pe.size - 1, 1, kBytes));
                PE_CHECK_EQ(ShmemBarrierAll(), 0);
              }
              gpu.End();
            }),
            "");
}

/// Every operation, scope and count, from another buffer and in place.
template <typename T>
void CheckReductions(const Pe& pe, GpuPe* gpu, const std::string& type) {
  constexpr std::size_t kMost = 100'003;
  T* source = gpu->Zeroed<T>(kMost + 1);
  T* dest = gpu->Zeroed<T>(kMost + 1);
  unsigned seed = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(pe.size) - 1, std::size_t{1000},
        kMost}) {
    for (const auto& [op, op_name] : kReduceOps) {
      ++seed;
      const T untouched = testing::ElementOf<T>(pe.rank, count, seed);
      const auto mine = testing::ElementsOf<T>(pe.rank, count + 1, seed);
      auto expected = testing::CombinedElements<T>(op, pe.size, count, seed);
      expected.push_back(untouched);
      for (const Scope& scope : kScopes) {
        for (const bool in_place : {false, true}) {
          gpu->Write(dest, in_place ? mine : std::vector<T>(count + 1, untouched));
          gpu->Write(source, mine);
          PE_CHECK_EQ(ShmemBarrierAll(), 0);
          gpu->cuda.Launch(fmt::format("{}_{}_{}", op_name, type, scope.name), 1, scope.threads,
                           dest, in_place ? dest : source, count);
          const bool is_right = testing::SameBits(gpu->Read(dest, count + 1), expected) &&
                                testing::SameBits(gpu->Read(source, count + 1), mine);
          if (!is_right)
            throw testing::PeFailure(fmt::format("{} of {} {} by a {}{} is wrong", op_name, count,
                                                 type, scope.name, in_place ? " in place" : ""));
        }
      }
    }
  }
}

// The same bits on all PEs, which are those of combining in the order of PEs.
TEST_P(CudaCollectives, IntegersCombineExactly) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "collectives");
              CheckReductions<std::int32_t>(pe, &gpu, "int32");
              CheckReductions<std::uint64_t>(pe, &gpu, "uint64");
              gpu.End();
            }),
            "");
}
TEST_P(CudaCollectives, FloatsCombineInTheOrderOfPesToTheBit) {
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "collectives");
              CheckReductions<float>(pe, &gpu, "float");
              CheckReductions<double>(pe, &gpu, "double");
              gpu.End();
            }),
            "");
}

// A source written to too early, a destination not complete on return, or an epoch lost would show
// as a wrong word, or as a deadline.
TEST_P(CudaCollectives, TwoHundredOfEachBackToBack) {
  struct Buffers {
    std::uint64_t* source;
    std::uint64_t* broadcast;
    std::uint64_t* gathered;
    std::uint64_t* exchanged;
    std::uint64_t* reduced;
  };
  EXPECT_EQ(Run([](const Pe& pe) {
              GpuPe gpu(pe, "collectives");
              const auto n_pes = static_cast<std::size_t>(pe.size);
              constexpr std::size_t kWords = 333;
              const Buffers buffers = {
                  gpu.Zeroed<std::uint64_t>(kWords * n_pes), gpu.Zeroed<std::uint64_t>(kWords),
                  gpu.Zeroed<std::uint64_t>(kWords * n_pes),
                  gpu.Zeroed<std::uint64_t>(kWords * n_pes), gpu.Zeroed<std::uint64_t>(kWords)};
              for (const Scope& scope : kScopes) {
                gpu.cuda.Launch(fmt::format("rounds_{}", scope.name), 1, scope.threads, buffers,
                                kWords, 200, gpu.errors);
                gpu.ExpectNoErrors();
              }
              gpu.End();
            }),
            "");
}

void CheckMeetings(const Pe& pe, int is_sync) {
  GpuPe gpu(pe, "collectives");
  constexpr std::size_t kWords = 100;
  auto* source = gpu.Zeroed<std::uint64_t>(kWords);
  auto* dest = gpu.Zeroed<std::uint64_t>(kWords * static_cast<std::size_t>(pe.size));
  for (const Scope& scope : kScopes) {
    gpu.cuda.Launch(fmt::format("meetings_{}", scope.name), 1, scope.threads, is_sync, source, dest,
                    kWords, 1000, gpu.errors);
    gpu.ExpectNoErrors();
  }
  gpu.End();
}
// That nobody leaves a barrier before all have come. That it completes what was put before is seen
// by the litmus tests alone: with the fence taken out, this one passes on one GPU.
TEST_P(CudaCollectives, NobodyLeavesABarrierOfAKernelBeforeAllHaveCome) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMeetings(pe, 0); }), "");
}
TEST_P(CudaCollectives, AfterASyncWhatOthersHadCompletedIsThere) {
  EXPECT_EQ(Run([](const Pe& pe) { CheckMeetings(pe, 1); }), "");
}

}  // namespace
}  // namespace mori::shmem
