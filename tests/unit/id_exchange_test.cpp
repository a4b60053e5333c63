#include "node/id_exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "bootstrap/socket.hpp"
#include "node/abstract_socket.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/forked.hpp"

namespace mori::shmem {
namespace {

using testing::InThreads;
using ::testing::MatchesRegex;
using testing::TestLimit;
using namespace std::chrono_literals;

UniqueId IdOf(std::uint8_t seed) {
  UniqueId id;
  std::ranges::fill(id.bytes, seed);
  return id;
}

class IdExchangeTest : public ::testing::Test {
 protected:
  /// One rank's part; rank 0 makes `id`.
  Result<UniqueId> Run(int rank, int size, const Result<UniqueId>& id,
                       const Deadline& deadline = TestLimit()) const {
    return IdExchange(meeting_, rank, size, deadline, options_).Run([&] { return id; });
  }

  /// A connection to rank 0, once it listens.
  UniqueFd Call() const {
    for (;;) {
      auto fd = ConnectAbstract(AbstractNameFor(meeting_), TestLimit());
      if (fd.ok()) return std::move(*fd);
      std::this_thread::sleep_for(1ms);
    }
  }
  /// All that rank 0 says until it hangs up.
  static Bytes Answer(const UniqueFd& call) {
    Bytes said;
    while (WaitFor(call.get(), POLLIN, TestLimit()).ok() &&
           ReceiveSome(call.get(), 100, &said).ok()) {
    }
    return said;
  }

  IdExchange::Options options_;
  const std::string meeting_ = fmt::format(
      "{} {}", ::getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(IdExchangeTest, AllRanksGetTheIdOfRankZero) {
  constexpr int kSize = 12;
  InThreads(kSize, [&](int rank) {
    if (rank % 5 == 0) std::this_thread::sleep_for(20ms);  // rank 0 too: the others wait for it
    const auto id = Run(rank, kSize, IdOf(static_cast<std::uint8_t>(100 + rank)));
    ASSERT_TRUE(id.ok()) << id.status().message();
    EXPECT_TRUE(std::ranges::equal(id->bytes, IdOf(100).bytes)) << "on rank " << rank;
  });
}

TEST_F(IdExchangeTest, AloneNeedsNobody) {
  const auto id = Run(0, 1, IdOf(5));
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_TRUE(std::ranges::equal(id->bytes, IdOf(5).bytes));
  EXPECT_EQ(ConnectAbstract(AbstractNameFor(meeting_), TestLimit()).status().code(),
            ErrorCode::kPeerLost);
}

TEST_F(IdExchangeTest, TheMakersFailureReachesAll) {
  constexpr int kSize = 4;
  InThreads(kSize, [&](int rank) {
    const auto id = Run(rank, kSize, Error(ErrorCode::kInvalidConfig, "no interface {}", "eth7"));
    EXPECT_EQ(id.status().code(), ErrorCode::kInvalidConfig) << "on rank " << rank;
    EXPECT_EQ(id.status().message(), "no interface eth7") << "on rank " << rank;
  });
}

TEST_F(IdExchangeTest, OnlyRankZeroMakesAnId) {
  std::atomic<int> made{0};
  InThreads(3, [&](int rank) {
    const auto id = IdExchange(meeting_, rank, 3, TestLimit(), {}).Run([&]() -> Result<UniqueId> {
      ++made;
      return IdOf(1);
    });
    EXPECT_TRUE(id.ok());
  });
  EXPECT_EQ(made, 1);
}

TEST_F(IdExchangeTest, AMissingRankIsNamedByRankZero) {
  std::atomic<bool> rank_1_waits{false};
  std::thread rank_1([&] {
    rank_1_waits = true;
    const auto id = Run(1, 4, IdOf(0));
    EXPECT_TRUE(id.ok()) << "has its id, and learns at the rendezvous who is missing";
  });
  EXPECT_TRUE(testing::Eventually([&] { return rank_1_waits.load(); }));
  const auto id = Run(0, 4, IdOf(1), Deadline::After(2s));
  rank_1.join();
  EXPECT_EQ(id.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(id.status().message(),
              MatchesRegex("2 of 4 ranks, among them rank 2, did not come to init within [0-9.]+ s "
                           "\\(MORI_BOOTSTRAP_TIMEOUT\\)"));
}

TEST_F(IdExchangeTest, WithoutRankZeroTheOthersSaySo) {
  const auto id = Run(1, 2, IdOf(1), Deadline::After(100ms));
  EXPECT_EQ(id.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(id.status().message(),
              MatchesRegex("rank 0 of 2 did not come to init within [0-9.]+ s "
                           "\\(MORI_BOOTSTRAP_TIMEOUT\\)"));
}

TEST_F(IdExchangeTest, TwoJobsDoNotMix) {
  InThreads(6, [&](int i) {
    const int job = i / 3;
    const IdExchange exchange(fmt::format("{} job {}", meeting_, job), i % 3, 3, TestLimit(), {});
    const auto id = exchange.Run([&]() -> Result<UniqueId> { return IdOf(10 + job); });
    ASSERT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(id->bytes[0], 10 + job);
  });
}

TEST_F(IdExchangeTest, StrangersAndRanksThatBreakOffDisturbNobody) {
  std::thread stranger([&] {
    Call();                                      // hangs up
    const UniqueFd half = Call(), odd = Call();  // two bytes; something else
    EXPECT_TRUE(SendAll(half.get(), Bytes{1, 0}, TestLimit()).ok());
    ::shutdown(half.get(), SHUT_WR);
    EXPECT_TRUE(SendAll(odd.get(), Bytes(12, 200), TestLimit()).ok());
    EXPECT_EQ(Answer(odd), Bytes());
    const auto id = Run(1, 2, IdOf(0));
    EXPECT_TRUE(id.ok()) << id.status().message();
  });
  const auto id = Run(0, 2, IdOf(7));
  stranger.join();
  EXPECT_TRUE(id.ok()) << id.status().message();
}

constexpr std::uint8_t kComeAgain = 2;  // all of such an answer

TEST_F(IdExchangeTest, SilentCallersHoldUpNobody) {
  options_.patience = 1h;
  std::thread others([&] {
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 20; ++i) silent.push_back(Call());
    const auto id = Run(1, 2, IdOf(0));
    EXPECT_TRUE(id.ok()) << id.status().message();
  });
  const auto id = Run(0, 2, IdOf(7));
  others.join();
  EXPECT_TRUE(id.ok()) << id.status().message();
}

TEST_F(IdExchangeTest, BeyondItsRoomTheFirstSilentCallerIsToldToComeAgain) {
  options_.patience = 1h;
  options_.max_callers = 2;
  std::thread others([&] {
    const UniqueFd first = Call(), second = Call();
    const UniqueFd third = Call();
    EXPECT_EQ(Answer(first), Bytes{kComeAgain});
    const auto id = Run(1, 2, IdOf(0));  // in the second's place
    EXPECT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(Answer(second), Bytes{kComeAgain});
    EXPECT_EQ(Answer(third), Bytes()) << "was still listened to in the end";
  });
  const auto id = Run(0, 2, IdOf(7));
  others.join();
  EXPECT_TRUE(id.ok()) << id.status().message();
}

TEST_F(IdExchangeTest, SilentCallersThatUseUpTheDescriptorsMakeRoom) {
  options_.patience = 1h;
  EXPECT_EQ(testing::RunForked(2,
                               [&](int rank) -> std::string {
                                 std::vector<UniqueFd> silent;
                                 if (rank == 0) {
                                   const rlimit few{40, 40};
                                   if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "setrlimit";
                                 } else {
                                   for (int i = 0; i < 100; ++i) silent.push_back(Call());
                                 }
                                 return Run(rank, 2, IdOf(7)).status().message();
                               }),
            "");
}

TEST_F(IdExchangeTest, WhoSaysNothingForTooLongIsToldToComeAgain) {
  options_.patience = 20ms;
  std::thread others([&] {
    EXPECT_EQ(Answer(Call()), Bytes{kComeAgain});
    const auto id = Run(1, 2, IdOf(0));
    EXPECT_TRUE(id.ok()) << id.status().message();
  });
  const auto id = Run(0, 2, IdOf(7));
  others.join();
  EXPECT_TRUE(id.ok()) << id.status().message();
}

TEST_F(IdExchangeTest, ARankThatIsToldToComeAgainDoes) {
  const auto listener = ListenAbstract(AbstractNameFor(meeting_));
  ASSERT_TRUE(listener.ok());
  std::thread zero([&] {
    Bytes with_id(1 + UniqueId::kBytes, 9);
    with_id[0] = 1;
    for (const Bytes& answer : {Bytes{kComeAgain}, Bytes{kComeAgain}, with_id}) {
      ASSERT_TRUE(WaitFor(listener->get(), POLLIN, TestLimit()).ok());
      const auto caller = AcceptAbstract(listener->get());
      ASSERT_TRUE(caller.ok());
      EXPECT_TRUE(SendAll(caller->get(), answer, TestLimit()).ok());
    }
  });
  const auto id = Run(1, 2, IdOf(0));
  zero.join();
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_TRUE(std::ranges::equal(id->bytes, IdOf(9).bytes));
}

TEST_F(IdExchangeTest, SizesThatDifferAreSaidOnBothSides) {
  InThreads(2, [&](int rank) {
    const auto id = Run(rank, rank == 0 ? 2 : 3, IdOf(1));
    EXPECT_EQ(id.status().code(), ErrorCode::kMismatch) << "on rank " << rank;
    EXPECT_EQ(id.status().message(), "rank 1 says that there are 3 ranks, rank 0 says 2");
  });
}

TEST_F(IdExchangeTest, RanksThatComeLaterHearOfSizesThatDifferToo) {
  const std::string why = "rank 1 says that there are 3 ranks, rank 0 says 4";
  std::thread others([&] {
    EXPECT_EQ(Run(1, 3, IdOf(1)).status().message(), why);
    for (const int rank : {2, 3}) EXPECT_EQ(Run(rank, 4, IdOf(1)).status().message(), why) << rank;
  });
  EXPECT_EQ(Run(0, 4, IdOf(1)).status().message(), why);
  others.join();
}

TEST_F(IdExchangeTest, ARankBeyondTheSizeIsRefused) {
  InThreads(2, [&](int i) {
    const auto id = Run(i == 0 ? 0 : 5, 2, IdOf(1));
    EXPECT_EQ(id.status().code(), ErrorCode::kMismatch) << "on rank " << i;
  });
}

TEST_F(IdExchangeTest, TheLargestSizeCostsNothingBeforeRanksCome) {
  constexpr int kMax = std::numeric_limits<int>::max();
  const auto id = Run(0, kMax, IdOf(1), Deadline::After(1ms));
  EXPECT_EQ(id.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(id.status().message(), ::testing::StartsWith("2147483646 of 2147483647 ranks"));
}

TEST_F(IdExchangeTest, LateRanksAreNamedWhileTheyAreWaitedFor) {
  options_.first_line = 1ms;
  options_.hint = "look there";
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Run(0, 3, IdOf(1), Deadline::After(100ms)).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("rank 0 still waits for 2 of 3 ranks, among them rank 1, to "
                                   "come to init on this machine"));
  ::testing::internal::CaptureStderr();
  const auto id = Run(2, 3, IdOf(1), Deadline::After(100ms));
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, ::testing::HasSubstr("rank 2 still waits for rank 0 of 3 to come to init"));
  EXPECT_THAT(lines, ::testing::HasSubstr("; look there\n"));
  EXPECT_THAT(id.status().message(), ::testing::EndsWith("; look there"));
}

TEST_F(IdExchangeTest, ASilentRankZeroIsNamedWhileItIsWaitedFor) {
  options_.first_line = 1ms;
  const auto listener = ListenAbstract(AbstractNameFor(meeting_));
  ASSERT_TRUE(listener.ok());
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Run(1, 2, IdOf(0), Deadline::After(100ms)).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("rank 1 still waits for rank 0 of 2 to come to init"));
}

TEST_F(IdExchangeTest, ALostRankZeroIsSaid) {
  const auto listener = ListenAbstract(AbstractNameFor(meeting_));
  ASSERT_TRUE(listener.ok());
  std::thread zero([&] {
    EXPECT_TRUE(WaitFor(listener->get(), POLLIN, TestLimit()).ok());
    EXPECT_TRUE(AcceptAbstract(listener->get()).ok());  // and is gone
  });
  const auto id = Run(1, 2, IdOf(0));
  zero.join();
  EXPECT_EQ(id.status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(id.status().message(), "rank 0 was lost while it made the unique id");
}

TEST_F(IdExchangeTest, ASilentListenerEndsWithTheDeadline) {
  const auto listener = ListenAbstract(AbstractNameFor(meeting_));
  ASSERT_TRUE(listener.ok());
  const auto id = Run(1, 2, IdOf(0), Deadline::After(50ms));
  EXPECT_EQ(id.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(id.status().message(),
              MatchesRegex("rank 0 of 2 did not come to init within [0-9.]+ s "
                           "\\(MORI_BOOTSTRAP_TIMEOUT\\)"));
}

}  // namespace
}  // namespace mori::shmem
