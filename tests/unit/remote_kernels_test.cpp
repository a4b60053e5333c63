// Operations of kernels on PEs that load and store do not reach: PEs are threads of the host with
// the state, the ring and the proxy that a device would have, and a network over memory that
// reorders what its seam allows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "mori/shmem/shmem_device_api.hpp"
#include "shmem/proxy.hpp"
#include "support/memory_network.hpp"

namespace mori::shmem::device {
namespace {

using testing::MemoryNetwork;

constexpr u64 kWords = 1024;

/// The heap of each PE is memory of its own, at an address of its own.
struct KernelPe {
  alignas(64) u64 heap[kWords] = {};
  SyncWords sync{};
  std::shared_ptr<RingPages> pages = std::make_shared<RingPages>();
  u64 next = 0;
  u64 seen = 0;
  std::vector<u32> taken = std::vector<u32>(RingPages::kEntries);
  Ring ring{};
  DeviceTables tables{};
  std::vector<PeAddresses> pes;
  Faults faults{};
  DeviceContext context = kStateOfNobody;
  std::unique_ptr<RemoteTransport> transport;
  std::unique_ptr<Registration> registered_heap, registered_sync;
  std::unique_ptr<Proxy> proxy;
};

/// PEs of nodes of `per_node`, one after the other.
class KernelWorld {
 public:
  KernelWorld(int n_pes, int per_node) : per_node_(per_node), network_(OptionsFor(n_pes)) {
    for (int pe = 0; pe < n_pes; ++pe) pes_.push_back(std::make_unique<KernelPe>());
    for (int pe = 0; pe < n_pes; ++pe) Join(pe);
    for (int pe = 0; pe < n_pes; ++pe) Serve(pe);
  }
  int size() const { return static_cast<int>(pes_.size()); }
  KernelPe& pe(int number) { return *pes_[static_cast<std::size_t>(number)]; }

  /// `kernel(heap)` on every PE, which meet at its end.
  void Run(const std::function<void(u64* heap)>& kernel) {
    std::vector<std::thread> threads;
    for (auto& pe : pes_) {
      threads.emplace_back([&] {
        globalGpuStates = pe->context;
        kernel(pe->heap);
        ShmemBarrierAll();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& pe : pes_) EXPECT_TRUE(pe->proxy->TakeFailure().ok());
  }

 private:
  static MemoryNetwork::Options OptionsFor(int n_pes) {
    MemoryNetwork::Options options;
    options.n_pes = n_pes;
    return options;
  }
  bool IsNear(int a, int b) const { return a / per_node_ == b / per_node_; }
  void Join(int number) {
    KernelPe& mine = pe(number);
    RemoteParts parts;
    parts.self = number;
    parts.n_pes = size();
    mine.transport = network_.Join(std::move(parts));
    mine.registered_heap = std::move(*mine.transport->Register(mine.heap, sizeof mine.heap));
    mine.registered_sync = std::move(*mine.transport->Register(&mine.sync, sizeof mine.sync));
  }
  void Serve(int number) {
    KernelPe& mine = pe(number);
    Proxy::Parts parts;
    for (int other = 0; other < size(); ++other) {
      const bool is_near = IsNear(number, other);
      mine.pes.push_back({is_near ? reinterpret_cast<u64>(pe(other).heap) : 0,
                          is_near ? reinterpret_cast<u64>(&pe(other).sync) : 0});
      if (!is_near) parts.remote_pes.push_back(other);
    }
    mine.ring = {mine.pages->entries, &mine.pages->done, mine.pages->results,     &mine.next,
                 &mine.seen,          mine.taken.data(), RingPages::kEntries - 1, 0};
    mine.tables.header = {kContextMagic, kContextAbi, sizeof mine.tables};
    mine.tables.rings = &mine.ring;
    mine.tables.n_rings = 1;
    mine.context.header.magic = kContextMagic;
    mine.context.my_pe = static_cast<u32>(number);
    mine.context.n_pes = static_cast<u32>(size());
    mine.context.flags = kHasRemotePes;
    mine.context.heap_base = reinterpret_cast<u64>(mine.heap);
    mine.context.heap_bytes = sizeof mine.heap;
    mine.context.pes = mine.pes.data();
    mine.context.tables = &mine.tables;
    mine.context.faults = &mine.faults;
    std::ranges::copy(mine.pes, mine.context.inline_pes);
    parts.pages = mine.pages;
    parts.channel = &mine.transport->channel();
    parts.n_pes = size();
    parts.fault = &mine.faults.record;
    parts.locate = [this](RingMemory memory, std::uint64_t offset, std::uint64_t bytes,
                          int to) -> Result<RemotePieces::Stretch> {
      const bool is_heap = memory == RingMemory::kHeap;
      const std::uint64_t size = is_heap ? sizeof(KernelPe::heap) : sizeof(SyncWords);
      if (bytes > size || offset > size - bytes)
        return Error(ErrorCode::kInvalidArgument, "{} bytes at {:#x} are outside", bytes, offset);
      const RemotePlace start =
          (is_heap ? pe(to).registered_heap : pe(to).registered_sync)->place();
      return RemotePieces::Stretch{{start.address + offset, start.key}, size - offset};
    };
    mine.proxy = std::move(*Proxy::Start(std::move(parts)));
  }

  const int per_node_;
  MemoryNetwork network_;
  std::vector<std::unique_ptr<KernelPe>> pes_;
};

struct Shape {
  int n_pes;
  int per_node;
};
class RemoteKernels : public ::testing::TestWithParam<Shape> {
 protected:
  KernelWorld world_{GetParam().n_pes, GetParam().per_node};
};
INSTANTIATE_TEST_SUITE_P(Nodes, RemoteKernels,
                         ::testing::Values(Shape{4, 1}, Shape{4, 2}, Shape{5, 2}, Shape{2, 1}),
                         [](const auto& shape) {
                           return fmt::format("{}PesOf{}", shape.param.n_pes, shape.param.per_node);
                         });

int Next() { return (MyPe() + 1) % NPes(); }
int Before() { return (MyPe() + NPes() - 1) % NPes(); }
bool IsRemote(int pe) { return AddressOf(pe, &PeAddresses::heap, FaultCall::kPtr) == 0; }
u64 Mark(int pe, u64 n) { return 1000 * static_cast<u64>(pe + 1) + n; }

TEST_P(RemoteKernels, PutsAndGetsOfEverySizeBringTheirBytes) {
  world_.Run([](u64* heap) {
    u8* to = reinterpret_cast<u8*>(heap);
    u8* from = to + 4000;
    for (int i = 0; i < 4000; ++i) from[i] = static_cast<u8>(MyPe() + i);
    ShmemBarrierAll();
    for (const u64 bytes : {u64{0}, u64{1}, u64{7}, u64{64}, u64{1000}}) {
      std::vector<u8> source(bytes), got(bytes);
      for (u64 i = 0; i < bytes; ++i) source[i] = static_cast<u8>(MyPe() + 3 * i + bytes);
      ShmemPutMem(to + 5, source.data(), bytes, Next());
      std::ranges::fill(source, u8{0});  // it is this PE's again
      ShmemBarrierAll();
      for (u64 i = 0; i < bytes; ++i)
        ASSERT_EQ(to[5 + i],
                  static_cast<u8>(Before() + 3 * static_cast<int>(i) + static_cast<int>(bytes)));
      ShmemGetMem(got.data(), from + 3, bytes, Next());
      for (u64 i = 0; i < bytes; ++i) ASSERT_EQ(got[i], static_cast<u8>(Next() + 3 + i));
      std::ranges::fill(got, u8{0});
      ShmemGetMemNbi(got.data(), from + 4, bytes, Before());
      ShmemQuiet(Before());
      for (u64 i = 0; i < bytes; ++i) ASSERT_EQ(got[i], static_cast<u8>(Before() + 4 + i));
      ShmemBarrierAll();
    }
  });
}

TEST_P(RemoteKernels, ElementsAndAtomics) {
  struct Three {
    u64 a, b;
    u32 c;
  };
  world_.Run([](u64* heap) {
    ShmemP(heap, Mark(MyPe(), 1), Next());
    ShmemP(reinterpret_cast<u16*>(heap + 1), static_cast<u16>(MyPe() + 7), Next());
    ShmemP(reinterpret_cast<double*>(heap + 2), 0.5 + MyPe(), Next());
    ShmemBarrierAll();
    ASSERT_EQ(heap[0], Mark(Before(), 1));
    ASSERT_EQ(heap[1], static_cast<u64>(Before() + 7));
    ASSERT_EQ(ShmemG(heap, Next()), Mark(MyPe(), 1));
    ASSERT_EQ(ShmemG(reinterpret_cast<double*>(heap + 2), Next()), 0.5 + MyPe());
    RemoteP(reinterpret_cast<Three*>(heap + 4), Three{1, 2, static_cast<u32>(MyPe())}, Next());
    ShmemBarrierAll();
    if (IsRemote(Before())) {
      ASSERT_EQ(reinterpret_cast<Three*>(heap + 4)->c, static_cast<u32>(Before()));
    }

    u64* sum = heap + 10;
    u32* bits = reinterpret_cast<u32*>(heap + 11);
    for (int n = 0; n < 50; ++n) {
      ShmemAtomicAdd(sum, u64{2}, 0);
      ShmemAtomicFetchAdd(sum, u64{1}, 0);
      ShmemAtomicInc(sum, 0);
    }
    ShmemAtomicOr(bits, u32{1} << MyPe(), 1);
    ShmemBarrierAll();
    ASSERT_EQ(ShmemAtomicFetch(sum, 0), 200u * static_cast<u64>(NPes()));
    ASSERT_EQ(ShmemAtomicFetch(bits, 1), (1u << NPes()) - 1);
    ShmemBarrierAll();
    ShmemAtomicAnd(bits, ~(u32{1} << MyPe()), 1);
    ShmemAtomicSet(heap + 12, Mark(MyPe(), 12), Next());
    ShmemBarrierAll();
    ASSERT_EQ(ShmemAtomicFetch(bits, 1), 0u);
    ASSERT_EQ(heap[12], Mark(Before(), 12));
    ShmemBarrierAll();
    ASSERT_EQ(ShmemAtomicSwap(heap + 12, u64{5}, Next()), Mark(MyPe(), 12));
    ASSERT_EQ(ShmemAtomicCompareSwap(heap + 12, u64{6}, u64{7}, Next()), 5u);
    ASSERT_EQ(ShmemAtomicCompareSwap(heap + 12, u64{5}, u64{7}, Next()), 5u);
    ASSERT_EQ(ShmemG(heap + 12, Next()), 7u);
    ASSERT_EQ(ShmemPtr(heap, MyPe()), heap);
    for (int pe = 0; pe < NPes(); ++pe) ASSERT_EQ(ShmemPtr(heap, pe) == nullptr, IsRemote(pe));
  });
}

TEST_P(RemoteKernels, WhoSeesASignalSeesTheData) {
  world_.Run([](u64* heap) {
    u64* signal = heap + 900;
    u64* added = heap + 901;
    std::vector<u64> source(100);
    for (u64 round = 1; round <= 30; ++round) {
      std::iota(source.begin(), source.end(), Mark(MyPe(), round));
      if (round % 2 == 0) {
        ShmemPutMemSignal(heap, source.data(), 800, signal, round, Signal::kSet, Next());
      } else {  // data and signal apart
        ShmemPutMemNbi(heap, source.data(), 800, Next());
        ShmemSignalOp(signal, round, Signal::kSet, Next());
      }
      ShmemPutMemSignalNbi(heap + 200, source.data(), 80, added, 1, Signal::kAdd, Next());
      ShmemSignalWaitUntil(signal, Compare::kEq, round);
      for (u64 i = 0; i < 100; ++i) ASSERT_EQ(heap[i], Mark(Before(), round) + i);
      ShmemSignalWaitUntil(added, Compare::kEq, round);
      for (u64 i = 0; i < 10; ++i) ASSERT_EQ(heap[200 + i], Mark(Before(), round) + i);
      ShmemBarrierAll();
    }
  });
}

TEST_P(RemoteKernels, AFenceOrdersWhatComesToAPe) {
  world_.Run([](u64* heap) {
    for (u64 round = 1; round <= 30; ++round) {
      ShmemP(heap, round, Next());
      ShmemFence();
      ShmemAtomicSet(heap + 1, round, Next());
      ShmemWaitUntil(heap + 1, Compare::kGe, round);
      ASSERT_GE(LoadRelaxed(heap), round);
      ShmemSyncAll();
    }
  });
}

TEST_P(RemoteKernels, ABarrierCompletesWhatAllHavePut) {
  world_.Run([](u64* heap) {
    for (u64 round = 1; round <= 40; ++round) {
      for (int pe = 0; pe < NPes(); ++pe) ShmemP(heap + MyPe(), Mark(MyPe(), round), pe);
      ShmemBarrierAll();
      for (int pe = 0; pe < NPes(); ++pe) ASSERT_EQ(heap[pe], Mark(pe, round));
      ASSERT_EQ(ShmemSyncAllOrLost(), 0u);
    }
  });
}

TEST_P(RemoteKernels, Collectives) {
  world_.Run([](u64* heap) {
    const u64 n_pes = static_cast<u64>(NPes());
    u64* source = heap;
    u64* dest = heap + 500;
    for (int root = 0; root < NPes(); ++root) {
      for (u64 i = 0; i < 9; ++i) source[i] = Mark(MyPe(), i);
      ShmemBarrierAll();
      ShmemBroadcastMem(dest, source, 72, root);
      for (u64 i = 0; i < 9; ++i) ASSERT_EQ(dest[i], Mark(root, i));
      ShmemBarrierAll();
      ShmemBroadcastMem(source, source, 72, root);  // in place
      for (u64 i = 0; i < 9; ++i) ASSERT_EQ(source[i], Mark(root, i));
      ShmemBarrierAll();
    }
    for (u64 i = 0; i < 9 * n_pes; ++i) source[i] = Mark(MyPe(), i);
    ShmemBarrierAll();
    ShmemFCollectMem(dest, source, 72);
    for (u64 i = 0; i < 9 * n_pes; ++i) ASSERT_EQ(dest[i], Mark(static_cast<int>(i / 9), i % 9));
    ShmemBarrierAll();
    ShmemAllToAllMem(dest, source, 72);
    for (u64 i = 0; i < 9 * n_pes; ++i)
      ASSERT_EQ(dest[i], Mark(static_cast<int>(i / 9), i % 9 + 9 * static_cast<u64>(MyPe())));
    ShmemBarrierAll();
    u64 all = 0;
    for (int pe = 0; pe < NPes(); ++pe) all += Mark(pe, 0);
    ShmemSumReduce(dest, source, 13);
    for (u64 i = 0; i < 13; ++i) ASSERT_EQ(dest[i], all + n_pes * i);
    ShmemMaxReduce(source, source, 13);
    for (u64 i = 0; i < 13; ++i) ASSERT_EQ(source[i], Mark(NPes() - 1, i));
  });
}

}  // namespace
}  // namespace mori::shmem::device
