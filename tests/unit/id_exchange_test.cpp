#include "node/id_exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "bootstrap/socket.hpp"
#include "node/abstract_socket.hpp"
#include "support/bootstrap_ranks.hpp"

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
    return IdExchange(meeting_, rank, size, deadline).Run([&] { return id; });
  }

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
    const auto id = IdExchange(meeting_, rank, 3, TestLimit()).Run([&]() -> Result<UniqueId> {
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
  const auto id = Run(0, 4, IdOf(1), Deadline::After(300ms));
  rank_1.join();
  EXPECT_EQ(id.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(id.status().message(),
              MatchesRegex("2 of 4 ranks did not come to init within [0-9.]+ s "
                           "\\(MORI_BOOTSTRAP_TIMEOUT\\), among them rank 2"));
}

TEST_F(IdExchangeTest, WithoutRankZeroTheOthersSaySo) {
  const auto id = Run(1, 2, IdOf(1), Deadline::After(100ms));
  EXPECT_EQ(id.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(id.status().message(), MatchesRegex("rank 0 did not come to init within [0-9.]+ s "
                                                  "\\(MORI_BOOTSTRAP_TIMEOUT\\)"));
}

TEST_F(IdExchangeTest, TwoJobsDoNotMix) {
  InThreads(6, [&](int i) {
    const int job = i / 3;
    const IdExchange exchange(fmt::format("{} job {}", meeting_, job), i % 3, 3, TestLimit());
    const auto id = exchange.Run([&]() -> Result<UniqueId> { return IdOf(10 + job); });
    ASSERT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(id->bytes[0], 10 + job);
  });
}

TEST_F(IdExchangeTest, StrangersAndRanksThatBreakOffDisturbNobody) {
  std::thread stranger([&] {
    const std::string name = AbstractNameFor(meeting_);
    const auto call = [&] {
      for (;;) {
        auto fd = ConnectAbstract(name, TestLimit());
        if (fd.ok()) return std::move(*fd);
        std::this_thread::sleep_for(1ms);
      }
    };
    call();                                      // hangs up
    const UniqueFd half = call(), odd = call();  // two bytes; a rank that there is not
    EXPECT_TRUE(SendAll(half.get(), Bytes{1, 0}, TestLimit()).ok());
    ::shutdown(half.get(), SHUT_WR);
    EXPECT_TRUE(SendAll(odd.get(), Bytes{200, 0, 0, 0}, TestLimit()).ok());
    const auto id = Run(1, 2, IdOf(0));
    EXPECT_TRUE(id.ok()) << id.status().message();
  });
  const auto id = Run(0, 2, IdOf(7));
  stranger.join();
  EXPECT_TRUE(id.ok()) << id.status().message();
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
  EXPECT_THAT(id.status().message(), MatchesRegex("rank 0 did not come to init within [0-9.]+ s "
                                                  "\\(MORI_BOOTSTRAP_TIMEOUT\\)"));
}

}  // namespace
}  // namespace mori::shmem
