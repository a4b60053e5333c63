// PEs of the CUDA backend on several nodes: kernels reach those of other nodes by the ring and its
// proxy, and a device's memory goes over the network. The driver is that of the tests, and kernels
// are threads of the host with the state that the library has published.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <numeric>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_host/cuda_pe.hpp"
#include "cuda_host/library_kernels.hpp"
#include "mori/shmem/shmem_device_api.hpp"
#include "mori/shmem/stream_ops.hpp"
#include "support/stream_bodies.hpp"

namespace mori::shmem {
namespace {

using device::u64;
using testing::CudaOptions;
using testing::Failures;
using testing::Left;
using testing::Options;
using testing::Pe;
using testing::Right;

/// How PEs lie on nodes, and how the heap has its memory.
struct Placement {
  const char* name;
  std::vector<std::string> nodes;
  const char* mode = "static";
  bool disables_p2p = false;
  const char* sharing = "";  ///< MORI_SHMEM_GPU_SHARING
};
void PrintTo(const Placement& placement, std::ostream* out) { *out << placement.name; }

Options OptionsOf(const Placement& placement) {
  Options options = CudaOptions(placement.mode);
  options.environment.emplace_back("MORI_SHMEM_HEAP_SIZE", "32M");
  options.environment.emplace_back("MORI_SHMEM_VMM_CHUNK_SIZE", "2M");
  options.environment.emplace_back("MORI_SHMEM_GPU_SHARING", placement.sharing);
  options.environment.emplace_back("MORI_DISABLE_P2P", placement.disables_p2p ? "1" : "");
  return options;
}

/// Of zeros, on all PEs.
u64* Words(std::size_t count) {
  auto* words = static_cast<u64*>(ShmemMalloc(count * sizeof(u64)));
  PE_CHECK(words != nullptr);
  std::memset(words, 0, count * sizeof(u64));
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  return words;
}

/// A PE on its node, with a module whose state is published.
class NodePe {
 public:
  NodePe(const Pe& pe, const std::vector<std::string>& nodes) : nodes_(nodes) {
    ::setenv("MORI_NODE_ID", nodes[static_cast<std::size_t>(pe.rank)].c_str(), 1);
    pe.Init();
    state_ = testing::StateOfPe();
  }
  /// Of as many threads as one; returns when they have ended.
  void Launch(int threads, const std::function<void(int thread)>& body) const {
    std::vector<std::thread> all;
    std::vector<std::exception_ptr> failed(static_cast<std::size_t>(threads));
    for (int n = 0; n < threads; ++n) {
      all.emplace_back([&, n] {
        globalGpuStates = *state_;
        try {
          body(n);
        } catch (...) {
          failed[static_cast<std::size_t>(n)] = std::current_exception();
        }
      });
    }
    for (std::thread& each : all) each.join();
    for (const std::exception_ptr& each : failed) {
      if (each) std::rethrow_exception(each);
    }
  }
  void Launch(const std::function<void()>& body) const {
    Launch(1, [&](int) { body(); });
  }
  const device::DeviceContext& state() const { return *state_; }
  bool IsRemote(int pe) const {
    return nodes_[static_cast<std::size_t>(pe)] != nodes_[static_cast<std::size_t>(ShmemMyPe())];
  }

 private:
  std::vector<std::string> nodes_;
  const device::DeviceContext* state_ = nullptr;
};

class CudaHostNodes : public ::testing::TestWithParam<Placement> {
 protected:
  using Body = std::function<void(const Pe& pe, NodePe& node)>;
  static void RunAll(const Body& body) {
    const Placement& placement = GetParam();
    const auto on_its_node = [&](const Pe& pe) {
      NodePe node(pe, placement.nodes);
      body(pe, node);
      PE_CHECK_EQ(ShmemFinalize(), 0);
    };
    EXPECT_EQ(Failures(RunProcesses(static_cast<int>(placement.nodes.size()), on_its_node,
                                    OptionsOf(placement))),
              "");
  }
};
INSTANTIATE_TEST_SUITE_P(Placements, CudaHostNodes,
                         ::testing::Values(Placement{"OneEach", {"a", "b"}},
                                           Placement{"Scattered", {"a", "b", "a", "b", "a"}},
                                           Placement{"Growing", {"a", "b", "a"}, "vmm"}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(CudaHostNodes, AKernelPutsToAnotherNode) {
  RunAll([](const Pe& pe, NodePe& node) {
    u64* words = Words(4);
    node.Launch([&] {
      PE_CHECK((node.state().flags & device::kHasRemotePes) != 0);
      device::ShmemP(words, u64{100} + static_cast<u64>(pe.rank), Right(pe));
      device::ShmemQuiet();
    });
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(words[0], 100u + static_cast<unsigned>(Left(pe)));
  });
}

u64 Mark(int pe, u64 n) { return 1'000'000 * static_cast<u64>(pe + 1) + n; }

/// Sizes on both sides of what a message, a buffer of the host and a piece of the heap hold.
TEST_P(CudaHostNodes, PutsAndGetsOfKernelsBringEverySize) {
  RunAll([](const Pe& pe, NodePe& node) {
    for (const std::size_t bytes : {1ul, 7ul, 64ul, 4096ul, 65'537ul, 300'001ul, 4'500'001ul}) {
      auto* block = static_cast<unsigned char*>(ShmemMalloc(3 * bytes + 16));
      PE_CHECK(block != nullptr);
      unsigned char* const to = block + 3;  // of no alignment
      unsigned char* const mine = to + bytes;
      unsigned char* const got = mine + bytes;
      const auto byte_of = [&](int from, std::size_t i) {
        return static_cast<unsigned char>(31 * from + 7 * static_cast<int>(i % 251) +
                                          static_cast<int>(bytes) + 1);
      };
      for (std::size_t i = 0; i < bytes; ++i) mine[i] = byte_of(pe.rank, i);
      std::memset(to, 0, bytes);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      node.Launch([&] {
        device::ShmemPutMem(to, mine, bytes, Right(pe));
        device::ShmemBarrierAll();
        device::ShmemGetMem(got, mine, bytes, Left(pe));
        fake_cuda::SeeCopies();
      });
      for (std::size_t i = 0; i < bytes; ++i) {
        PE_CHECK_EQ(to[i], byte_of(Left(pe), i));
        PE_CHECK_EQ(got[i], byte_of(Left(pe), i));
      }
      node.Launch([&] {
        std::memset(to, 0, bytes);
        std::memset(got, 0, bytes);
        device::ShmemBarrierAll();
        device::ShmemPutMemNbi(to, mine, bytes, Left(pe));
        device::ShmemGetMemNbi(got, mine, bytes, Right(pe));
        device::ShmemQuiet();
        device::ShmemBarrierAll();
        fake_cuda::SeeCopies();
      });
      for (std::size_t i = 0; i < bytes; ++i) {
        PE_CHECK_EQ(to[i], byte_of(Right(pe), i));
        PE_CHECK_EQ(got[i], byte_of(Right(pe), i));
      }
      PE_CHECK_EQ(ShmemFree(block), 0);
    }
  });
}

/// And the host's calls on the same memory.
TEST_P(CudaHostNodes, PutsAndGetsOfTheHostReachOtherNodes) {
  RunAll([](const Pe& pe, NodePe&) {
    for (const std::size_t bytes : {8ul, 4096ul, 1'000'000ul}) {
      auto* block = static_cast<unsigned char*>(ShmemMalloc(bytes));
      PE_CHECK(block != nullptr);
      std::vector<unsigned char> mine(bytes, static_cast<unsigned char>(pe.rank + 1)), got(bytes);
      PE_CHECK_EQ(ShmemPutMem(block, mine.data(), bytes, Right(pe)), 0);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      const auto is_of = [&](const unsigned char* at, int from) {
        return std::all_of(at, at + bytes, [&](int byte) { return byte == from + 1; });
      };
      PE_CHECK(is_of(block, Left(pe)));
      PE_CHECK_EQ(ShmemGetMem(got.data(), block, bytes, Right(pe)), 0);
      PE_CHECK(is_of(got.data(), pe.rank));
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
    u64* words = Words(2);
    std::uint64_t value = 5;
    auto* const signal = reinterpret_cast<std::uint64_t*>(words + 1);
    PE_CHECK_EQ(ShmemPutMemSignal(words, &value, 8, signal, 1, SignalOp::kAdd, Right(pe)), 0);
    PE_CHECK_EQ(ShmemSignalWaitUntil(signal, Cmp::kEq, 1), 0);
    PE_CHECK_EQ(words[0], 5u);
  });
}

/// From kernels of several threads and the host, near and far, all at once.
template <typename T>
void CountTogether(const Pe& pe, const NodePe& node) {
  constexpr int kThreads = 3;
  constexpr T kEach = 60;
  T* words = reinterpret_cast<T*>(Words(4));
  std::thread host([&] {
    for (T n = 0; n < kEach; ++n)
      ShmemAtomicAdd(reinterpret_cast<std::make_signed_t<T>*>(words), std::make_signed_t<T>{1},
                     (pe.rank + static_cast<int>(n)) % pe.size);
  });
  node.Launch(kThreads, [&](int) {
    for (T n = 0; n < kEach; ++n) {
      const int to = (pe.rank + static_cast<int>(n)) % pe.size;
      device::ShmemAtomicAdd(&words[0], T{1}, to);
      device::ShmemAtomicFetchAdd(&words[1], T{3}, to);
    }
  });
  host.join();
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  T ones = 0, threes = 0;
  node.Launch([&] {
    for (int from = 0; from < pe.size; ++from) {
      ones += device::ShmemAtomicFetch(&words[0], from);
      threes += device::ShmemG(&words[1], from);
    }
  });
  const T all = kEach * static_cast<T>(pe.size);
  PE_CHECK_EQ(ones, static_cast<T>((kThreads + 1) * all));
  PE_CHECK_EQ(threes, static_cast<T>(3 * kThreads * all));
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  node.Launch([&] {
    const T me = static_cast<T>(pe.rank + 1);
    const int to = Right(pe);
    PE_CHECK_EQ(device::ShmemAtomicSwap(&words[2], me, to), T{0});
    PE_CHECK_EQ(device::ShmemAtomicCompareSwap(&words[2], T{0}, T{99}, to), me);
    PE_CHECK_EQ(device::ShmemAtomicCompareSwap(&words[2], me, static_cast<T>(me + 8), to), me);
    PE_CHECK_EQ(device::ShmemAtomicFetchOr(&words[2], T{64}, to), static_cast<T>(me + 8));
    device::ShmemAtomicSet(&words[3], me, to);
    device::ShmemQuiet();
    PE_CHECK_EQ(device::ShmemAtomicFetch(&words[3], to), me);
  });
}
TEST_P(CudaHostNodes, AtomicsAreExactWhoeverTakesPart) {
  RunAll([](const Pe& pe, NodePe& node) { CountTogether<u64>(pe, node); });
}
TEST_P(CudaHostNodes, AtomicsOf32BitsAreExactWhoeverTakesPart) {
  RunAll([](const Pe& pe, NodePe& node) { CountTogether<device::u32>(pe, node); });
}

/// Other ways to have a network, or memory.
class CudaHostNodesOtherwise : public CudaHostNodes {};
INSTANTIATE_TEST_SUITE_P(Placements, CudaHostNodesOtherwise,
                         ::testing::Values(Placement{"Isolated", {"a", "b", "b"}, "isolation"},
                                           Placement{"OneNode", {"a", "a"}, "static", true},
                                           Placement{"Ipc", {"a", "b"}, "static", false, "ipc"}),
                         [](const auto& parameter) { return parameter.param.name; });
TEST_P(CudaHostNodesOtherwise, AtomicsAreExactWhoeverTakesPart) {
  RunAll([](const Pe& pe, NodePe& node) { CountTogether<u64>(pe, node); });
}

TEST_P(CudaHostNodes, ASignalOfAKernelComesBehindItsData) {
  RunAll([](const Pe& pe, NodePe& node) {
    constexpr u64 kWords = 40'000;  // more than one buffer of the host
    u64* data = Words(kWords + 1);
    u64* mine = Words(kWords);
    u64* signal = Words(2);
    node.Launch([&] {
      for (u64 round = 1; round <= 8; ++round) {
        const u64 words = round % 2 == 0 ? kWords : 9;
        std::iota(mine, mine + words, Mark(pe.rank, round));
        if (round % 3 == 0) {
          device::ShmemPutMemNbi(data, mine, words * 8, Right(pe));
          device::ShmemSignalOp(signal, round, device::Signal::kSet, Right(pe));
        } else {
          device::ShmemPutMemSignal(data, mine, words * 8, signal, round, device::Signal::kSet,
                                    Right(pe));
        }
        device::ShmemSignalWaitUntil(signal, device::Compare::kEq, round);
        for (u64 i = 0; i < words; ++i) PE_CHECK_EQ(data[i], Mark(Left(pe), round) + i);
        device::ShmemP(data + kWords, round, Right(pe));
        device::ShmemFence();
        device::ShmemAtomicAdd(signal + 1, u64{1}, Right(pe));
        device::ShmemWaitUntil(signal + 1, device::Compare::kGe, round);
        PE_CHECK_EQ(data[kWords], round);
        device::ShmemBarrierAll();
      }
    });
  });
}

TEST_P(CudaHostNodes, CollectivesOfKernels) {
  RunAll([](const Pe& pe, NodePe& node) {
    const u64 n_pes = static_cast<u64>(pe.size);
    constexpr u64 kEach = 700;
    u64* source = Words(kEach * n_pes);
    u64* dest = Words(kEach * n_pes);
    node.Launch([&] {
      const auto begin = [&] {
        device::ShmemSyncAll();  // all have looked at what came before
        std::iota(source, source + kEach * n_pes, Mark(pe.rank, 0));
        device::ShmemBarrierAll();
      };
      begin();
      device::ShmemBroadcastMem(dest, source, 8 * kEach, 1);
      fake_cuda::SeeCopies();
      for (u64 i = 0; i < kEach; ++i) PE_CHECK_EQ(dest[i], Mark(1, i));
      begin();
      device::ShmemFCollectMem(dest, source, 8 * kEach);
      fake_cuda::SeeCopies();
      for (u64 i = 0; i < kEach * n_pes; ++i)
        PE_CHECK_EQ(dest[i], Mark(static_cast<int>(i / kEach), i % kEach));
      begin();
      device::ShmemAllToAllMem(dest, source, 8 * kEach);
      fake_cuda::SeeCopies();
      for (u64 i = 0; i < kEach * n_pes; ++i) {
        PE_CHECK_EQ(dest[i], Mark(static_cast<int>(i / kEach),
                                  i % kEach + kEach * static_cast<u64>(pe.rank)));
      }
      begin();
      u64 all = 0;
      for (int from = 0; from < pe.size; ++from) all += Mark(from, 0);
      device::ShmemSumReduce(dest, source, kEach);
      fake_cuda::SeeCopies();
      for (u64 i = 0; i < kEach; ++i) PE_CHECK_EQ(dest[i], all + n_pes * i);
      begin();
      device::ShmemMaxReduce(source, source, kEach);  // in place
      fake_cuda::SeeCopies();
      for (u64 i = 0; i < kEach; ++i) PE_CHECK_EQ(source[i], Mark(pe.size - 1, i));
    });
  });
}

/// What fits into memory for it is one part of several.
TEST(CudaHostRing, AReductionOfMoreThanItsMemoryHolds) {
  EXPECT_EQ(Failures(RunProcesses(
                2,
                [](const Pe& pe) {
                  NodePe node(pe, {"a", "b"});
                  constexpr u64 kCount = 100'003;
                  u64* source = Words(kCount);
                  u64* dest = Words(kCount);
                  std::iota(source, source + kCount, Mark(pe.rank, 0));
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  node.Launch([&] { device::ShmemSumReduce(dest, source, kCount); });
                  for (u64 i = 0; i < kCount; ++i) PE_CHECK_EQ(dest[i], Mark(0, i) + Mark(1, i));
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

/// Without a quiet of the kernel.
TEST_P(CudaHostNodes, ABarrierOfTheHostCompletesWhatIsOnTheRing) {
  RunAll([](const Pe& pe, NodePe& node) {
    u64* words = Words(2);
    for (u64 round = 1; round <= 5; ++round) {
      node.Launch(2, [&](int) {
        for (int n = 0; n < 300; ++n) device::ShmemAtomicAdd(words, u64{1}, Right(pe));
      });
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
      PE_CHECK_EQ(words[0], 600 * round);
      PE_CHECK_EQ(ShmemBarrierAll(), 0);
    }
  });
}

TEST_P(CudaHostNodes, FinalizeCarriesOutWhatIsOnTheRing) {
  RunAll([](const Pe& pe, NodePe& node) {
    u64* words = Words(2);
    node.Launch([&] {
      for (u64 n = 1; n <= 500; ++n) device::ShmemAtomicAdd(words, u64{1}, Right(pe));
    });
    if (pe.rank % 2 == 0) return;  // to finalize
    auto* const word = reinterpret_cast<std::uint64_t*>(words);
    PE_CHECK_EQ(ShmemWaitUntil(word, Cmp::kEq, std::uint64_t{500}), 0);
  });
}

/// Kernels put to blocks that are there, while others come and go.
TEST_P(CudaHostNodes, TheHeapGrowsWhileTheRingIsInUse) {
  RunAll([](const Pe& pe, NodePe& node) {
    u64* words = Words(4);
    std::atomic<bool> is_over{false};
    std::thread kernel([&] {
      node.Launch([&] {
        for (u64 n = 1; !is_over || n <= 50; ++n) {
          device::ShmemP(words, n, Right(pe));
          PE_CHECK_EQ(device::ShmemAtomicFetchAdd(words + 1, u64{1}, Right(pe)), n - 1);
        }
      });
    });
    for (int round = 0; round < 4; ++round) {
      void* block = ShmemMalloc(3'000'000);
      PE_CHECK(block != nullptr);
      PE_CHECK_EQ(ShmemFree(block), 0);
    }
    u64* late = Words(500'000);
    is_over = true;
    kernel.join();
    node.Launch([&] {
      device::ShmemP(late + 499'999, Mark(pe.rank, 0), Right(pe));
      device::ShmemBarrierAll();
      fake_cuda::SeeCopies();
      PE_CHECK_EQ(late[499'999], Mark(Left(pe), 0));
    });
  });
}

// ---- on a stream, where the library's kernels are run by the thread that launches them

class NodeStreamPe final : public testing::StreamPe {
 public:
  explicit NodeStreamPe(const Pe& of) : StreamPe(of) {}

  std::vector<void*> Streams() const override { return {nullptr, stream_}; }
  void Sync(void*) override {}
  std::vector<void*> LocalsOfEachKind(std::size_t bytes) override { return {LocalBytes(bytes)}; }
  void* LocalBytes(std::size_t bytes) override {
    return locals_.emplace_back((bytes + 7) / 8).data();
  }
  void Copy(void* to, const void* from, std::size_t bytes) override {
    fake_cuda::SeeCopies();
    std::memcpy(to, from, bytes);
  }
  void Fill(std::uint64_t* words, std::uint64_t count, std::uint64_t value) override {
    fake_cuda::SeeCopies();
    std::iota(words, words + count, value);
  }
  void Check(const std::uint64_t* words, std::uint64_t count, std::uint64_t value) override {
    fake_cuda::SeeCopies();
    for (std::uint64_t i = 0; i < count; ++i) PE_CHECK_EQ(words[i], value + i);
  }
  void End() override {}  // whoever made the PE's world

 private:
  void* stream_ = fake_cuda::MakeStream();
  std::deque<std::vector<std::uint64_t>> locals_;
};

class CudaHostNodeStreams : public CudaHostNodes {
 protected:
  static void RunOn(const testing::StreamBody& body) {
    RunAll([&](const Pe& pe, NodePe&) {
      testing::RunLibraryKernels();
      NodeStreamPe p(pe);
      body(p);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Placements, CudaHostNodeStreams,
                         ::testing::Values(Placement{"OneEach", {"a", "b"}},
                                           Placement{"Scattered", {"a", "b", "a", "b", "a"}},
                                           Placement{"Growing", {"a", "b", "a"}, "vmm"}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(CudaHostNodeStreams, PutsAndGetsOfEverySizeArrive) {
  RunOn([](testing::StreamPe& p) { testing::CheckPutsAndGets(p, 300'001); });
}
TEST_P(CudaHostNodeStreams, AfterTheWaitForItsSignalThePutIsThere) {
  RunOn([](testing::StreamPe& p) { testing::CheckSignalledPuts(p, 500, 40); });
}
TEST_P(CudaHostNodeStreams, AfterABarrierOrASyncWhatAllHavePutIsThere) {
  RunOn([](testing::StreamPe& p) {
    testing::CheckPutsToAll(p, 1, 20, [](std::uint64_t round) {
      if (round % 2 == 1) return ShmemBarrierAllOnStream(nullptr);
      PE_CHECK_EQ(ShmemQuietOnStream(nullptr), 0);
      return ShmemSyncAllOnStream(nullptr);
    });
  });
}
TEST_P(CudaHostNodeStreams, CollectivesBringEveryByteToEveryPeAndNoneBeside) {
  RunOn([](testing::StreamPe& p) { testing::CheckByteCollectives(p, 100'003); });
}
TEST_P(CudaHostNodeStreams, ABroadcastFromItsOwnSourceLeavesItThere) {
  RunOn(testing::CheckBroadcastInPlace);
}
TEST_P(CudaHostNodeStreams, ReductionsCombineInTheOrderOfPesToTheBit) {
  RunOn([](testing::StreamPe& p) { testing::CheckReductions(p, 160'028); });
}
TEST_P(CudaHostNodeStreams, CollectivesFollowOneAnother) {
  RunOn([](testing::StreamPe& p) { testing::CheckCollectivesInARow(p, 125, 10); });
}

// ---- what goes wrong

/// Of the two ends of a command that fails: the kernel that waits for it, and the host.
void ExpectFailure(ErrorCode code, const char* sentence) {
  PE_CHECK_EQ(ShmemQuiet(), static_cast<int>(code));
  PE_CHECK(std::strstr(ShmemLastError(), sentence) != nullptr);
  PE_CHECK_EQ(ShmemQuiet(), 0);  // it is told once
}

TEST(CudaHostRing, WhatNoKernelMayAskIsTheHostsNextError) {
  EXPECT_EQ(
      Failures(RunProcesses(
          2,
          [](const Pe& pe) {
            NodePe node(pe, {"a", "b"});
            u64* words = Words(2);
            node.Launch([&] {
              const u64 end = node.state().heap_bytes;
              PE_CHECK(device::RemoteCopy(device::RingOp::kPut, device::FaultCall::kPut, Right(pe),
                                          end - 8, reinterpret_cast<u64>(words), 16));
            });
            ExpectFailure(ErrorCode::kInvalidArgument, "leave the heap");
            node.Launch([&] {
              device::RemotePost(device::RingMemory::kSyncWords, Right(pe),
                                 sizeof(device::SyncWords), device::RingAtomic::kSet, 8, 1,
                                 device::FaultCall::kBarrier);
              device::RemoteQuiet(-1, device::FaultCall::kQuiet);
            });
            ExpectFailure(ErrorCode::kInvalidArgument, "by which kernels meet");
            node.Launch([&] {
              PE_CHECK(device::RemotePut(device::RingOp::kPut, pe.rank, words, words, 8));
            });
            ExpectFailure(ErrorCode::kInternal, "is reached by load and store");
            PE_CHECK_EQ(ShmemBarrierAll(), 0);
            PE_CHECK_EQ(ShmemFinalize(), 0);
          },
          CudaOptions())),
      "");
}

/// A kernel that waits for a PE of another node, and the host, learn of its loss; the others come
/// again as a smaller world.
TEST(CudaHostRing, ALostPeIsToldToKernelAndHostAndTheOthersStartAgain) {
  EXPECT_EQ(Failures(RunProcesses(
                3,
                [](const Pe& pe) {
                  {
                    NodePe node(pe, {"a", "b", "b"});
                    u64* words = Words(2);
                    if (pe.rank == 2) ::_exit(0);
                    node.Launch([&] {
                      PE_CHECK_EQ(device::ShmemSyncAllOrLost(), 3u);
                      if (!node.IsRemote(2)) return;
                      while (!device::RemotePut(device::RingOp::kPut, 2, words, words, 8) &&
                             !device::RemoteQuiet(2, device::FaultCall::kQuiet)) {
                      }
                    });
                    if (node.IsRemote(2)) {
                      PE_CHECK_EQ(ShmemBarrierAll(), static_cast<int>(ErrorCode::kPeerLost));
                      PE_CHECK(std::strstr(ShmemLastError(), "PE 2 ") != nullptr);
                    }
                    PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(ErrorCode::kPeerLost));
                  }
                  const Pe again{pe.rank, 2, pe.FreshId(1), pe.blackboard};
                  NodePe node(again, {"a", "b"});
                  u64* words = Words(2);
                  node.Launch([&] {
                    device::ShmemP(words, Mark(pe.rank, 1), Right(again));
                    device::ShmemBarrierAll();
                    PE_CHECK_EQ(words[0], Mark(Left(again), 1));
                  });
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

}  // namespace
}  // namespace mori::shmem
