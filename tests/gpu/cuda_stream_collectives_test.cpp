// Collectives on a stream by every way that the library has for them: small messages, blocks that
// meet, a grid that ends with its last block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/gpu_pe.hpp"
#include "mori/shmem/stream_ops.hpp"
#include "support/collective_data.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Bytes;
using testing::CudaShape;
using testing::Exchanged;
using testing::Gathered;
using testing::Pe;
using testing::Sent;

class CudaStreamCollectives : public testing::CudaPes {
 protected:
  void SetUp() override {
    CudaPes::SetUp();
    if (!IsSkipped() && GetParam().as == As::kProcesses &&
        GetParam().size > std::max(testing::GpuCount(), 1) &&
        std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr)
      GTEST_SKIP() << "kernels of processes that share a GPU and wait for each other need MPS";
  }
};
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaStreamCollectives,
    ::testing::ValuesIn(testing::WithEachGpu(
        {CudaShape{"static", As::kProcesses, 1}, CudaShape{"static", As::kProcesses, 2},
         CudaShape{"static", As::kProcesses, 3}, CudaShape{"ipc", As::kThreads, 2},
         CudaShape{"static", As::kThreads, 2}, CudaShape{"static", As::kThreads, 3},
         CudaShape{"static", As::kProcesses, 4}, CudaShape{"static", As::kThreads, 8},
         CudaShape{"static", As::kThreads, 9}})),
    testing::NameOfShape);

/// Two buffers, and a stream to call collectives on.
class Room {
 public:
  static constexpr std::uint8_t kUntouched = 0xee;

  Room(const Pe& pe, std::size_t bytes)
      : pe_(pe),
        cuda_(pe),
        bytes_(bytes),
        source_(static_cast<std::uint8_t*>(ShmemMalloc(bytes))),
        dest_(static_cast<std::uint8_t*>(ShmemMalloc(bytes))) {
    PE_CHECK(source_ != nullptr && dest_ != nullptr);
  }

  /// The sent bytes at `source`, of all PEs; what comes is `expected`, and nothing beside it.
  template <typename Call>
  void Run(const std::string& what, const Bytes& sent, const Bytes& expected, std::size_t from,
           std::size_t to, Call call) {
    if (!sent.empty()) PE_CHECK_EQ(ShmemPutMem(source_ + from, sent.data(), sent.size(), Me()), 0);
    Bytes wanted(bytes_, kUntouched);
    PE_CHECK_EQ(ShmemPutMem(dest_, wanted.data(), bytes_, Me()), 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(call(dest_ + to, source_ + from, cuda_.stream()), 0);
    cuda_.Sync(cuda_.stream());
    std::copy(expected.begin(), expected.end(), wanted.begin() + static_cast<std::ptrdiff_t>(to));
    Bytes found(bytes_);
    PE_CHECK_EQ(ShmemGetMem(found.data(), dest_, bytes_, Me()), 0);
    if (found != wanted) throw testing::PeFailure(what + " brought something else");
  }

  int Me() const { return pe_.rank; }
  const testing::Cuda& cuda() const { return cuda_; }

 private:
  const Pe& pe_;
  testing::Cuda cuda_;
  std::size_t bytes_;
  std::uint8_t* source_;
  std::uint8_t* dest_;
};

/// Around every border between the ways, from and to every kind of address.
TEST_P(CudaStreamCollectives, EverySizeAndAlignmentArrives) {
  EXPECT_EQ(
      Run(GetParam().size,
          [](const Pe& pe) {
            pe.Init();
            constexpr std::size_t kMiB = 1 << 20;
            const auto size = static_cast<std::size_t>(pe.size);
            Room room(pe, size * (2 * kMiB + 100) + 64);
            const std::size_t small = (32 << 10) / std::max<std::size_t>(size - 1, 1);
            int round = 0;
            for (const std::size_t bytes :
                 {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{4}, std::size_t{5},
                  std::size_t{8}, std::size_t{2047}, std::size_t{2048}, std::size_t{2049}, small,
                  small + 1, std::size_t{16} << 10, (std::size_t{16} << 10) + 1,
                  std::size_t{100'003}, kMiB + 5, 2 * kMiB, 2 * kMiB + 1}) {
              if (bytes > kMiB && size > 4) continue;  // many buffers of that size
              for (const auto& [from, to] : std::vector<std::pair<std::size_t, std::size_t>>{
                       {0, 0}, {1, 0}, {0, 3}, {7, 6}, {4, 12}}) {
                if (bytes > 100'003 && from != to && from != 7) continue;
                const std::string what = fmt::format("{} bytes from {} to {}", bytes, from, to);
                const int root = ++round % pe.size;
                room.Run("a broadcast of " + what, Sent(pe.rank, round, bytes),
                         Sent(root, round, bytes), from, to, [&](void* d, void* s, void* stream) {
                           return ShmemBroadcastMemOnStream(d, s, bytes, root, stream);
                         });
                room.Run("an fcollect of " + what, Sent(pe.rank, round, bytes),
                         Gathered(pe.size, round, bytes), from, to,
                         [&](void* d, void* s, void* stream) {
                           return ShmemFCollectMemOnStream(d, s, bytes, stream);
                         });
                room.Run("an alltoall of " + what, Sent(pe.rank, round, size * bytes),
                         Exchanged(pe.rank, pe.size, round, bytes), from, to,
                         [&](void* d, void* s, void* stream) {
                           return ShmemAllToAllMemOnStream(d, s, bytes, stream);
                         });
              }
            }
            PE_CHECK_EQ(ShmemFinalize(), 0);
          }),
      "");
}

/// Sums of every size around the borders, elements that begin anywhere, in place and not.
template <typename T>
void CheckSums(const Pe& pe, const testing::Cuda& cuda) {
  constexpr std::size_t kMost = (std::size_t{5} << 20) / sizeof(T);
  auto* source = static_cast<T*>(ShmemMalloc((kMost + 4) * sizeof(T)));
  auto* dest = static_cast<T*>(ShmemMalloc((kMost + 4) * sizeof(T)));
  PE_CHECK(source != nullptr && dest != nullptr);
  unsigned seed = 0;
  for (const std::size_t bytes : {8, 4096, 16 << 10, (16 << 10) + 8, 70'000, 1 << 20, 5 << 20}) {
    for (const std::size_t skipped : {0, 1}) {
      const std::size_t count = bytes / sizeof(T);
      ++seed;
      const auto mine = testing::ElementsOf<T>(pe.rank, count, seed);
      auto expected = testing::CombinedElements<T>(ReduceOp::kSum, pe.size, count, seed);
      expected.push_back(T{7});
      for (const bool in_place : {false, true}) {
        T* from = in_place ? dest : source;
        const T behind = 7;
        PE_CHECK_EQ(ShmemPut(dest + skipped + count, &behind, 1, pe.rank), 0);
        PE_CHECK_EQ(ShmemPut(from + skipped, mine.data(), count, pe.rank), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemSumReduceOnStream(dest + skipped, from + skipped, count, cuda.stream()),
                    0);
        cuda.Sync(cuda.stream());
        std::vector<T> found(count + 1);
        PE_CHECK_EQ(ShmemGet(found.data(), dest + skipped, count + 1, pe.rank), 0);
        if (!testing::SameBits(found, expected))
          throw testing::PeFailure(fmt::format("a sum of {} bytes, {} skipped{}, is wrong", bytes,
                                               skipped, in_place ? ", in place" : ""));
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
    }
  }
  PE_CHECK_EQ(ShmemFree(dest), 0);
  PE_CHECK_EQ(ShmemFree(source), 0);
}
TEST_P(CudaStreamCollectives, SumsOfEverySizeAreTheSameToTheBit) {
  EXPECT_EQ(Run(GetParam().size,
                [](const Pe& pe) {
                  pe.Init();
                  // One for both: with more streams than the 32 that a device has connections for,
                  // some share one, and their kernels wait for each other.
                  const testing::Cuda cuda(pe);
                  CheckSums<float>(pe, cuda);
                  CheckSums<std::uint64_t>(pe, cuda);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                }),
            "");
}

/// Small messages are numbered, and inboxes emptied after 2^20 of them: PEs come past that in step,
/// with long and short messages before and behind.
TEST_P(CudaStreamCollectives, AMillionSmallMessagesAreNotMixedUp) {
  EXPECT_EQ(Run(GetParam().size,
                [](const Pe& pe) {
                  pe.Init();
                  const auto size = static_cast<std::size_t>(pe.size);
                  Room room(pe, size * (16 << 10));
                  auto* word = static_cast<std::int64_t*>(ShmemMalloc(16));
                  const auto few = [&](int from, int to) {
                    for (int round = from; round < to; ++round) {
                      const std::size_t bytes =
                          round % 3 == 0 ? (16 << 10) / size : static_cast<std::size_t>(round % 40);
                      room.Run(fmt::format("fcollect {}", round), Sent(pe.rank, round, bytes),
                               Gathered(pe.size, round, bytes), 0, 0,
                               [&](void* d, void* s, void* stream) {
                                 return ShmemFCollectMemOnStream(d, s, bytes, stream);
                               });
                    }
                  };
                  few(0, 50);
                  const std::int64_t one = 1;
                  PE_CHECK_EQ(ShmemPut(word, &one, 1, pe.rank), 0);
                  const int many = pe.size <= 4 ? (1 << 20) - 100 : 2000;
                  for (int i = 0; i < many; ++i) {
                    PE_CHECK_EQ(ShmemSumReduceOnStream(word + 1, word, 1, room.cuda().stream()), 0);
                    if (i % 1000 == 0) room.cuda().Sync(room.cuda().stream());
                  }
                  room.cuda().Sync(room.cuda().stream());
                  PE_CHECK_EQ(ShmemG(word + 1, pe.rank), static_cast<std::int64_t>(pe.size));
                  few(50, 200);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                }),
            "");
}

/// Tags come again and again, but never as what an emptied inbox holds: not where the number of the
/// exchange has 32 bits of zeros either.
TEST_P(CudaStreamCollectives, SmallMessagesPastAnyNumberAreNotMixedUp) {
  if (testing::KernelFolder().empty()) GTEST_SKIP() << "no nvcc to compile kernels with";
  EXPECT_EQ(Run(GetParam().size,
                [](const Pe& pe) {
                  pe.Init();
                  testing::Cuda cuda(pe);
                  PE_CHECK_EQ(ShmemModuleInit(cuda.Load("streams")), 0);
                  auto* words = static_cast<std::int64_t*>(ShmemMalloc(16));
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  cuda.Launch("set_exchanges", 1, 1, (std::uint64_t{1} << 32) - 8);
                  for (std::int64_t round = 1; round <= 16; ++round) {
                    PE_CHECK_EQ(ShmemPut(words, &round, 1, pe.rank), 0);
                    PE_CHECK_EQ(ShmemBarrierAll(), 0);
                    PE_CHECK_EQ(ShmemSumReduceOnStream(words + 1, words, 1, cuda.stream()), 0);
                    cuda.Sync(cuda.stream());
                    PE_CHECK_EQ(ShmemG(words + 1, pe.rank), round * pe.size);
                  }
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                }),
            "");
}

}  // namespace
}  // namespace mori::shmem
