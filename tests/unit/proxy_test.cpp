// Commands of kernels on a ring, and the thread that carries them out: producers are threads of the
// host, and the network is one over memory that reorders what its seam allows.
#include "shmem/proxy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <numeric>
#include <vector>

#include "support/memory_network.hpp"

namespace mori::shmem {
namespace {

using device::FaultCall;
using device::FaultReason;
using device::kAllPes;
using device::Ring;
using device::RingAtomic;
using device::RingCommand;
using device::RingMemory;
using device::RingOp;
using ::testing::HasSubstr;
using testing::MemoryNetwork;

constexpr std::uint64_t kWords = 4096;
constexpr int kPes = 3;

RingCommand Put(RingOp op, int pe, std::uint64_t word, const void* from, std::uint64_t bytes) {
  RingCommand command{};
  command.op = op;
  command.pe = static_cast<device::u32>(pe);
  command.there = word * 8;
  command.here = reinterpret_cast<std::uint64_t>(from);
  command.bytes = static_cast<device::u32>(bytes);
  command.call = FaultCall::kPut;
  return command;
}
RingCommand PutValue(int pe, std::uint64_t word, std::uint64_t value) {
  RingCommand command = Put(RingOp::kPutValue, pe, word, nullptr, 8);
  command.value = value;
  return command;
}
RingCommand Atomic(RingOp op, RingAtomic code, int pe, std::uint64_t word, std::uint64_t value,
                   device::u32 width = 8) {
  RingCommand command{};
  command.op = op;
  command.code = static_cast<device::u32>(code);
  command.width = width;
  command.pe = static_cast<device::u32>(pe);
  command.word = word * 8;
  command.value = value;
  command.call = FaultCall::kAtomic;
  return command;
}
RingCommand Of(RingOp op, device::u32 pe = kAllPes) {
  RingCommand command{};
  command.op = op;
  command.pe = pe;
  command.call = FaultCall::kQuiet;
  return command;
}

/// A ring as a device has it.
struct RingOfHost {
  explicit RingOfHost(RingPages* pages) {
    ring = {pages->entries, &pages->done, pages->results,          &next,
            &seen,          taken.data(), RingPages::kEntries - 1, 0};
  }
  std::uint64_t Post(const RingCommand& command) const {
    return device::PostCommand(ring, command);
  }
  bool Do(const RingCommand& command) const { return device::AwaitCommand(ring, Post(command)); }
  std::uint64_t Fetch(const RingCommand& command) const {
    device::u64 found = 0;
    EXPECT_FALSE(device::FetchByCommand(ring, command, &found));
    return found;
  }

  device::u64 next = 0;
  device::u64 seen = 0;
  std::vector<device::u32> taken = std::vector<device::u32>(RingPages::kEntries);
  Ring ring;
};

void ByThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int n = 0; n < count; ++n) threads.emplace_back(body, n);
  for (std::thread& thread : threads) thread.join();
}

/// PE 0 has a ring; the others have memory only.
class ProxyTest : public ::testing::Test {
 protected:
  ProxyTest() : network_(Options()), of_host_(pages_.get()) {
    for (int pe = 0; pe < kPes; ++pe) {
      memory_.emplace_back(kWords);
      RemoteParts parts;
      parts.self = pe;
      parts.n_pes = kPes;
      transports_.push_back(network_.Join(std::move(parts)));
      auto registered = transports_.back()->Register(memory_.back().data(), kWords * 8);
      EXPECT_TRUE(registered.ok());
      registered_.push_back(std::move(*registered));
    }
    Serve(&transports_[0]->channel());
  }

  static MemoryNetwork::Options Options() {
    MemoryNetwork::Options options;
    options.n_pes = kPes;
    return options;
  }
  void Serve(Channel* channel) {
    proxy_.reset();
    Proxy::Parts parts;
    parts.pages = pages_;
    parts.channel = channel;
    parts.n_pes = kPes;
    parts.remote_pes = {1, 2};
    parts.fault = &fault_;
    parts.locate = [this](RingMemory memory, std::uint64_t offset, std::uint64_t bytes,
                          int pe) -> Result<RemotePieces::Stretch> {
      if (memory != RingMemory::kHeap || bytes > kWords * 8 || offset > kWords * 8 - bytes)
        return Error(ErrorCode::kInvalidArgument, "{} bytes at {:#x} leave the heap", bytes,
                     offset);
      const RemotePlace start = registered_[static_cast<std::size_t>(pe)]->place();
      return RemotePieces::Stretch{{start.address + offset, start.key}, kWords * 8 - offset};
    };
    auto started = Proxy::Start(std::move(parts));
    ASSERT_TRUE(started.ok());
    proxy_ = std::move(*started);
  }
  std::uint64_t WordOf(int pe, std::uint64_t word) {
    return std::atomic_ref(memory_[static_cast<std::size_t>(pe)][word]).load();
  }
  const RingOfHost& ring() const { return of_host_; }

  MemoryNetwork network_;
  std::vector<std::vector<std::uint64_t>> memory_;
  std::vector<std::unique_ptr<RemoteTransport>> transports_;
  std::vector<std::unique_ptr<Registration>> registered_;
  std::shared_ptr<RingPages> pages_ = std::make_shared<RingPages>();
  RingOfHost of_host_;
  device::FaultRecord fault_{};
  std::unique_ptr<Proxy> proxy_;
};

TEST_F(ProxyTest, ManyThreadsPutThroughManyLapsOfTheRing) {
  constexpr int kThreads = 4;
  constexpr std::uint64_t kRounds = 1000;
  ByThreads(kThreads, [&](int thread) {
    for (std::uint64_t round = 1; round <= kRounds; ++round)
      ring().Post(PutValue(1 + thread % 2, static_cast<std::uint64_t>(thread), round));
    EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet)));
    // Of puts without a fence between them any may be the last: this one comes behind a quiet.
    ring().Post(PutValue(1 + thread % 2, static_cast<std::uint64_t>(thread), kRounds + 1));
    EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet, 1 + static_cast<device::u32>(thread) % 2)));
    EXPECT_EQ(WordOf(1 + thread % 2, static_cast<std::uint64_t>(thread)), kRounds + 1);
  });
  EXPECT_EQ(of_host_.next, kThreads * (kRounds + 3));
  EXPECT_TRUE(proxy_->TakeFailure().ok());
}

TEST_F(ProxyTest, FetchingAtomicsOfManyThreadsGiveEachNumberOnce) {
  constexpr int kThreads = 4;
  constexpr std::uint64_t kRounds = 300;
  std::vector<std::vector<std::uint64_t>> found(kThreads);
  ByThreads(kThreads, [&](int thread) {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      found[static_cast<std::size_t>(thread)].push_back(
          ring().Fetch(Atomic(RingOp::kFetch, RingAtomic::kFetchAdd, 1, 5, 1)));
    }
  });
  std::vector<int> times(kThreads * kRounds);
  for (const auto& mine : found) {
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    for (const std::uint64_t number : mine) ++times.at(number);
  }
  EXPECT_EQ(times, std::vector<int>(kThreads * kRounds, 1));
}

TEST_F(ProxyTest, AResultIsNotWrittenOverBeforeItIsRead) {
  of_host_.taken[0] = 1;  // by a thread that has yet to read it
  for (std::uint64_t n = 0; n < RingPages::kEntries; ++n) ring().Post(PutValue(1, 0, n));
  std::uint64_t found = 99;
  std::thread fetching(
      [&] { found = ring().Fetch(Atomic(RingOp::kFetch, RingAtomic::kSwap, 1, 1, 5)); });
  while (std::atomic_ref(pages_->done.count).load() < RingPages::kEntries ||
         std::atomic_ref(of_host_.next).load() == RingPages::kEntries)
    std::this_thread::yield();
  for (int look = 0; look < 100; ++look) {
    std::this_thread::yield();
    ASSERT_EQ(std::atomic_ref(pages_->done.count).load(), RingPages::kEntries);
  }
  device::StoreRelease(&of_host_.taken[0], 0U);
  fetching.join();
  EXPECT_EQ(found, 0u);
  EXPECT_EQ(of_host_.taken[0], 0u);
}

TEST_F(ProxyTest, EveryCommandDoesWhatItSays) {
  const std::uint64_t source[3] = {11, 12, 13};
  EXPECT_FALSE(ring().Do(Put(RingOp::kPut, 1, 10, source, sizeof source)));
  ring().Post(Put(RingOp::kPutNbi, 2, 20, source, sizeof source));
  RingCommand signal = Put(RingOp::kPutSignal, 2, 30, source, 16);
  signal.code = static_cast<device::u32>(RingAtomic::kFetchAdd);
  signal.word = 40 * 8;
  signal.value = 5;
  ring().Post(signal);
  ring().Post(Of(RingOp::kFence));
  ring().Post(Atomic(RingOp::kPost, RingAtomic::kSet, 2, 41, 77));
  EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet)));
  EXPECT_EQ(WordOf(1, 10) + WordOf(1, 11) + WordOf(1, 12), 36u);
  EXPECT_EQ(WordOf(2, 20) + WordOf(2, 21) + WordOf(2, 22), 36u);
  EXPECT_EQ(WordOf(2, 30) + WordOf(2, 31), 23u);
  EXPECT_EQ(WordOf(2, 32), 0u);
  EXPECT_EQ(WordOf(2, 40), 5u);
  EXPECT_EQ(WordOf(2, 41), 77u);

  const std::uint64_t parts[3] = {21, 22, 23};
  RingCommand to_all = Put(RingOp::kPutToAll, -1, 50, parts, 8);
  to_all.value = 8;
  ring().Post(to_all);
  EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet)));
  EXPECT_EQ(WordOf(0, 50), 0u);
  EXPECT_EQ(WordOf(1, 50), 22u);
  EXPECT_EQ(WordOf(2, 50), 23u);

  std::uint64_t got[3] = {};
  EXPECT_FALSE(ring().Do(Put(RingOp::kGet, 1, 10, got, sizeof got)));
  EXPECT_THAT(got, ::testing::ElementsAre(11, 12, 13));
  std::uint64_t later[3] = {};
  ring().Post(Put(RingOp::kGetNbi, 2, 20, later, sizeof later));
  EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet, 2)));
  EXPECT_THAT(later, ::testing::ElementsAre(11, 12, 13));
  RingCommand value = Put(RingOp::kGetValue, 1, 11, nullptr, 4);
  EXPECT_EQ(ring().Fetch(value), 12u);

  RingCommand swap = Atomic(RingOp::kFetch, RingAtomic::kCompareSwap, 1, 10, 99);
  swap.here = 12;  // not what is there
  EXPECT_EQ(ring().Fetch(swap), 11u);
  EXPECT_EQ(WordOf(1, 10), 11u);
  swap.here = 11;
  EXPECT_EQ(ring().Fetch(swap), 11u);
  EXPECT_EQ(ring().Fetch(Atomic(RingOp::kFetch, RingAtomic::kFetch, 1, 10, 0)), 99u);
  EXPECT_EQ(ring().Fetch(Atomic(RingOp::kFetch, RingAtomic::kFetchXor, 1, 10, 2, 4)), 99u);
  EXPECT_EQ(WordOf(1, 10), 97u);
}

TEST_F(ProxyTest, WhatOneThreadPutsOnTheRingComesToTheNetworkInItsOrder) {
  using Kind = testing::Posted::Kind;
  network_.TakePosts();
  const std::uint64_t source = 1;
  ring().Post(Put(RingOp::kPutNbi, 1, 0, &source, 8));
  ring().Post(Of(RingOp::kFence));
  ring().Post(Atomic(RingOp::kPost, RingAtomic::kSet, 1, 1, 1));
  ring().Do(Of(RingOp::kQuiet));
  std::vector<Kind> kinds;
  for (const auto& posted : network_.TakePosts()) kinds.push_back(posted.kind);
  EXPECT_THAT(kinds, ::testing::ElementsAre(Kind::kPut, Kind::kFence, Kind::kPost, Kind::kQuiet));
}

TEST_F(ProxyTest, WhoeverSeesAWordBehindAFenceSeesWhatWasPutBeforeIt) {
  for (std::uint64_t round = 1; round <= 200; ++round) {
    ring().Post(PutValue(1, 0, round));
    ring().Post(Of(RingOp::kFence));
    ring().Post(Atomic(RingOp::kPost, RingAtomic::kSet, 1, 1, round));
    while (WordOf(1, 1) != round) std::this_thread::yield();
    ASSERT_EQ(WordOf(1, 0), round);
  }
}

TEST_F(ProxyTest, AFullRingWaitsUntilThereIsRoom) {
  constexpr std::uint64_t kMore = 3 * RingPages::kEntries;
  const auto tickets = [&] { return std::atomic_ref(of_host_.next).load(); };
  network_.Hold();
  ring().Post(PutValue(1, 9, 1));
  std::thread waiting([&] { ring().Do(Of(RingOp::kQuiet)); });  // holds up the proxy
  while (tickets() < 2) std::this_thread::yield();
  std::atomic<bool> is_done{false};
  std::thread producer([&] {
    for (std::uint64_t n = 0; n < kMore; ++n)
      ring().Post(Atomic(RingOp::kPost, RingAtomic::kFetchAdd, 1, 3, 1));
    is_done = true;
  });
  while (tickets() <= RingPages::kEntries) std::this_thread::yield();
  // The put has been carried out, and the producer may have a ticket more than there is room for.
  EXPECT_LE(tickets(), RingPages::kEntries + 2u);
  EXPECT_FALSE(is_done);
  network_.Release();
  producer.join();
  waiting.join();
  EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet)));
  EXPECT_EQ(WordOf(1, 3), kMore);
}

TEST_F(ProxyTest, AnEntryIsTakenOnceAllOfItHasCome) {
  const std::uint64_t ticket = device::TakeTicket(ring().ring);
  ASSERT_EQ(ticket, 0u);
  const auto entry = device::EntryOf(PutValue(1, 0, 42), 1);
  for (const int piece : {3, 0, 2}) {
    auto* to = &pages_->entries[0].pieces[piece];
    device::StorePair(&to->head, entry.pieces[piece].head, entry.pieces[piece].value);
  }
  for (int look = 0; look < 100; ++look) {
    std::this_thread::yield();
    ASSERT_EQ(std::atomic_ref(pages_->done.count).load(), 0u);
  }
  auto* last = &pages_->entries[0].pieces[1];
  device::StorePair(&last->head, entry.pieces[1].head, entry.pieces[1].value);
  EXPECT_FALSE(device::AwaitCommand(ring().ring, ticket));
  EXPECT_FALSE(ring().Do(Of(RingOp::kQuiet)));
  EXPECT_EQ(WordOf(1, 0), 42u);
}

TEST_F(ProxyTest, ALostPeFailsItsCommandsAndNoOthers) {
  network_.Lose(1, "its connection closed");
  device::u64 found = 0;
  EXPECT_TRUE(device::FetchByCommand(
      ring().ring, Atomic(RingOp::kFetch, RingAtomic::kFetchAdd, 1, 0, 1), &found));
  EXPECT_EQ(fault_.reason, FaultReason::kRemoteFailed);
  EXPECT_EQ(fault_.call, FaultCall::kAtomic);
  const Status failure = proxy_->TakeFailure();
  EXPECT_EQ(failure.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(failure.message(), HasSubstr("a kernel's atomic to PE 1"));
  EXPECT_TRUE(proxy_->TakeFailure().ok());
  EXPECT_FALSE(device::FetchByCommand(
      ring().ring, Atomic(RingOp::kFetch, RingAtomic::kFetchAdd, 2, 0, 1), &found));
  EXPECT_EQ(WordOf(2, 0), 1u);
}

TEST_F(ProxyTest, AFaultOfAKernelIsNotWrittenOver) {
  fault_ = {FaultReason::kPeOutOfRange, FaultCall::kPut, 9, 3};
  EXPECT_TRUE(ring().Do(PutValue(7, 0, 1)));
  EXPECT_EQ(fault_.reason, FaultReason::kPeOutOfRange);
  EXPECT_EQ(fault_.pe, 9);
  EXPECT_THAT(proxy_->TakeFailure().message(), HasSubstr("PE 7 is out of range"));
  fault_.reason = FaultReason::kNone;  // as the host leaves a record that it has taken
  EXPECT_TRUE(ring().Do(PutValue(7, 0, 1)));
  EXPECT_EQ(fault_.reason, FaultReason::kRemoteFailed);
}

TEST_F(ProxyTest, CommandsThatAreNoneAreRefused) {
  const auto refused = [&](const RingCommand& command, const char* sentence) {
    EXPECT_TRUE(ring().Do(command));
    const Status failure = proxy_->TakeFailure();
    EXPECT_EQ(
        failure.code() == ErrorCode::kInvalidArgument || failure.code() == ErrorCode::kInternal,
        true);
    EXPECT_THAT(failure.message(), HasSubstr(sentence));
  };
  refused(PutValue(kPes, 0, 1), "out of range: there are PEs 0 to 2");
  refused(Of(RingOp::kQuiet, 4), "PE 4 is out of range");
  refused(PutValue(1, kWords, 1), "leave the heap");
  refused(Atomic(RingOp::kPost, RingAtomic::kSet, 1, 0, 1, 2), "on 2 bytes");
  refused(Atomic(RingOp::kPost, static_cast<RingAtomic>(8), 1, 0, 1), "of code 8");
  RingCommand odd = Atomic(RingOp::kFetch, RingAtomic::kSwap, 1, 0, 1);
  odd.word = 4;
  refused(odd, "at offset 0x4 is none");
  odd = PutValue(1, 0, 1);
  odd.bytes = 9;
  refused(odd, "is none");
  refused(Of(static_cast<RingOp>(200), 1), "number 200");
}

TEST_F(ProxyTest, TheEndCarriesOutWhatHasComeAndFailsWhatComesLater) {
  for (std::uint64_t n = 0; n < 500; ++n)
    ring().Post(Atomic(RingOp::kPost, RingAtomic::kFetchAdd, 1, 3, 1));
  ring().Post(Of(RingOp::kQuiet));
  proxy_.reset();
  EXPECT_EQ(WordOf(1, 3), 500u);
  EXPECT_TRUE(ring().Do(PutValue(1, 0, 1)));
  device::u64 found = 0;
  EXPECT_TRUE(device::FetchByCommand(
      ring().ring, Atomic(RingOp::kFetch, RingAtomic::kFetchAdd, 1, 3, 1), &found));
  for (std::uint64_t n = 0; n < 2 * RingPages::kEntries; ++n) ring().Post(PutValue(1, 0, 1));
  EXPECT_EQ(WordOf(1, 0), 0u);
}

}  // namespace
}  // namespace mori::shmem
