#include "bootstrap/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <filesystem>
#include <future>

#include "base/fault_point.hpp"
#include "bootstrap/letter.hpp"
#include "bootstrap/socket.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/denied_call.hpp"
#include "support/forked.hpp"
#include "support/limit.hpp"

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
    const auto keys = ProveToListener(fd->get(), rendezvous->name, rendezvous->secret, TestLimit());
    EXPECT_TRUE(keys.ok()) << keys.status().message();
    if (!keys.ok()) return;
    connection_.emplace(std::move(*fd), *keys);
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
    const Status sent = connection_->Send(
        {type, static_cast<std::uint32_t>(rank_), 0, std::move(payload)}, TestLimit());
    EXPECT_TRUE(sent.ok()) << sent.message();
  }
  void Die() { connection_.reset(); }

  Result<Frame> Hear() { return connection_->Receive(TestLimit()); }
  bool IsWelcomed() {
    const auto frame = Hear();
    return frame.ok() && frame->type == FrameType::kWelcome;
  }
  /// What it is told instead of a welcome; it hangs up then.
  Status Rejection() {
    const auto frame = Hear();
    connection_.reset();
    if (!frame.ok()) return frame.status();
    EXPECT_EQ(frame->type, FrameType::kReject);
    return DecodeStatus(frame->payload);
  }

 private:
  int rank_;
  Hello hello_;
  std::optional<Connection> connection_;
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
  options.budget = 1s;  // of which the handshake takes a part
  ExpectAllFail(JoinAll(id(), {options}), ErrorCode::kTimeout,
                "1 of 2 ranks did not come within 1 s (MORI_BOOTSTRAP_TIMEOUT): missing rank 0");
}

TEST_F(RendezvousTest, WhatARankHasWaitedBeforeIsOfItsBudget) {
  auto rank = Fake(1, 2);
  rank.hello().budget = 1h;
  rank.hello().waited = 1h;
  rank.SayHello();
  EXPECT_EQ(rank.Rejection().message(),
            "1 of 2 ranks did not come within 3600 s (MORI_BOOTSTRAP_TIMEOUT): missing rank 0");
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

TEST_F(RendezvousTest, AnotherProtocolVersionIsNamedToAll) {
  auto ours = Fake(0, 2), newer = Fake(1, 2);
  ours.SayHello();
  std::this_thread::sleep_for(20ms);
  newer.hello().protocol = kProtocolVersion + 1;
  newer.hello().version = "9.0.0";
  Bytes hello = EncodeHello(newer.hello());
  hello.insert(hello.end(), {1, 2, 3});  // a field that this library does not know
  newer.Say(FrameType::kHello, hello);
  for (FakeRank* rank : {&ours, &newer}) {
    const Status rejection = rank->Rejection();
    EXPECT_EQ(rejection.code(), ErrorCode::kMismatch);
    EXPECT_THAT(rejection.message(),
                StartsWith(fmt::format(
                    "{} has version 9.0.0 of the library, which speaks version {} of the "
                    "bootstrap's protocol; the process that made the unique id has version ",
                    Introduced(1), kProtocolVersion + 1)));
    EXPECT_THAT(rejection.message(),
                ::testing::EndsWith(fmt::format(", which speaks {}", kProtocolVersion)));
  }
}

/// A rank that cannot listen for its children, or has no descriptor left, fails by itself: the
/// others hear why, at once.
TEST_F(RendezvousTest, AFailureToListenReachesAll) {
  Options failing = RankOptions(0, 3);
  failing.listen_addresses = {testing::Address("192.0.2.1")};
  const auto joined = JoinAll(id(), {failing, RankOptions(1, 3), RankOptions(2, 3)});
  const std::string why = "listen on 192.0.2.1 port 0: Cannot assign requested address (errno 99)";
  EXPECT_EQ(joined[0].status().message(), why) << "its own error, unchanged";
  for (const int rank : {1, 2}) {
    EXPECT_EQ(joined[static_cast<std::size_t>(rank)].status().message(),
              Introduced(0) + " failed during init: " + why);
  }
}

TEST_F(RendezvousTest, ARankOutOfRangeReachesAll) {
  auto waiting = Fake(0, 3);
  waiting.SayHello();
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(Join(id(), RankOptions(7, 3)).ok());
  EXPECT_THAT(waiting.Rejection().message(), StartsWith(Introduced(7) + " failed during init: "));
}

/// A child that cannot reach its parent complains of it; the parent's own end is what all hear.
TEST_F(RendezvousTest, AComplaintOfARankWaitsForWhatThatRankSays) {
  auto parent = Fake(0, 3), child = Fake(1, 3), other = Fake(2, 3);
  for (FakeRank* rank : {&parent, &child, &other}) rank->SayHello();
  for (FakeRank* rank : {&parent, &child, &other}) EXPECT_TRUE(rank->IsWelcomed());
  child.Say(FrameType::kAbort,
            EncodeFailure({Error(ErrorCode::kPeerLost, "the connection was closed"), 0}));
  std::this_thread::sleep_for(50ms);
  parent.Die();
  const std::string told = Introduced(0) + " was lost during init: the connection was closed";
  EXPECT_EQ(child.Rejection().message(), told);
  EXPECT_EQ(other.Rejection().message(), told);
}

TEST_F(RendezvousTest, WhatASuspectSaysOfItsOwnFailureIsTold) {
  auto root = Fake(0, 3), middle = Fake(1, 3), leaf = Fake(2, 3);
  for (FakeRank* rank : {&root, &middle, &leaf}) rank->SayHello();
  for (FakeRank* rank : {&root, &middle, &leaf}) EXPECT_TRUE(rank->IsWelcomed());
  leaf.Say(FrameType::kAbort, EncodeFailure({Error(ErrorCode::kPeerLost, "rank 1 is gone"), 1}));
  std::this_thread::sleep_for(50ms);
  middle.Say(FrameType::kAbort, EncodeFailure({Error(ErrorCode::kPeerLost, "rank 0 is gone"), 0}));
  std::this_thread::sleep_for(50ms);
  root.Say(FrameType::kAbort, EncodeFailure({Error(ErrorCode::kSystem, "no memory")}));
  const std::string told = Introduced(0) + " failed during init: no memory";
  for (FakeRank* rank : {&root, &middle, &leaf}) EXPECT_EQ(rank->Rejection().message(), told);
}

TEST_F(RendezvousTest, AComplaintOfARankThatIsWellIsToldAfterAWhile) {
  auto parent = Fake(0, 2), child = Fake(1, 2);
  for (FakeRank* rank : {&parent, &child}) rank->SayHello();
  for (FakeRank* rank : {&parent, &child}) EXPECT_TRUE(rank->IsWelcomed());
  child.Say(FrameType::kAbort, EncodeFailure({Error(ErrorCode::kPeerLost, "no route"), 0}));
  const std::string told = Introduced(1) + " failed during init: no route";
  EXPECT_EQ(child.Rejection().message(), told);
  EXPECT_EQ(parent.Rejection().message(), told);
}

/// A process that takes the hello and says nothing more.
TEST(SilentRendezvous, IsWaitedForNoLongerThanTheBudget) {
  Rendezvous rendezvous = NewRendezvous();
  auto acceptor = Acceptor::Listen({Loopback()}, rendezvous.name, rendezvous.secret);
  ASSERT_TRUE(acceptor.ok());
  rendezvous.addresses = acceptor->addresses();
  rendezvous.port = acceptor->port();
  std::optional<Acceptor::Caller> caller;
  std::thread server([&] { caller = std::move(acceptor->Wait({}, TestLimit())->caller); });
  Options options = RankOptions(0, 2);
  options.budget = 1s;  // of which the handshake takes a part
  const auto joined = SocketBootstrap::Connect(rendezvous, options);
  server.join();
  EXPECT_EQ(joined.status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(joined.status().message(),
            fmt::format("the rendezvous at 127.0.0.1 port {} did not answer within 1 s "
                        "(MORI_BOOTSTRAP_TIMEOUT)",
                        rendezvous.port));
}

TEST(SilentRendezvous, HearsHowMuchOfTheBudgetWasOverBefore) {
  Rendezvous rendezvous = NewRendezvous();
  auto acceptor = Acceptor::Listen({Loopback()}, rendezvous.name, rendezvous.secret);
  ASSERT_TRUE(acceptor.ok());
  rendezvous.addresses = acceptor->addresses();
  rendezvous.port = acceptor->port();
  std::optional<Acceptor::Caller> caller;
  std::thread server([&] {
    caller = std::move(acceptor->Wait({}, TestLimit())->caller);
    if (caller) caller->connection = Connection(UniqueFd(), {});  // hangs up
  });
  Options options = RankOptions(0, 2);
  options.budget = 1h;
  options.waited = 20min;
  EXPECT_EQ(SocketBootstrap::Connect(rendezvous, options).status().code(), ErrorCode::kPeerLost);
  server.join();
  ASSERT_TRUE(caller.has_value());
  const auto hello = DecodeHello(caller->first.payload);
  ASSERT_TRUE(hello.ok());
  EXPECT_GE(hello->waited, 20min);
}

TEST_F(RendezvousTest, WhoIsLateIsSaid) {
  ::testing::internal::CaptureStderr();
  Options options = RankOptions(1, 3);
  options.budget = 1s;  // half of which passes before the line
  const Joined joined = Join(id(), options);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(joined.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(said, ::testing::ContainsRegex(
                        "still waiting for 2 of 3 ranks to come to init, [0-9.]+ s: ranks 0, 2\n"));
  EXPECT_THAT(said, ::testing::ContainsRegex("still waiting for all 3 ranks to come to init, "));
}

/// Two ranks of which the test plays one: the child of the other in the tree.
class PlayedChild : public RendezvousTest {
 protected:
  /// To rank 0, of a call of all ranks of a kind (1 an all-gather, 2 a combination, as init ends
  /// with).
  static Frame Letter(std::uint8_t kind, std::uint32_t sequence) {
    return {FrameType::kLetter, 1, 0,
            EncodeLetter({1, 0, {}, ByteWriter().Int(kind).Int(sequence).Take()})};
  }
  /// Joins as rank 1; what becomes of rank 0 is in `joined`.
  void Play(const std::function<void(Connection*)>& after_join, Joined* joined) {
    std::thread real([&] { *joined = Join(id(), RankOptions(0, 2)); });
    auto fake = Fake(1, 2);
    fake.SayHello();
    const auto welcome = fake.Hear();
    ASSERT_TRUE(welcome.ok()) << welcome.status().message();
    const auto place = DecodeWelcome(welcome->payload, 2);
    ASSERT_TRUE(place.ok()) << place.status().message();
    EXPECT_EQ(place->parent_rank, 0);
    auto fd = ConnectTo(place->parent.addresses[0], place->parent.port, TestLimit());
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    const auto rendezvous = DecodeUniqueId(id());
    const auto keys = ProveToListener(fd->get(), rendezvous->name, rendezvous->secret, TestLimit());
    ASSERT_TRUE(keys.ok());
    Connection link(std::move(*fd), *keys);
    EXPECT_TRUE(link.Send({FrameType::kJoin, 1, 0, {}}, TestLimit()).ok());
    after_join(&link);
    real.join();
  }
};

TEST_F(PlayedChild, AnotherCallIsRefused) {
  Joined joined = Status(ErrorCode::kInternal, "did not return");
  Play([](Connection* link) { EXPECT_TRUE(link->Send(Letter(1, 0), TestLimit()).ok()); }, &joined);
  EXPECT_EQ(joined.status().message(),
            "rank 1 makes an all-gather where rank 0 makes a combination");
}

TEST_F(PlayedChild, AMessageOfAnotherExchangeIsRefused) {
  Joined joined = Status(ErrorCode::kInternal, "did not return");
  Play([](Connection* link) { EXPECT_TRUE(link->Send(Letter(2, 5), TestLimit()).ok()); }, &joined);
  EXPECT_EQ(joined.status().message(), "rank 1 is at exchange 5, rank 0 at 0");
}

TEST_F(PlayedChild, AMessageInAnotherNameOrOutOfPlaceIsALoss) {
  struct Row {
    Frame frame;
    const char* reason;
  };
  const Bytes one = ByteWriter().Int<std::uint32_t>(1).Text("x").Take();
  const Row rows[] = {
      {{FrameType::kLetter, 0, 0, one}, "it sent a message in another rank's name"},
      {{FrameType::kLetter, 1, 0, one}, "it sent a message out of place"},
      {{FrameType::kLetter, 1, 0, EncodeLetter({1, 1, {}, {}})}, "it sent a message out of place"},
      {{FrameType::kLetter, 1, 0, EncodeLetter({1, 2, {}, {}})}, "it sent a message out of place"},
      {{FrameType::kLetter, 1, 0, EncodeLetter({-1, 0, {}, {}})}, "it sent a message out of place"},
      {{FrameType::kHello, 1, 0, {}}, "it sent a message out of place"},
      {{FrameType::kMissing, 1, 0, {}}, "it sent a message out of place"},
      {{FrameType::kCensus, 1, 0, {}}, "it sent a message out of place"},
      {{FrameType::kPresence, 1, 0, {1, 2}}, "it sent a message out of place"},
      {{FrameType::kLost, 1, 0, {9}}, "it sent a message out of place"},
  };
  for (const Row& row : rows) {
    Restart();
    Joined joined = Status(ErrorCode::kInternal, "did not return");
    Play([&](Connection* link) { EXPECT_TRUE(link->Send(row.frame, TestLimit()).ok()); }, &joined);
    EXPECT_EQ(joined.status().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(joined.status().message(), ::testing::HasSubstr(row.reason));
  }
}

TEST_F(PlayedChild, AMessageOutOfPlaceIsALossBeforeTheShapeIsKnown) {
  static std::atomic<bool> has_come;
  has_come = false;
  fault_hook = [](const char* point) {
    if (std::string_view(point) == "bootstrap: a letter waits for the tree") has_come = true;
    if (std::string_view(point) == "init: tree started") {
      EXPECT_TRUE(Eventually([] { return has_come.load(); }));
    }
  };
  Joined joined = Status(ErrorCode::kInternal, "did not return");
  Play(
      [](Connection* link) {
        const Frame to_itself{FrameType::kLetter, 1, 0, EncodeLetter({1, 1, {}, {}})};
        EXPECT_TRUE(link->Send(to_itself, TestLimit()).ok());
      },
      &joined);
  fault_hook = nullptr;
  EXPECT_EQ(joined.status().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(joined.status().message(), ::testing::HasSubstr("it sent a message out of place"));
}

TEST_F(PlayedChild, WhoIsDeclaredLostIsHungUpOn) {
  Joined joined = Status(ErrorCode::kInternal, "did not return");
  Status end;
  Play(
      [&](Connection* link) {
        EXPECT_TRUE(link->Send(Letter(2, 0), TestLimit()).ok());
        const auto table = link->Receive(TestLimit());  // its init is over, and it stays
        EXPECT_TRUE(table.ok()) << table.status().message();
        EXPECT_TRUE(link->Send({FrameType::kHello, 1, 0, {}}, TestLimit()).ok());
        end = link->Receive(TestLimit()).status();
      },
      &joined);
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_EQ(end.code(), ErrorCode::kPeerLost) << end.message();
}

TEST_F(PlayedChild, AMessageThatWasChangedOnItsWayIsALoss) {
  Joined joined = Status(ErrorCode::kInternal, "did not return");
  Play(
      [](Connection* link) {
        EXPECT_TRUE(SendAll(link->fd(), ByteWriter().Int<std::uint32_t>(20).Raw(Bytes(20)).bytes(),
                            TestLimit())
                        .ok());
      },
      &joined);
  EXPECT_THAT(joined.status().message(),
              ::testing::HasSubstr("a message on a bootstrap connection was changed on its way"));
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
      fake.Say(FrameType::kAbort, EncodeFailure({Status(ErrorCode::kSystem, text)}));
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
  odd.Say(FrameType::kLetter, {1, 2, 3});
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
  auto first = Fake(0, 2), second = Fake(1, 2);
  for (FakeRank* rank : {&first, &second}) rank->SayHello();
  for (FakeRank* rank : {&first, &second}) EXPECT_TRUE(rank->IsWelcomed());
  std::thread end([&] { server_.reset(); });  // waits for both to hang up
  for (FakeRank* rank : {&first, &second}) {
    const Status ended = rank->Rejection();
    EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(ended.message(), "the process that made the unique id is ending");
  }
  end.join();
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
  InThreads(100, [&](int rank) { (*joined[static_cast<std::size_t>(rank)])->Leave(); });
}

TEST_F(RendezvousTest, AnIdThatNobodyUsesEnds) {
  auto server = RendezvousServer::Start({Loopback()}, 20ms);
  ASSERT_TRUE(server.ok());
  std::this_thread::sleep_for(40ms);
  const auto late = Join((*server)->id(), RankOptions(1, 2));
  EXPECT_THAT(late.status().message(), StartsWith("no rank used this unique id for "));
  EXPECT_TRUE(Eventually([&] { return (*server)->finished(); }));
}

TEST_F(RendezvousTest, AClaimedIdIsOver) {
  EXPECT_TRUE(server_->Claim());
  EXPECT_FALSE(server_->Claim());
  EXPECT_TRUE(Eventually([&] { return server_->finished(); }));
  EXPECT_EQ(Join(id(), RankOptions(0, 1)).status().code(), ErrorCode::kPeerLost);
}

TEST_F(RendezvousTest, AnIdThatARankHasComeForCannotBeClaimed) {
  auto rank = Fake(0, 1);
  rank.SayHello();
  EXPECT_TRUE(rank.IsWelcomed());
  EXPECT_FALSE(server_->Claim());
  rank.Say(FrameType::kBye, {});
  EXPECT_TRUE(Eventually([&] { return server_->finished(); }));
}

int Threads() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

/// Ids of the process's service: in a process of its own each.
Config OnLoopback() {
  Config config;
  config.socket_ifname = "lo";
  return config;
}

TEST(RendezvousService, UnusedIdsShareOneThread) {
  EXPECT_EQ(testing::RunForked(1,
                               [](int) -> std::string {
                                 std::vector<UniqueId> ids;
                                 int with_one = 0;
                                 for (int i = 0; i < 20; ++i) {
                                   ids.push_back(*RendezvousService::Instance().Open(OnLoopback()));
                                   if (i == 0) with_one = Threads();
                                 }
                                 if (Threads() > with_one) return "a thread for each";
                                 for (const UniqueId& id : {ids[7], ids[0], ids[19]}) {
                                   std::vector<Options> ranks{RankOptions(0, 2), RankOptions(1, 2)};
                                   for (const auto& joined : JoinAll(id, ranks)) {
                                     if (!joined.ok()) return joined.status().message();
                                   }
                                 }
                                 return "";
                               }),
            "");
}

#ifdef SYS_epoll_wait
TEST(RendezvousUnderAFilter, ThatItCannotHearTheRanksReachesThem) {
  EXPECT_EQ(
      testing::RunForked(1,
                         [](int) -> std::string {
                           if (!testing::DenyCall(SYS_epoll_wait, EPERM)) return "no seccomp";
                           const auto server = testing::StartRendezvous();
                           if (!server.ok()) return server.status().message();
                           FakeRank rank((*server)->id(), 0, 2);
                           rank.SayHello();
                           const std::string said = rank.Rejection().message();
                           if (said != "wait for what ranks say: Operation not permitted (errno 1)")
                             return said;
                           return "";
                         }),
      "");
}
#endif

TEST(JoinedRanks, AreHeardThoughTheSystemDoesNotSayWhoSpeaks) {
  EXPECT_EQ(testing::RunForked(1,
                               [](int) -> std::string {
                                 const auto server = testing::StartRendezvous();
                                 if (!server.ok()) return server.status().message();
                                 const auto joined = JoinAll(
                                     (*server)->id(),
                                     {RankOptions(0, 3), RankOptions(1, 3), RankOptions(2, 3)});
                                 for (const Joined& one : joined) {
                                   if (!one.ok()) return one.status().message();
                                 }
                                 // poll(2) takes no more entries than that: a wait for one
                                 // connection still works.
                                 const testing::Limit limit(RLIMIT_NOFILE, 1);
                                 std::vector<Status> met(joined.size());
                                 for (int round = 0; round < 3; ++round) {
                                   InThreads(3, [&](int i) {
                                     const auto index = static_cast<std::size_t>(i);
                                     met[index] = (*joined[index])->Barrier(Deadline::After(20s));
                                   });
                                   for (const Status& one : met) {
                                     if (!one.ok()) return one.message();
                                   }
                                 }
                                 return "";
                               }),
            "");
}

std::atomic<bool> is_awaited{false};

TEST(RendezvousService, AForkDoesNotWaitForALastWord) {
  const auto body = [](int) -> std::string {
    RendezvousService& service = RendezvousService::Instance();
    const auto id = service.Open(OnLoopback());
    if (!id.ok()) return id.status().message();
    FakeRank rank(*id, 0, 2);  // the other never comes: nobody has a last word
    rank.SayHello();
    fault_hook = [](const char* point) {
      if (std::string_view(point) == "rendezvous: the last word is awaited") is_awaited = true;
    };
    // A machine that is busy may stop this thread for as long as the other waits.
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::atomic<bool> has_ended{false};
      is_awaited = false;
      std::thread waiting([&] {
        // Nothing is awaited before the first rank's call has been heard.
        while (!is_awaited) service.AwaitLastWord(DecodeUniqueId(*id)->name);
        has_ended = true;
      });
      while (!is_awaited) std::this_thread::yield();
      // Forks that wait for the other thread end together with it, the first of them a little
      // before.
      for (int forks = 0; forks < 100; ++forks) {
        service.BeforeFork();
        service.AfterForkInParent();
        ::usleep(1000);
      }
      const bool did_wait = has_ended;
      waiting.join();
      if (!did_wait) return "";
    }
    return "the fork waited";
  };
  EXPECT_EQ(testing::RunForked(1, body), "");
}

TEST(RendezvousService, TheAddressOfAClaimedIdIsFree) {
  EXPECT_EQ(testing::RunForked(
                1,
                [](int) -> std::string {
                  RendezvousService& service = RendezvousService::Instance();
                  const auto kept = service.Open(OnLoopback()), id = service.Open(OnLoopback());
                  if (!kept.ok() || !id.ok()) return "no id";
                  std::this_thread::sleep_for(20ms);  // by then the listeners are waited at
                  const auto where = DecodeUniqueId(*id);
                  if (!service.Claim(where->name).ok()) return "not claimed";
                  const auto is_free = [&] {
                    return ListenOn(where->addresses[0], where->port).ok();
                  };
                  return Eventually(is_free) ? "" : "still listened at";
                }),
            "");
}

TEST(RendezvousService, WhoHasAnIdHearsThatItsMakerHasGivenUp) {
  RendezvousService& service = RendezvousService::Instance();
  const auto id = service.Open(OnLoopback());
  ASSERT_TRUE(id.ok()) << id.status().message();
  const auto expect_told = [&](int rank) {
    const auto joined = Join(*id, RankOptions(rank, 3));
    EXPECT_EQ(joined.status().code(), ErrorCode::kMismatch) << rank;
    EXPECT_EQ(joined.status().message(), "rank 2 says that there are 4 ranks") << rank;
  };
  std::thread first([&] { expect_told(1); });
  service.GiveUp(*id, Error(ErrorCode::kMismatch, "rank 2 says that there are 4 ranks"), 2);
  expect_told(2);  // comes later
  first.join();
}

TEST(RendezvousService, AChildOfAForkServesIdsOfItsOwn) {
  EXPECT_EQ(testing::RunForked(1,
                               [](int) -> std::string {
                                 if (!RendezvousService::Instance().Open(OnLoopback()).ok())
                                   return "no id in the parent";
                                 return testing::RunForked(1, [](int) -> std::string {
                                   const auto id = RendezvousService::Instance().Open(OnLoopback());
                                   if (!id.ok()) return id.status().message();
                                   std::vector<Options> ranks{RankOptions(0, 2), RankOptions(1, 2)};
                                   for (const auto& joined : JoinAll(*id, ranks)) {
                                     if (!joined.ok()) return joined.status().message();
                                   }
                                   return "";
                                 });
                               }),
            "");
}

TEST(RendezvousService, AWorldOfOneNeedsNoNetwork) {
  const auto failures = testing::RunForked(1, [](int) -> std::string {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
      return "no namespace";
    const auto id = RendezvousService::Instance().Open(Config{});  // not even lo is up here
    if (!id.ok()) return id.status().message();
    const auto two = Join(*id, RankOptions(0, 2)).status().message();
    if (two !=
        "nobody can call the process that made this unique id, which serves one world of one "
        "there: this machine has no network interface that is up, not even lo")
      return two;
    auto alone = Join(*id, RankOptions(0, 1));
    if (!alone.ok()) return alone.status().message();
    const auto all = (*alone)->AllGather(Bytes{1, 2}, TestLimit());
    if (!all.ok() || all->size() != 1 || (*all)[0] != Bytes{1, 2}) return "no exchange";
    (*alone)->Leave();
    return Join(*id, RankOptions(0, 1)).ok() ? "an id served twice" : "";
  });
  if (failures.find("no namespace") != std::string::npos)
    GTEST_SKIP() << "this process may not make a network namespace";
  EXPECT_EQ(failures, "");
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
