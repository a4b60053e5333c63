#include "bootstrap/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <climits>
#include <future>

#include "bootstrap/socket.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::Eventually;
using testing::InThreads;
using testing::Join;
using testing::JoinAll;
using testing::Joined;
using testing::Loopback;
using testing::RankOptions;
using ::testing::StartsWith;
using testing::TestLimit;
using namespace std::chrono_literals;

using Options = SocketBootstrap::Options;

std::string Introduced(int rank) {
  return fmt::format("rank {} (host host{}, process {})", rank, rank, ::getpid());
}

/// A rank that the test plays by hand.
class FakeRank {
 public:
  FakeRank(const UniqueId& id, int rank, int size) : rank_(rank) {
    const auto rendezvous = DecodeUniqueId(id);
    auto fd = ConnectTo(rendezvous->addresses[0], rendezvous->port, TestLimit());
    EXPECT_TRUE(fd.ok()) << fd.status().message();
    if (!fd.ok()) return;
    fd_ = std::move(*fd);
    EXPECT_TRUE(ProveToListener(fd_.get(), rendezvous->name, rendezvous->secret, TestLimit()).ok());
    hello_.rank = rank;
    hello_.size = size;
    hello_.version = "1.2.3";
    hello_.host = fmt::format("host{}", rank);
    hello_.process_id = static_cast<std::uint32_t>(::getpid());
    hello_.budget = 30s;
    hello_.endpoint = {1, {Loopback()}};
  }

  Hello& hello() { return hello_; }
  void SayHello() { Say(FrameType::kHello, EncodeHello(hello_)); }
  void Say(FrameType type, Bytes payload) {
    const Status sent = SendFrame(
        fd_.get(), {type, static_cast<std::uint32_t>(rank_), 0, std::move(payload)}, TestLimit());
    EXPECT_TRUE(sent.ok()) << sent.message();
  }
  void Die() { fd_.Reset(); }

  Result<Frame> Hear() { return ReceiveFrame(fd_.get(), 64 << 10, TestLimit()); }
  bool IsWelcomed() {
    const auto frame = Hear();
    return frame.ok() && frame->type == FrameType::kWelcome;
  }
  /// What it is told instead of a welcome; it hangs up then.
  Status Rejection() {
    const auto frame = Hear();
    fd_.Reset();
    if (!frame.ok()) return frame.status();
    EXPECT_EQ(frame->type, FrameType::kReject);
    return DecodeStatus(frame->payload);
  }

 private:
  int rank_;
  Hello hello_;
  UniqueFd fd_;
};

class RendezvousTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void Restart() {
    server_.reset();
    auto server = testing::StartRendezvous();
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  const UniqueId& id() const { return server_->id(); }
  FakeRank Fake(int rank, int size) { return FakeRank(id(), rank, size); }
  std::vector<Options> Ranks(int size) const {
    std::vector<Options> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(RankOptions(rank, size));
    return ranks;
  }

  std::unique_ptr<RendezvousServer> server_;
};

void ExpectAllFail(const std::vector<Joined>& joined, ErrorCode code, const std::string& message) {
  for (std::size_t i = 0; i < joined.size(); ++i) {
    EXPECT_EQ(joined[i].status().code(), code) << "rank at " << i;
    EXPECT_EQ(joined[i].status().message(), message) << "rank at " << i;
  }
}

TEST_F(RendezvousTest, ItsIdSaysWhereItIs) {
  const auto rendezvous = DecodeUniqueId(id());
  ASSERT_TRUE(rendezvous.ok());
  ASSERT_EQ(rendezvous->addresses.size(), 1u);
  EXPECT_EQ(rendezvous->addresses[0], Loopback());
  EXPECT_NE(rendezvous->port, 0);
  EXPECT_FALSE(server_->finished());
}

TEST_F(RendezvousTest, IsOverWhenAllRanksAreConnected) {
  const auto joined = JoinAll(id(), Ranks(12));
  for (const auto& rank : joined) EXPECT_TRUE(rank.ok()) << rank.status().message();
  EXPECT_TRUE(Eventually([&] { return server_->finished(); }));
}

TEST_F(RendezvousTest, AnIdServesOneInit) {
  { const auto joined = JoinAll(id(), Ranks(2)); }
  ASSERT_TRUE(Eventually([&] { return server_->finished(); }));
  const auto late = Join(id(), RankOptions(0, 2));
  EXPECT_EQ(late.status().code(), ErrorCode::kPeerLost);
  const auto rendezvous = DecodeUniqueId(id());
  EXPECT_EQ(late.status().message(),
            fmt::format("nobody answers for this unique id at 127.0.0.1 port {0}: the process that "
                        "made it has ended, or the id was used already, as each id serves one init "
                        "(connect to 127.0.0.1 port {0}: Connection refused (errno 111))",
                        rendezvous->port));
}

TEST_F(RendezvousTest, AnIdWhoseProcessIsGoneIsRefused) {
  const UniqueId orphan = id();
  server_.reset();
  const auto late = Join(orphan, RankOptions(1, 2));
  EXPECT_EQ(late.status().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(late.status().message(),
              StartsWith("nobody answers for this unique id at 127.0.0.1 port "));
}

TEST_F(RendezvousTest, RanksThatDoNotComeAreNamed) {
  struct Row {
    int size;
    std::vector<int> come;
    const char* message;
  };
  for (const Row& row :
       {Row{2,
            {1},
            "1 of 2 ranks did not come within 0.1 s (MORI_BOOTSTRAP_TIMEOUT): missing rank 0"},
        Row{5,
            {0, 3},
            "3 of 5 ranks did not come within 0.1 s (MORI_BOOTSTRAP_TIMEOUT): missing "
            "ranks 1, 2, 4"},
        Row{40,
            {0},
            "39 of 40 ranks did not come within 0.1 s (MORI_BOOTSTRAP_TIMEOUT): missing "
            "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, …"}}) {
    Restart();
    std::vector<FakeRank> ranks;
    for (const int rank : row.come) {
      ranks.push_back(Fake(rank, row.size));
      if (rank == row.come.back()) ranks.back().hello().budget = 100ms;  // the shortest counts
      ranks.back().SayHello();
    }
    for (FakeRank& rank : ranks) {
      const Status rejection = rank.Rejection();
      EXPECT_EQ(rejection.code(), ErrorCode::kTimeout);
      EXPECT_EQ(rejection.message(), row.message);
    }
  }
}

TEST_F(RendezvousTest, ARankWaitsNoLongerThanItsBudget) {
  Options options = RankOptions(1, 2);
  options.budget = 100ms;
  ExpectAllFail(JoinAll(id(), {options}), ErrorCode::kTimeout,
                "1 of 2 ranks did not come within 0.1 s (MORI_BOOTSTRAP_TIMEOUT): missing rank 0");
}

TEST_F(RendezvousTest, ABudgetBeyondTheClockIsNoProblem) {
  auto first = Fake(0, 2), second = Fake(1, 2);
  for (FakeRank* rank : {&first, &second}) {
    rank->hello().budget = std::chrono::milliseconds::max();
    rank->SayHello();
  }
  EXPECT_TRUE(first.IsWelcomed());
  EXPECT_TRUE(second.IsWelcomed());
}

TEST_F(RendezvousTest, ARankThatIsUsedTwiceIsNamed) {
  auto first = Fake(1, 3), second = Fake(1, 3), other = Fake(0, 3);
  first.hello().process_id = 100;
  second.hello().process_id = 200;
  other.SayHello();
  first.SayHello();
  std::this_thread::sleep_for(20ms);
  second.SayHello();
  for (FakeRank* rank : {&other, &first, &second}) {
    const Status rejection = rank->Rejection();
    EXPECT_EQ(rejection.code(), ErrorCode::kMismatch);
    EXPECT_EQ(
        rejection.message(),
        "rank 1 was used twice: by process 100 on host host1 and by process 200 on host host1");
  }
}

TEST_F(RendezvousTest, SizesThatDifferAreNamed) {
  auto first = Fake(0, 3), second = Fake(1, 4);
  first.SayHello();
  std::this_thread::sleep_for(20ms);
  second.SayHello();
  for (FakeRank* rank : {&first, &second}) {
    const Status rejection = rank->Rejection();
    EXPECT_EQ(rejection.code(), ErrorCode::kMismatch);
    EXPECT_EQ(rejection.message(),
              Introduced(1) + " says that there are 4 ranks, " + Introduced(0) + " says 3");
  }
}

TEST_F(RendezvousTest, VersionsThatDifferAreNamed) {
  auto first = Fake(0, 3), second = Fake(1, 3);
  second.hello().version = "1.2.4";
  first.SayHello();
  std::this_thread::sleep_for(20ms);
  second.SayHello();
  for (FakeRank* rank : {&first, &second}) {
    const Status rejection = rank->Rejection();
    EXPECT_EQ(rejection.code(), ErrorCode::kMismatch);
    EXPECT_EQ(rejection.message(), Introduced(1) + " has version 1.2.4 of the library, " +
                                       Introduced(0) + " has version 1.2.3");
  }
}

TEST_F(RendezvousTest, RanksAndSizesOutOfRangeAreRefusedForAll) {
  struct Row {
    int rank, size;
  };
  for (const Row& row :
       {Row{3, 3}, Row{-1, 3}, Row{INT_MAX, 3}, Row{0, 0}, Row{0, -7}, Row{0, (1 << 20) + 1}}) {
    Restart();
    auto fake = Fake(row.rank, row.size);
    fake.SayHello();
    const Status rejection = fake.Rejection();
    EXPECT_EQ(rejection.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(rejection.message(),
              fmt::format("{} is out of range for {} ranks", Introduced(row.rank), row.size));
  }
}

TEST_F(RendezvousTest, ARankRefusesItsOwnNumberOutOfRange) {
  for (const auto& [rank, size] : {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 0)}) {
    const auto joined = Join(id(), RankOptions(rank, size));
    EXPECT_EQ(joined.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(
        joined.status().message(),
        fmt::format("rank {} is out of range for a world of {} (0 to {})", rank, size, size - 1));
  }
}

TEST_F(RendezvousTest, AFailureOfOneRankReachesAllIncludingThoseWhoComeLate) {
  auto early = Fake(0, 4);
  early.SayHello();
  std::this_thread::sleep_for(10ms);
  Options failing = RankOptions(2, 4);
  failing.failure = Error(ErrorCode::kInvalidConfig, "MORI_SHMEM_HEAP_SIZE is not set");
  const auto failed = Join(id(), failing);
  EXPECT_EQ(failed.status().code(), ErrorCode::kInvalidConfig) << "its own error, unchanged";
  EXPECT_EQ(failed.status().message(), "MORI_SHMEM_HEAP_SIZE is not set");
  const std::string message =
      Introduced(2) + " failed during init: MORI_SHMEM_HEAP_SIZE is not set";
  EXPECT_EQ(early.Rejection().message(), message);
  std::this_thread::sleep_for(10ms);
  const auto late = JoinAll(id(), {RankOptions(1, 4), RankOptions(3, 4)});
  ExpectAllFail(late, ErrorCode::kPeerLost, message);
  EXPECT_TRUE(Eventually([&] { return server_->finished(); })) << "all four have been told";
}

TEST_F(RendezvousTest, AFailureIsReturnedThoughNobodyAnswers) {
  const UniqueId orphan = id();
  server_.reset();
  Options failing = RankOptions(0, 2);
  failing.failure = Error(ErrorCode::kInvalidConfig, "a bad value");
  EXPECT_EQ(Join(orphan, failing).status().message(), "a bad value");
}

TEST_F(RendezvousTest, ARankThatDiesBeforeTheWelcomeIsNamed) {
  auto doomed = Fake(1, 3);
  doomed.SayHello();
  auto survivor = std::async(std::launch::async, [&] { return Join(id(), RankOptions(0, 3)); });
  std::this_thread::sleep_for(20ms);
  doomed.Die();
  const Status lost = survivor.get().status();
  EXPECT_EQ(lost.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(lost.message(), Introduced(1) + " was lost during init: the connection was closed");
  ExpectAllFail(JoinAll(id(), {RankOptions(2, 3)}), ErrorCode::kPeerLost, lost.message());
}

/// Rank `doomed` of `size` gets its welcome and dies; all others are real.
void ExpectDeathAfterWelcomeIsNamed(RendezvousServer* server, int doomed, int size) {
  std::vector<Options> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != doomed) ranks.push_back(RankOptions(rank, size));
  }
  std::thread death([&] {
    FakeRank fake(server->id(), doomed, size);
    fake.SayHello();
    EXPECT_TRUE(fake.IsWelcomed());
    std::this_thread::sleep_for(5ms);
    fake.Die();
  });
  const auto joined = JoinAll(server->id(), ranks);
  death.join();
  ExpectAllFail(joined, ErrorCode::kPeerLost,
                Introduced(doomed) + " was lost during init: the connection was closed");
}

TEST_F(RendezvousTest, ARankThatDiesAfterTheWelcomeIsNamed) {
  for (const int size : {2, 3, 20}) {
    for (const int doomed : {0, 1, size - 1}) {
      Restart();
      ExpectDeathAfterWelcomeIsNamed(server_.get(), doomed, size);
    }
  }
}

TEST_F(RendezvousTest, ARankThatGivesUpAfterTheWelcomeIsQuoted) {
  for (const std::size_t length : {10, 4096, 5000}) {
    Restart();
    const std::string text(length, 'x');
    std::thread quitter([&] {
      auto fake = Fake(1, 3);
      fake.SayHello();
      EXPECT_TRUE(fake.IsWelcomed());
      fake.Say(FrameType::kAbort, EncodeStatus(Status(ErrorCode::kSystem, text)));
      EXPECT_EQ(fake.Rejection().code(), ErrorCode::kPeerLost);
    });
    const auto joined = JoinAll(id(), {RankOptions(0, 3), RankOptions(2, 3)});
    quitter.join();
    for (const auto& rank : joined) {
      EXPECT_TRUE(rank.status().message() ==
                  (Introduced(1) + " failed during init: " + text).substr(0, 4096))
          << rank.status().message().substr(0, 100) << " at length " << length;
    }
  }
}

TEST_F(RendezvousTest, AnImpostorOnOneAddressDoesNotHideTheOther) {
  Rendezvous rendezvous = *DecodeUniqueId(id());
  const IpAddress other{AF_INET, {127, 0, 0, 2}};
  auto listener = ListenOn(other, rendezvous.port);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  std::thread impostor([&] {
    ASSERT_TRUE(WaitFor(listener->get(), POLLIN, TestLimit()).ok());
    const auto fd = AcceptFrom(listener->get());
    ASSERT_TRUE(fd.ok());
    const ListenerHandshake handshake(rendezvous.name, NewRendezvous().secret);
    ASSERT_TRUE(SendAll(fd->get(), handshake.Challenge(), TestLimit()).ok());
    Bytes answer(kAnswerBytes);
    ASSERT_TRUE(ReceiveAll(fd->get(), answer, TestLimit()).ok());
    ASSERT_TRUE(SendAll(fd->get(), Bytes(sizeof(Proof)), TestLimit()).ok());
  });
  rendezvous.addresses = {other, Loopback()};
  const auto joined = JoinAll(EncodeUniqueId(rendezvous), Ranks(1));
  impostor.join();
  EXPECT_TRUE(joined[0].ok()) << joined[0].status().message();
}

TEST_F(RendezvousTest, SomethingUnexpectedFromARankIsItsLoss) {
  auto odd = Fake(1, 3), other = Fake(0, 3);
  other.SayHello();
  odd.SayHello();
  std::this_thread::sleep_for(20ms);
  odd.Say(FrameType::kGather, {1, 2, 3});
  const Status lost = other.Rejection();
  EXPECT_EQ(lost.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(lost.message(), Introduced(1) + " was lost during init: it sent something unexpected");
}

TEST_F(RendezvousTest, AFirstMessageThatIsNoHelloIsDropped) {
  auto odd = Fake(0, 2), garbled = Fake(0, 2);
  odd.Say(FrameType::kJoin, EncodeHello(odd.hello()));
  garbled.Say(FrameType::kHello, {1, 2, 3});
  EXPECT_EQ(odd.Hear().status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(garbled.Hear().status().code(), ErrorCode::kPeerLost);
  for (const auto& rank : JoinAll(id(), Ranks(2))) EXPECT_TRUE(rank.ok());
}

TEST_F(RendezvousTest, TheEndOfItsProcessIsSaid) {
  auto waiting = Fake(0, 2);
  waiting.SayHello();
  std::this_thread::sleep_for(100ms);
  server_.reset();
  const Status ended = waiting.Rejection();
  EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(ended.message(), "the process that made the unique id is ending");
}

TEST_F(RendezvousTest, ManyRanksMeet) {
  const auto joined = JoinAll(id(), Ranks(100));
  for (const auto& rank : joined) ASSERT_TRUE(rank.ok()) << rank.status().message();
  InThreads(100, [&](int rank) {
    const auto all = (*joined[static_cast<std::size_t>(rank)])
                         ->AllGather(ByteWriter().Int(rank).bytes(), TestLimit());
    ASSERT_TRUE(all.ok()) << all.status().message();
    for (int from = 0; from < 100; ++from)
      EXPECT_EQ((*all)[static_cast<std::size_t>(from)], ByteWriter().Int(from).bytes());
  });
  InThreads(100, [&](int rank) { (*joined[static_cast<std::size_t>(rank)])->Close(); });
}

TEST_F(RendezvousTest, TwoRendezvousSideBySideDoNotMix) {
  auto other = testing::StartRendezvous();
  ASSERT_TRUE(other.ok());
  std::vector<Joined> first, second;
  std::thread side([&] { second = JoinAll((*other)->id(), Ranks(3)); });
  first = JoinAll(id(), Ranks(3));
  side.join();
  for (const auto* joined : {&first, &second}) {
    for (const auto& rank : *joined) EXPECT_TRUE(rank.ok()) << rank.status().message();
  }
}

}  // namespace
}  // namespace mori::shmem
