// What every heap mode promises, over devices that fail at any chosen call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/in_process_bootstrap.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "heap/heap.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::InThreads;
using testing::TestLimit;

/// Which call of a device is to fail.
class Faults {
 public:
  enum class Call { kAllocate, kExport, kImport, kReserve, kMap, kUnmap };
  /// Those that an allocation makes.
  static constexpr Call kFailing[] = {Call::kAllocate, Call::kExport, Call::kImport, Call::kMap};

  void FailOn(Call call, int nth) {
    call_ = call;
    left_ = nth;
  }
  void Clear() { left_ = 0; }
  /// Whether the chosen call has come.
  bool happened() const { return happened_; }

  Status Pass(Call call) {
    if (call != call_ || left_ == 0 || --left_ > 0) return Status();
    happened_ = true;
    return Error(ErrorCode::kOutOfMemory, "the device said no");
  }

 private:
  Call call_ = Call::kAllocate;
  int left_ = 0;
  bool happened_ = false;
};

class FaultyMemory final : public DeviceMemory {
 public:
  /// `given` is where it is mapped, on a device that chooses addresses.
  FaultyMemory(std::unique_ptr<DeviceMemory> real, std::unique_ptr<AddressRange> given,
               Faults* faults)
      : real_(std::move(real)), given_(std::move(given)), faults_(faults) {}
  std::uint64_t bytes() const override { return real_->bytes(); }
  const DeviceMemory& real() const { return *real_; }
  Result<UniqueFd> Export() const override {
    MORI_RETURN_IF_ERROR(faults_->Pass(Faults::Call::kExport));
    return real_->Export();
  }
  std::byte* address() const override { return given_ ? given_->base() : nullptr; }

 private:
  std::unique_ptr<DeviceMemory> real_;
  std::unique_ptr<AddressRange> given_;
  Faults* faults_;
};

class FaultyRange final : public AddressRange {
 public:
  FaultyRange(std::unique_ptr<AddressRange> real, Faults* faults)
      : real_(std::move(real)), faults_(faults) {}
  std::byte* base() const override { return real_->base(); }
  std::uint64_t bytes() const override { return real_->bytes(); }
  Status Map(std::uint64_t offset, const DeviceMemory& memory) override {
    MORI_RETURN_IF_ERROR(faults_->Pass(Faults::Call::kMap));
    return real_->Map(offset, static_cast<const FaultyMemory&>(memory).real());
  }
  Status Unmap(std::uint64_t offset, std::uint64_t bytes, bool has_views) override {
    MORI_RETURN_IF_ERROR(faults_->Pass(Faults::Call::kUnmap));
    return real_->Unmap(offset, bytes, has_views);
  }

 private:
  std::unique_ptr<AddressRange> real_;
  Faults* faults_;
};

class FaultyRuntime final : public DeviceRuntime {
 public:
  FaultyRuntime(Faults* faults, bool chooses_addresses)
      : faults_(faults), chooses_addresses_(chooses_addresses) {}
  Backend backend() const override { return Backend::kHost; }
  std::string Describe() const override { return "faulty"; }
  std::uint64_t GranularityBytes() const override { return real_.GranularityBytes(); }
  std::uint64_t MemoryBytes() const override { return std::uint64_t{1} << 30; }
  bool IsHostMemory() const override { return true; }
  bool IsFineGrained(HeapType) const override { return true; }
  std::string DescribeHeapType(HeapType) const override { return "faulty"; }
  bool ChoosesAddresses() const override { return chooses_addresses_; }
  Result<std::unique_ptr<DeviceMemory>> Allocate(std::uint64_t bytes, HeapType type) override {
    MORI_RETURN_IF_ERROR(faults_->Pass(Faults::Call::kAllocate));
    MORI_ASSIGN_OR_RETURN(auto memory, real_.Allocate(bytes, type));
    return Wrap(std::move(memory));
  }
  Result<std::unique_ptr<DeviceMemory>> Import(UniqueFd descriptor, std::uint64_t bytes) override {
    MORI_RETURN_IF_ERROR(faults_->Pass(Faults::Call::kImport));
    MORI_ASSIGN_OR_RETURN(auto memory, real_.Import(std::move(descriptor), bytes));
    return Wrap(std::move(memory));
  }
  Status Copy(void* to, const void* from, std::uint64_t bytes) const override {
    return real_.Copy(to, from, bytes);
  }
  Result<std::unique_ptr<AddressRange>> Reserve(std::uint64_t bytes,
                                                std::uint64_t alignment) override {
    MORI_ASSIGN_OR_RETURN(auto range, real_.Reserve(bytes, alignment));
    return std::unique_ptr<AddressRange>(std::make_unique<FaultyRange>(std::move(range), faults_));
  }

 private:
  Result<std::unique_ptr<DeviceMemory>> Wrap(std::unique_ptr<DeviceMemory> memory) {
    std::unique_ptr<AddressRange> given;
    if (chooses_addresses_) {
      MORI_ASSIGN_OR_RETURN(given, real_.Reserve(memory->bytes(), GranularityBytes()));
      MORI_RETURN_IF_ERROR(faults_->Pass(Faults::Call::kMap));
      MORI_RETURN_IF_ERROR(given->Map(0, *memory));
    }
    return std::unique_ptr<DeviceMemory>(
        std::make_unique<FaultyMemory>(std::move(memory), std::move(given), faults_));
  }
  HostRuntime real_;
  Faults* faults_;
  bool chooses_addresses_;
};

/// Mappings of heap memory in this process, of all PEs.
int MappedPieces() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:mori_shmem_heap") != std::string::npos;
  }
  return count;
}

/// A PE that is a thread of the test.
struct Member {
  explicit Member(bool chooses_addresses) : runtime(&faults, chooses_addresses) {}
  Faults faults;
  FaultyRuntime runtime;
  std::unique_ptr<FdExchange> exchange;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Heap> heap;
};

struct HeapKind {
  HeapMode mode;
  bool chooses_addresses = false;  ///< the device does
};

class HeapConformance : public ::testing::TestWithParam<HeapKind> {
 protected:
  static constexpr int kPes = 3;
  static constexpr std::uint64_t kHeapBytes = 1 << 20;
  static constexpr std::uint64_t kChunkBytes = 16 << 10;

  void SetUp() override {
    ends_ = InProcessBootstrap::MakeAll(kPes);
    auto listener = FdListener::Open();
    ASSERT_TRUE(listener.ok());
    const FdListener::Token token = listener->token();
    for (auto& member : members_) member = std::make_unique<Member>(GetParam().chooses_addresses);
    InThreads(kPes, [&](int pe) {
      auto exchange = FdExchange::Connect(
          end(pe), pe, kPes, pe == 0 ? std::move(*listener) : FdListener(), token, TestLimit());
      ASSERT_TRUE(exchange.ok()) << exchange.status().message();
      member(pe).exchange = std::move(*exchange);
      member(pe).transport =
          MakeP2pTransport(&member(pe).runtime, member(pe).exchange.get(), {0, 1, 2}, pe, kPes);
    });
  }

  void MakeHeaps() {
    InThreads(kPes, [&](int pe) {
      auto heap = Make(pe);
      ASSERT_TRUE(heap.ok()) << heap.status().message();
      member(pe).heap = std::move(*heap);
    });
  }

  Result<std::unique_ptr<Heap>> Make(int pe) {
    Config config;
    config.heap_mode = GetParam().mode;
    config.heap_bytes = kHeapBytes;
    config.vmm_chunk_bytes = kChunkBytes;
    config.bootstrap_timeout = std::chrono::seconds(20);
    return MakeHeap(config,
                    {&member(pe).runtime, member(pe).transport.get(), pe, kPes,
                     [this, pe](const Status& mine) { return Agree(pe, mine); }},
                    TestLimit());
  }

  Status Agree(int pe, const Status& mine) {
    const auto all = end(pe)->AllGather(mine.ok() ? Bytes() : EncodeStatus(mine), TestLimit());
    MORI_RETURN_IF_ERROR(all.status());
    for (const Bytes& bytes : *all) {
      if (!bytes.empty()) return DecodeStatus(bytes);
    }
    return Status();
  }

  Member& member(int pe) { return *members_[static_cast<std::size_t>(pe)]; }
  Heap& heap(int pe) { return *member(pe).heap; }
  Bootstrap* end(int pe) { return ends_[static_cast<std::size_t>(pe)].get(); }

  /// Fills every PE's copy with its number, and looks at all copies from everywhere.
  void CheckReach(int pe, std::byte* block, std::uint64_t bytes) {
    std::fill(block, block + bytes, static_cast<std::byte>(pe + 1));
    ASSERT_TRUE(Agree(pe, Status()).ok());
    for (int other = 0; other < kPes; ++other) {
      const std::byte* theirs = heap(pe).Translate(block, bytes, other);
      ASSERT_NE(theirs, nullptr);
      ASSERT_EQ(theirs[0], static_cast<std::byte>(other + 1));
      ASSERT_EQ(theirs[bytes - 1], static_cast<std::byte>(other + 1));
      ASSERT_EQ(theirs, heap(pe).peer_bases()[other] + (block - heap(pe).base()));
    }
    ASSERT_TRUE(Agree(pe, Status()).ok());
  }

  std::vector<std::unique_ptr<Bootstrap>> ends_;
  std::array<std::unique_ptr<Member>, kPes> members_;
};

INSTANTIATE_TEST_SUITE_P(Modes, HeapConformance,
                         ::testing::Values(HeapKind{HeapMode::kStatic},
                                           HeapKind{HeapMode::kStatic, true},
                                           HeapKind{HeapMode::kVmm},
                                           HeapKind{HeapMode::kIsolation}),
                         [](const auto& parameter) {
                           return std::string(HeapModeName(parameter.param.mode)) +
                                  (parameter.param.chooses_addresses ? "AtGivenAddresses" : "");
                         });

TEST_P(HeapConformance, BlocksOfEverySizeAreReachedFromEverywhere) {
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    for (const std::uint64_t bytes : {1ul, 63ul, 64ul, 65ul, kChunkBytes - 1, kChunkBytes,
                                      kChunkBytes + 1, 5 * kChunkBytes + 7}) {
      auto block = heap(pe).Allocate(bytes, DefaultAlignment(bytes), HeapType::kNormal);
      ASSERT_TRUE(block.ok()) << block.status().message();
      CheckReach(pe, *block, bytes);
    }
  });
}

TEST_P(HeapConformance, TheSpanHoldsEveryLiveBlock) {
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 20; ++i) {
      auto block = heap(pe).Allocate(10'000, 64, HeapType::kNormal);
      ASSERT_TRUE(block.ok());
      blocks.push_back(*block);
      ASSERT_LE(*block + 10'000, heap(pe).base() + heap(pe).span_bytes());
    }
    for (std::byte* block : blocks) ASSERT_TRUE(heap(pe).Free(block).ok());
  });
}

TEST_P(HeapConformance, EveryPowerOfTwoIsAnAlignment) {
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    const std::uint64_t most =
        GetParam().chooses_addresses ? member(pe).runtime.GranularityBytes() : kHeapBytes / 2;
    for (std::uint64_t alignment = 1; alignment <= most; alignment *= 2) {
      auto block = heap(pe).Allocate(100, alignment, HeapType::kNormal);
      ASSERT_TRUE(block.ok()) << block.status().message();
      for (int other = 0; other < kPes; ++other) {
        const auto address =
            reinterpret_cast<std::uintptr_t>(heap(pe).Translate(*block, 100, other));
        ASSERT_EQ(address % alignment, 0u);
      }
      ASSERT_TRUE(heap(pe).Free(*block).ok());
    }
    const HeapStats before = heap(pe).Stats();
    const auto refused = heap(pe).Allocate(100, 2 * kHeapBytes, HeapType::kNormal);
    ASSERT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    ASSERT_THAT(refused.status().message(),
                ::testing::MatchesRegex("an alignment of 2 MiB is more than .*, which heaps of 1 "
                                        "MiB start at multiples of.*"));
    ASSERT_EQ(heap(pe).Stats().live_blocks, before.live_blocks);
  });
}

TEST_P(HeapConformance, WhatIsFreedIsUnmappedEverywhere) {
  const int before = MappedPieces();
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 8; ++i) {
      auto block = heap(pe).Allocate(kChunkBytes, 4096, HeapType::kNormal);
      ASSERT_TRUE(block.ok());
      blocks.push_back(*block);
    }
    for (std::byte* block : blocks) {
      const auto freed = heap(pe).Free(block);
      ASSERT_TRUE(freed.ok() && freed->outcome.ok());
      if (GetParam().mode != HeapMode::kVmm) {
        ASSERT_EQ(freed->unmaps, GetParam().mode == HeapMode::kIsolation);
      }
    }
  });
  // One piece in a static heap, one chunk that is kept in a vmm heap: of each PE, on each PE.
  const int left = GetParam().mode == HeapMode::kIsolation ? 0 : kPes * kPes;
  EXPECT_EQ(MappedPieces() - before, left);
}

TEST_P(HeapConformance, AWrongAddressIsNoBlock) {
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    auto block = heap(pe).Allocate(100, 64, HeapType::kNormal);
    ASSERT_TRUE(block.ok());
    int local = 0;
    for (const void* wrong :
         {static_cast<const void*>(&local), static_cast<const void*>(*block + 1)}) {
      const auto freed = heap(pe).Free(wrong);
      ASSERT_EQ(freed.status().code(), ErrorCode::kInvalidArgument);
    }
    ASSERT_TRUE(heap(pe).Free(*block).ok());
    ASSERT_EQ(heap(pe).Free(*block).status().code(), ErrorCode::kInvalidArgument);
    ASSERT_EQ(heap(pe).OffsetOf(heap(pe).base()), 0u);
    ASSERT_EQ(heap(pe).OffsetOf(heap(pe).base() + kHeapBytes - 1), kHeapBytes - 1);
    ASSERT_EQ(heap(pe).OffsetOf(heap(pe).base() + kHeapBytes), std::nullopt);
    ASSERT_EQ(heap(pe).OffsetOf(heap(pe).base() - 1), std::nullopt);
    ASSERT_EQ(heap(pe).Translate(&local, 4, 0), nullptr);
    ASSERT_EQ(heap(pe).Translate(heap(pe).base() + kHeapBytes - 4, 8, 0), nullptr);
  });
}

/// On one PE after the other, every call of a kind fails once, at every place where it comes.
TEST_P(HeapConformance, AFailureOnOnePeLeavesEveryHeapAsItWas) {
  if (GetParam().mode == HeapMode::kStatic) return;  // maps nothing after init
  MakeHeaps();
  constexpr std::uint64_t kBytes = 3 * kChunkBytes;
  for (int failing = 0; failing < kPes; ++failing) {
    for (const auto call : Faults::kFailing) {
      int failures = 0;
      for (int nth = 1;; ++nth) {
        const int mapped = MappedPieces();
        member(failing).faults.FailOn(call, nth);
        std::atomic<int> failed = 0;
        InThreads(kPes, [&](int pe) {
          const HeapStats before = heap(pe).Stats();
          const std::uint64_t span = heap(pe).span_bytes();
          auto block = heap(pe).Allocate(kBytes, 4096, HeapType::kNormal);
          if (block.ok()) {
            CheckReach(pe, *block, kBytes);
            ASSERT_TRUE(heap(pe).Free(*block).ok());
            return;
          }
          ++failed;
          const HeapStats after = heap(pe).Stats();
          ASSERT_EQ(after.used_bytes, before.used_bytes);
          ASSERT_EQ(after.live_blocks, before.live_blocks);
          ASSERT_EQ(heap(pe).span_bytes(), span);
        });
        member(failing).faults.Clear();
        if (failed == 0) break;  // no such call any more
        ++failures;
        ASSERT_EQ(failed, kPes) << "the PEs do not agree";
        ASSERT_EQ(MappedPieces(), mapped) << "call " << nth;
        InThreads(kPes, [&](int pe) {
          auto next = heap(pe).Allocate(100, 64, HeapType::kNormal);
          ASSERT_TRUE(next.ok()) << next.status().message();
          CheckReach(pe, *next, 100);
          ASSERT_TRUE(heap(pe).Free(*next).ok());
        });
      }
      EXPECT_GT(failures, 0) << "PE " << failing << ", call " << static_cast<int>(call);
    }
  }
}

/// Memory comes in several batches then, and what came before is given back.
TEST_P(HeapConformance, AFailureInALaterBatchLeavesEveryHeapAsItWas) {
  if (GetParam().mode != HeapMode::kVmm) return;  // one piece at a time in other modes
  MakeHeaps();
  constexpr std::uint64_t kChunks = 60;
  for (const auto call : Faults::kFailing) {
    for (const int nth : {1, 42, 43, 60}) {
      const int mapped = MappedPieces();
      member(1).faults.FailOn(call, nth);
      InThreads(kPes, [&](int pe) {
        const auto block = heap(pe).Allocate(kChunks * kChunkBytes, 4096, HeapType::kNormal);
        ASSERT_FALSE(block.ok());
        ASSERT_EQ(heap(pe).Stats().used_bytes, 0u);
        ASSERT_EQ(heap(pe).span_bytes(), 0u);
      });
      ASSERT_TRUE(member(1).faults.happened());
      member(1).faults.Clear();
      ASSERT_EQ(MappedPieces(), mapped) << "call " << nth;
    }
  }
  InThreads(kPes, [&](int pe) {
    auto block = heap(pe).Allocate(kChunks * kChunkBytes, 4096, HeapType::kNormal);
    ASSERT_TRUE(block.ok()) << block.status().message();
    CheckReach(pe, *block, kChunks * kChunkBytes);
  });
}

/// So that who frees the block can tell the others, who wait for it.
TEST_P(HeapConformance, MemoryThatCannotBeUnmappedIsFreedAndSaidByItsPe) {
  if (GetParam().mode != HeapMode::kIsolation) return;  // unmaps each block
  MakeHeaps();
  member(1).faults.FailOn(Faults::Call::kUnmap, 1);
  InThreads(kPes, [&](int pe) {
    auto block = heap(pe).Allocate(kChunkBytes, 64, HeapType::kNormal);
    ASSERT_TRUE(block.ok());
    const auto freed = heap(pe).Free(*block);
    ASSERT_TRUE(freed.ok() && freed->unmaps);
    ASSERT_EQ(freed->outcome.ok(), pe != 1);
    ASSERT_EQ(heap(pe).Stats().live_blocks, 0u);
  });
  member(1).faults.Clear();
}

/// The same when the heap is made.
TEST_P(HeapConformance, AFailureAtInitIsEveryPesFailure) {
  const int before = MappedPieces();
  for (const auto call : Faults::kFailing) {
    for (int failing = 0; failing < kPes; ++failing) {
      member(failing).faults.FailOn(call, 1);
      std::atomic<int> failed = 0;
      InThreads(kPes, [&](int pe) { failed += !Make(pe).ok(); });
      EXPECT_EQ(failed, GetParam().mode == HeapMode::kStatic ? kPes : 0);
      member(failing).faults.Clear();
      EXPECT_EQ(MappedPieces(), before);
    }
  }
}

TEST_P(HeapConformance, AViewOfAFreedBlockIsStaleAndNoCrash) {
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    auto block = heap(pe).Allocate(kChunkBytes, 64, HeapType::kNormal);
    auto second = heap(pe).Allocate(kChunkBytes, 64, HeapType::kNormal);
    ASSERT_TRUE(block.ok() && second.ok());
    const auto retained = heap(pe).Retain(*second);
    ASSERT_TRUE(heap(pe).Free(*second).ok());
    ASSERT_TRUE(heap(pe).Free(*block).ok());
    for (const std::byte* view : {*block, *second}) {
      static_cast<void>(*static_cast<const volatile std::byte*>(view));
    }
    auto again = heap(pe).Allocate(2 * kChunkBytes, 64, HeapType::kNormal);
    ASSERT_TRUE(again.ok());
    CheckReach(pe, *again, 2 * kChunkBytes);
  });
}

TEST_P(HeapConformance, PiecesOutliveTheHeapWhileTheyAreRetained) {
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    auto block = heap(pe).Allocate(100, 64, HeapType::kNormal);
    ASSERT_TRUE(block.ok());
    **block = std::byte{7};
    const auto retained = heap(pe).Retain(*block);
    ASSERT_NE(retained, nullptr);
    ASSERT_EQ(heap(pe).Retain(&pe), nullptr);
    member(pe).heap.reset();
    ASSERT_EQ(**block, std::byte{7});
  });
}

/// Memory that must not outlive its owner is given up in good time, own memory is not.
TEST_P(HeapConformance, PeersAreGivenUpWhereOwnersMustOutliveThem) {
  const int before = MappedPieces();
  MakeHeaps();
  InThreads(kPes, [&](int pe) {
    auto block = heap(pe).Allocate(100, 64, HeapType::kNormal);
    ASSERT_TRUE(block.ok());
    **block = std::byte{7};
    const int next = (pe + 1) % kPes;
    ASSERT_TRUE(Agree(pe, Status()).ok());
    heap(pe).ReleasePeers();
    ASSERT_EQ(heap(pe).Translate(*block, 100, next) == nullptr, GetParam().chooses_addresses);
    ASSERT_EQ(heap(pe).Translate(*block, 100, pe), *block);
    ASSERT_EQ(**block, std::byte{7});
  });
  if (GetParam().chooses_addresses) {
    EXPECT_EQ(MappedPieces() - before, kPes);
  }
}

TEST(MappedSpace, HeapsThatNoAddressesCanHoldAreASentence) {
  HostRuntime runtime;
  const auto alone = [](const Status& mine) { return mine; };
  for (const int pes : {1, 3}) {
    auto transport = MakeP2pTransport(&runtime, nullptr,
                                      pes == 1 ? std::vector{0} : std::vector{0, 1, 2}, 0, pes);
    for (const std::uint64_t bytes : {std::uint64_t{1} << 46, std::uint64_t{1} << 62,
                                      (std::uint64_t{1} << 63) + 4096, UINT64_MAX - 4095}) {
      if (pes == 1 && bytes == std::uint64_t{1} << 46) continue;  // may be there
      const auto space = SymmetricSpace::Reserve({&runtime, transport.get(), 0, pes, alone}, bytes);
      ASSERT_EQ(space.status().code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(
          space.status().message(),
          ::testing::AllOf(::testing::StartsWith(fmt::format("no addresses for {} heaps", pes)),
                           ::testing::HasSubstr(FormatByteSize(bytes)),
                           ::testing::HasSubstr("MORI_SHMEM_HEAP_SIZE")));
    }
  }
}

TEST(HeapConfig, ASizeThatCannotBeIsRefusedWithItsVariable) {
  Faults faults;
  const FaultyRuntime runtime(&faults, false);
  struct Case {
    std::optional<std::uint64_t> heap_bytes, chunk_bytes;
    std::string_view sentence;
  };
  for (const auto& [heap_bytes, chunk_bytes, sentence] :
       {Case{{}, {}, "MORI_SHMEM_HEAP_SIZE is not set"},
        Case{4095, {}, "MORI_SHMEM_HEAP_SIZE is 4095 bytes, less than the smallest heap of 4 KiB"},
        Case{4096, {}, ""}, Case{runtime.MemoryBytes(), {}, ""},
        Case{runtime.MemoryBytes() + 1,
             {},
             "MORI_SHMEM_HEAP_SIZE is 1073741825 bytes, more than the 1 GiB"},
        Case{1 << 20, 2 * runtime.MemoryBytes(),
             "MORI_SHMEM_VMM_CHUNK_SIZE is 2 GiB, more than"}}) {
    Config config;
    config.heap_bytes = heap_bytes;
    config.vmm_chunk_bytes = chunk_bytes;
    const Status checked = CheckHeapConfig(config, runtime);
    EXPECT_EQ(checked.code(), sentence.empty() ? ErrorCode::kOk : ErrorCode::kInvalidConfig);
    EXPECT_NE(checked.message().find(sentence), std::string::npos) << checked.message();
  }
}

TEST(GivenSpace, OnlyStaticModeIsServed) {
  Faults faults;
  const FaultyRuntime runtime(&faults, true);
  for (const HeapMode mode : {HeapMode::kStatic, HeapMode::kVmm, HeapMode::kIsolation}) {
    Config config;
    config.heap_mode = mode;
    config.heap_bytes = 1 << 20;
    const Status checked = CheckHeapConfig(config, runtime);
    if (mode == HeapMode::kStatic) {
      EXPECT_TRUE(checked.ok()) << checked.message();
    } else {
      EXPECT_EQ(checked.code(), ErrorCode::kInvalidConfig);
      EXPECT_NE(checked.message().find("set MORI_SHMEM_MODE=static"), std::string::npos);
    }
  }
}

TEST(GivenSpace, MemoryComesOnceAndAsAWhole) {
  Faults faults;
  FaultyRuntime runtime(&faults, true);
  auto transport = MakeP2pTransport(&runtime, nullptr, {0}, 0, 1);
  const auto alone = [](const Status& mine) { return mine; };
  auto space = SymmetricSpace::Reserve({&runtime, transport.get(), 0, 1, alone}, 8192);
  ASSERT_TRUE(space.ok());
  const auto add = [&](const std::vector<Piece>& pieces) {
    return (*space)->Add(pieces, HeapType::kNormal, TestLimit()).code();
  };
  EXPECT_EQ(add({{0, 4096}}), ErrorCode::kUnsupported);
  EXPECT_EQ(add({{0, 4096}, {4096, 4096}}), ErrorCode::kUnsupported);
  EXPECT_EQ(add({{0, 8192}}), ErrorCode::kOk);
  EXPECT_EQ(add({{0, 8192}}), ErrorCode::kUnsupported);
  EXPECT_EQ((*space)->Remove({{0, 8192}}).code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace mori::shmem
