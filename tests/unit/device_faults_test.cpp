// What the device API tells the host before a thread ends, and where it returns instead: by threads
// of the host, which a fault ends as a process of their own.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <functional>
#include <vector>

#include "kernels/exchange.cuh"
#include "mori/shmem/shmem_device_api.hpp"

namespace mori::shmem::device {
namespace {

constexpr u32 kPes = 2;

/// PE 0 of two, which is alone: nobody ever comes to a meeting.
class DeviceFaults : public ::testing::Test {
 protected:
  DeviceFaults() {
    void* shared =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = static_cast<Shared*>(shared);
    record_ = &shared_->faults.record;
    globalGpuStates = {};
    globalGpuStates.header.magic = kContextMagic;
    globalGpuStates.heap_base = reinterpret_cast<u64>(heap_);
    globalGpuStates.first_lost = &first_lost_;
    globalGpuStates.faults = &shared_->faults;
    globalGpuStates.n_pes = kPes;
    for (u32 pe = 0; pe < kPes; ++pe) {
      words_[pe] = &shared_->words[pe];
      globalGpuStates.inline_pes[pe] = {reinterpret_cast<u64>(heap_),
                                        reinterpret_cast<u64>(words_[pe])};
    }
  }
  ~DeviceFaults() override {
    globalGpuStates = {};
    ::munmap(shared_, sizeof(Shared));
  }

  /// The call ends its process, and has told this.
  template <typename Call>
  void ExpectTold(Call call, FaultReason reason, FaultCall of, i32 pe, u32 value) {
    *record_ = {};
    EXPECT_EXIT(
        call(), [](int status) { return status != 0; }, "");
    EXPECT_EQ(record_->reason, reason);
    EXPECT_EQ(record_->call, of);
    EXPECT_EQ(record_->pe, pe);
    EXPECT_EQ(record_->value, value);
  }

  /// With the processes that end.
  struct Shared {
    Faults faults;
    SyncWords words[kPes];
  };

  u64 heap_[4] = {};
  u32 first_lost_ = 0;
  Shared* shared_;
  FaultRecord* record_;
  SyncWords* words_[kPes];
};
using DeviceFaultsDeathTest = DeviceFaults;

/// The first of two threads of a scope; the test stands for the other one.
struct FirstOfTwo {
  static constexpr bool kIsOneThread = false;
  static constexpr int kBatch = 8;
  static u32 Rank() { return 0; }
  static u32 Size() { return 2; }
  static void Sync() {}
  static bool SyncAny(bool mine) { return on_sync(mine); }
  static inline std::function<bool(bool)> on_sync;
};

TEST_F(DeviceFaultsDeathTest, OfAWrongPeSayWhichCallNamedIt) {
  u64* const word = heap_;
  ExpectTold([&] { PutNbi<Thread>(word, word + 1, 8, 7); }, FaultReason::kPeOutOfRange,
             FaultCall::kPut, 7, kPes);
  ExpectTold([&] { G(word, -1); }, FaultReason::kPeOutOfRange, FaultCall::kGet, -1, kPes);
  ExpectTold([&] { AtomicFetchAdd(word, u64{1}, 2); }, FaultReason::kPeOutOfRange,
             FaultCall::kAtomic, 2, kPes);
  ExpectTold([&] { PostSignal(word, 1, Signal::kSet, 3); }, FaultReason::kPeOutOfRange,
             FaultCall::kSignal, 3, kPes);
  ExpectTold([&] { Quiet<Thread>(9); }, FaultReason::kPeOutOfRange, FaultCall::kQuiet, 9, kPes);
}
TEST_F(DeviceFaultsDeathTest, OfAPeWithoutAnAddressSayThatItIsNotReached) {
  globalGpuStates.inline_pes[1].heap = 0;
  ExpectTold([&] { P(heap_, u64{1}, 1); }, FaultReason::kPeOutOfReach, FaultCall::kPut, 1, kPes);
}
TEST_F(DeviceFaultsDeathTest, OfMemoryThatTheHostCannotCarrySayWhichCallNamedIt) {
  globalGpuStates.inline_pes[1].heap = 0;
  globalGpuStates.flags = kHasRemotePes;
  const auto expect = [this](auto call, FaultCall of) {
    ExpectTold(call, FaultReason::kNotGlobal, of, 1, 0);
  };
  expect([&] { ShmemPutMem(heap_, nullptr, 8, 1); }, FaultCall::kPut);
  expect([&] { ShmemGetMemNbi(nullptr, heap_, 8, 1); }, FaultCall::kGet);
  expect([&] { ShmemPutMemSignal(heap_, nullptr, 8, heap_ + 1, 1, Signal::kSet, 1); },
         FaultCall::kSignal);
}
TEST_F(DeviceFaultsDeathTest, OfMoreElementsThanAddressesSayHowLargeTheyAre) {
  u64* const words = heap_;
  auto* const halves = reinterpret_cast<u32*>(heap_);
  // Both would be copies of 8 bytes, if their sizes were taken modulo 2^64.
  const u64 many = (u64{1} << 61) + 1, more = (u64{1} << 62) + 2;
  const auto expect = [this](auto call, FaultCall of, i32 pe, u32 bytes) {
    ExpectTold(call, FaultReason::kTooManyElements, of, pe, bytes);
  };
  expect([&] { ShmemPut(words, words + 1, many, 1); }, FaultCall::kPut, 1, 8);
  expect([&] { ShmemPutNbiWarp(words, words + 1, many, 1); }, FaultCall::kPut, 1, 8);
  expect([&] { ShmemGetBlock(halves, halves + 2, more, 1); }, FaultCall::kGet, 1, 4);
  expect([&] { ShmemGetNbi(halves, halves + 2, more, 1); }, FaultCall::kGet, 1, 4);
  expect([&] { ShmemSumReduce(words, words, many); }, FaultCall::kCollective, 0, 8);
}
TEST_F(DeviceFaultsDeathTest, OfALostPeSayWhoItIsAndWhatWasWaitedFor) {
  first_lost_ = 2;  // PE 1
  ExpectTold([&] { WaitUntil<Thread>(heap_, Compare::kEq, u64{5}); }, FaultReason::kPeLost,
             FaultCall::kWait, 1, 5);
  ExpectTold([&] { BarrierAll<Thread>(); }, FaultReason::kPeLost, FaultCall::kBarrier, 1, 1);
}
TEST_F(DeviceFaultsDeathTest, OfTheSecondOfTwoMeetingsAreToldBeforeItTellsOthers) {
  words_[0]->is_meeting = 1;
  ExpectTold([&] { BarrierAll<Thread>(); }, FaultReason::kTwoMeetings, FaultCall::kBarrier, 0, 1);
  EXPECT_EQ(words_[1]->epochs[0], 0u);
}
TEST_F(DeviceFaultsDeathTest, OfASecondCollectiveOnStreamsAreTold) {
  words_[0]->blocks_meeting[0] = 1;
  const FewPes few{0, kPes, {words_[0], words_[1]}};
  u8 bytes[8] = {};
  ExpectTold([&] { SmallGather(few, bytes, bytes, 4, 0); }, FaultReason::kTwoMeetings,
             FaultCall::kCollectiveOnStream, 0, 0);
}
TEST_F(DeviceFaultsDeathTest, OfALostPeAreToldWhereAMeetingWasLeft) {
  first_lost_ = 2;
  words_[0]->is_meeting = 1;
  words_[0]->blocks_meeting[0] = 1;
  ExpectTold([&] { BarrierAll<Thread>(); }, FaultReason::kPeLost, FaultCall::kBarrier, 1, 1);
  ExpectTold([&] { BeginMeeting(words_[0], 0); }, FaultReason::kPeLost,
             FaultCall::kCollectiveOnStream, 1, 0);
}
TEST_F(DeviceFaultsDeathTest, InAMeetingOfTheLibraryEndIt) {
  first_lost_ = 2;
  const FewPes few{0, kPes, {words_[0], words_[1]}};
  u8 bytes[8] = {};
  ExpectTold([&] { SmallGather(few, bytes, bytes, 4, 0); }, FaultReason::kPeLost,
             FaultCall::kCollectiveOnStream, 1, 0);
  EXPECT_EQ(words_[0]->blocks_meeting[0], 0u);
  const auto meet = [&] {
    BeginMeeting(words_[0], 3);
    MeetOnStream<Thread>(0, kPes, 3, [&](u32 pe) { return words_[pe]->stream_epochs; });
  };
  ExpectTold(meet, FaultReason::kPeLost, FaultCall::kCollectiveOnStream, 1, 1);
  EXPECT_EQ(words_[0]->blocks_meeting[3], 0u);
}
TEST_F(DeviceFaultsDeathTest, OfWhichTheHostHasNotYetHeardStand) {
  record_->reason = FaultReason::kPeLost;
  record_->pe = 77;
  EXPECT_EXIT(
      Quiet<Thread>(9), [](int status) { return status != 0; }, "");
  EXPECT_EQ(record_->reason, FaultReason::kPeLost);
  EXPECT_EQ(record_->pe, 77);
}

TEST_F(DeviceFaults, CallsThatReturnWhereAPeIsLostSayWhich) {
  first_lost_ = 2;
  EXPECT_EQ(WaitUntilOrLost<Thread>(heap_, Compare::kEq, u64{5}), 2u);
  EXPECT_EQ(SignalWaitUntilOrLost<Thread>(heap_, Compare::kNe, 0), 2u);
  EXPECT_EQ(WaitUntilAllOrLost<Thread>(heap_, 4, nullptr, Compare::kEq, u64{5}), 2u);
  EXPECT_EQ(WaitUntilAnyOrLost(heap_, 4, nullptr, Compare::kEq, u64{5}), kNoIndex);
  u64 indices[4];
  EXPECT_EQ(WaitUntilSomeOrLost(heap_, 4, indices, nullptr, Compare::kEq, u64{5}), 0u);
  EXPECT_EQ(SyncAllOrLost<Thread>(), 2u);
  EXPECT_EQ(BarrierAllOrLost<Thread>(), 2u);
  EXPECT_EQ(words_[0]->is_meeting, 0u) << "the next one is no second one";
  EXPECT_EQ(record_->reason, FaultReason::kNone);
}
TEST_F(DeviceFaults, AWordThatHoldsIsFoundThoughAPeIsLost) {
  first_lost_ = 2;
  heap_[2] = 5;
  EXPECT_EQ(WaitUntilOrLost<Thread>(heap_ + 2, Compare::kEq, u64{5}), 0u);
  EXPECT_EQ(WaitUntilAnyOrLost(heap_, 4, nullptr, Compare::kEq, u64{5}), 2u);
  // It may come between the last look and the mark.
  u64 in_vain = 0;
  EXPECT_FALSE(Await([&](auto) { return ++in_vain == 0; }));
  u64 looks = 0;
  EXPECT_TRUE(Await([&](auto) { return ++looks == in_vain; }));
}

TEST_F(DeviceFaults, AWaitEndsThoughTheHostHasTakenTheFaultBetweenTwoOfItsLooks) {
  shared_->faults.taken = 5;  // of kernels before
  constexpr u32 kMost = 20'000;
  const auto looks_until_over = [&](u32 fault_at) {
    u32 looks = 0;
    const bool is_there = Await([&](auto) {
      if (++looks == fault_at) ++shared_->faults.taken;
      return looks >= kMost;
    });
    return is_there ? kMost : looks;
  };
  EXPECT_EQ(looks_until_over(kMost + 1), kMost) << "faults that were taken before end no wait";
  EXPECT_LT(looks_until_over(70), kMost);
  EXPECT_LT(looks_until_over(4300), kMost) << "between two looks at the host's memory";
}

TEST_F(DeviceFaults, AScopeReturnsAsAWholeWhereOneThreadSeesTheLossFirst) {
  record_->reason = FaultReason::kPeOutOfRange;  // what ends the waits
  int meetings = 0;
  int in_vain = 0;  // the meeting that tells of waits in vain
  FirstOfTwo::on_sync = [&](bool mine) {
    if (++meetings < in_vain) return mine;
    if (meetings > in_vain) first_lost_ = 2;  // the other thread has seen it already
    return true;
  };
  const auto expect_return = [&](int before, auto call) {
    first_lost_ = 0;
    meetings = 0;
    in_vain = before;
    EXPECT_EQ(call(), 2u);
  };
  expect_return(1, [&] { return WaitUntilOrLost<FirstOfTwo>(heap_, Compare::kEq, u64{5}); });
  expect_return(
      1, [&] { return WaitUntilAllOrLost<FirstOfTwo>(heap_, 4, nullptr, Compare::kEq, u64{5}); });
  expect_return(2, [&] { return SyncAllOrLost<FirstOfTwo>(); });
}
TEST_F(DeviceFaults, AMeetingIsOverOnceEachThreadThatWaitsHasMetAndBeforeAnyGoesOn) {
  words_[0]->epochs[1] = 1;  // PE 1 has come
  std::vector<u32> meeting;
  FirstOfTwo::on_sync = [&](bool mine) {
    meeting.push_back(words_[0]->is_meeting);
    if (meeting.size() == 2) FetchAdd(&words_[0]->is_meeting, ~0U);  // the other thread has met
    return mine;
  };
  SyncAll<FirstOfTwo>();
  EXPECT_EQ(meeting, (std::vector<u32>{2, 1}));
  EXPECT_EQ(words_[0]->is_meeting, 0u);
}

}  // namespace
}  // namespace mori::shmem::device
