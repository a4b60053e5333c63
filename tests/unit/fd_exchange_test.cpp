#include "node/fd_exchange.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "bootstrap/in_process_bootstrap.hpp"
#include "bootstrap/socket.hpp"
#include "node/abstract_socket.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/forked.hpp"
#include "support/shared_listener.hpp"

namespace mori::shmem {
namespace {

using testing::InThreads;
using ::testing::MatchesRegex;
using testing::RunForked;
using testing::TestLimit;
using namespace std::chrono_literals;

using Exchange = std::unique_ptr<FdExchange>;

/// A descriptor that tells whose it is by its size.
UniqueFd Marked(int mark) {
  UniqueFd fd(::memfd_create("mark", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), mark), 0);
  return fd;
}
int MarkOf(const UniqueFd& fd) {
  struct stat found {};
  return ::fstat(fd.get(), &found) == 0 ? static_cast<int>(found.st_size) : -1;
}

/// "" if `all` holds the marks 1 to `count` in order, close-on-exec.
std::string Check(const Result<std::vector<UniqueFd>>& all, int count) {
  if (!all.ok()) return all.status().message();
  if (static_cast<int>(all->size()) != count) return fmt::format("{} descriptors", all->size());
  for (int i = 0; i < count; ++i) {
    const UniqueFd& fd = (*all)[static_cast<std::size_t>(i)];
    if (MarkOf(fd) != i + 1) return fmt::format("mark {} at {}", MarkOf(fd), i);
    if ((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) == 0) return "a child would inherit it";
  }
  return "";
}

/// PEs of one node as threads.
class FdExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = FdListener::Open();
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    token_ = listener->token();
    listener_ = std::move(*listener);
  }
  void Start(int count) { ends_ = InProcessBootstrap::MakeAll(count); }

  Result<Exchange> Connect(int index, const Deadline& deadline = TestLimit(),
                           std::chrono::milliseconds patience = 10s) {
    return FdExchange::Connect(
        ends_[static_cast<std::size_t>(index)].get(), index, static_cast<int>(ends_.size()),
        index == 0 ? std::move(listener_) : FdListener(), token_, deadline, patience);
  }
  Exchange MustConnect(int index) {
    auto exchange = Connect(index);
    EXPECT_TRUE(exchange.ok()) << exchange.status().message();
    return exchange.ok() ? std::move(*exchange) : nullptr;
  }

  FdListener listener_;
  FdListener::Token token_{};
  std::vector<std::unique_ptr<Bootstrap>> ends_;
};

TEST_F(FdExchangeTest, EveryPeGetsEverybodysDescriptorsInOrder) {
  for (const int count : {1, 2, 3, 20}) {
    SetUp();
    Start(count);
    InThreads(count, [&](int index) {
      const auto exchange = MustConnect(index);
      ASSERT_NE(exchange, nullptr);
      const UniqueFd mine = Marked(index + 1);
      EXPECT_EQ(Check(exchange->AllGather(mine.get(), TestLimit()), count), "");
      EXPECT_EQ(MarkOf(mine), index + 1) << "what was passed stays the caller's";
    });
  }
}

TEST_F(FdExchangeTest, ExchangesInSequenceStayApart) {
  constexpr int kCount = 4;
  Start(kCount);
  InThreads(kCount, [&](int index) {
    const auto exchange = MustConnect(index);
    ASSERT_NE(exchange, nullptr);
    for (int round = 0; round < 20; ++round) {
      const UniqueFd mine = Marked(index + 1), shared = Marked(1000 + round);
      EXPECT_EQ(Check(exchange->AllGather(mine.get(), TestLimit()), kCount), "");
      const auto given = exchange->Broadcast(index == 0 ? shared.get() : -1, TestLimit());
      ASSERT_TRUE(given.ok()) << given.status().message();
      EXPECT_EQ(MarkOf(*given), 1000 + round);
    }
  });
}

TEST_F(FdExchangeTest, AloneGetsItsOwnBack) {
  Start(1);
  const auto exchange = MustConnect(0);
  const UniqueFd mine = Marked(1);
  EXPECT_EQ(Check(exchange->AllGather(mine.get(), TestLimit()), 1), "");
  const auto given = exchange->Broadcast(mine.get(), TestLimit());
  ASSERT_TRUE(given.ok());
  EXPECT_NE(given->get(), mine.get());
  EXPECT_EQ(MarkOf(*given), 1);
}

TEST_F(FdExchangeTest, AMissingPeEndsTheWaitWithTheDeadline) {
  Start(3);
  InThreads(2, [&](int index) {
    const Deadline deadline = index == 0 ? Deadline::After(300ms) : TestLimit();
    const auto exchange = Connect(index, deadline);
    if (index != 0) return;
    EXPECT_EQ(exchange.status().code(), ErrorCode::kTimeout);
    EXPECT_THAT(exchange.status().message(),
                MatchesRegex("the PEs of this node did not exchange their memory in [0-9.]+ s "
                             "\\(MORI_BOOTSTRAP_TIMEOUT\\)"));
  });
}

TEST_F(FdExchangeTest, ALossEndsTheWaitWithItsReason) {
  Start(3);
  std::thread loss([&] {
    std::this_thread::sleep_for(20ms);
    ends_[2]->Abort(Error(ErrorCode::kSystem, "enough"));
  });
  const auto exchange = Connect(0);
  loss.join();
  EXPECT_EQ(exchange.status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(exchange.status().message(), "rank 2 is lost: it gave up: enough");
}

TEST_F(FdExchangeTest, APeThatVanishesIsNamedByTheBootstrap) {
  constexpr int kCount = 3;
  Start(kCount);
  InThreads(kCount, [&](int index) {
    auto exchange = MustConnect(index);
    ASSERT_NE(exchange, nullptr);
    if (index == 2) {
      exchange.reset();  // its socket closes before the news of it is there
      std::this_thread::sleep_for(20ms);
      ends_[2].reset();
      return;
    }
    const UniqueFd mine = Marked(index + 1);
    const auto all = exchange->AllGather(mine.get(), TestLimit());
    EXPECT_EQ(all.status().code(), ErrorCode::kPeerLost);
    EXPECT_EQ(all.status().message(), "rank 2 is lost: it left without a word");
  });
}

TEST_F(FdExchangeTest, AnUnreachableFirstPeIsExplained) {
  Start(2);
  listener_ = FdListener();  // closed: as in another network namespace
  const auto exchange = Connect(1);
  EXPECT_EQ(exchange.status().code(), ErrorCode::kSystem);
  EXPECT_EQ(exchange.status().message(),
            "PE 1 of this node does not reach the node's first PE: connect to an abstract socket: "
            "Connection refused (errno 111) (PEs in different network namespaces, as in separate "
            "containers, and PEs of different users need different MORI_NODE_ID values)");
}

TEST_F(FdExchangeTest, StrangersDisturbNobody) {
  Start(2);
  const std::string name = FdListener::NameFor(token_);
  std::vector<UniqueFd> strangers;
  const auto call = [&](const Bytes& bytes) {
    auto fd = ConnectAbstract(name, TestLimit());
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    EXPECT_TRUE(SendAll(fd->get(), bytes, TestLimit()).ok());
    if (bytes.empty()) return;  // hangs up
    strangers.push_back(std::move(*fd));
  };
  const auto introduction = [&](std::uint32_t index, FdListener::Token token) {
    return ByteWriter().Int(index).Raw(token).Take();
  };
  call({});
  call(introduction(1, {}));      // does not know the token
  call(introduction(0, token_));  // says that it is the first
  call(introduction(2, token_));  // there is no such one
  InThreads(2, [&](int index) {
    const auto exchange = MustConnect(index);
    ASSERT_NE(exchange, nullptr);
    const UniqueFd mine = Marked(index + 1);
    EXPECT_EQ(Check(exchange->AllGather(mine.get(), TestLimit()), 2), "");
  });
}

TEST_F(FdExchangeTest, StrangersThatStaySilentHoldNobodyUp) {
  Start(3);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) {
    auto fd = ConnectAbstract(FdListener::NameFor(token_), TestLimit());
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    silent.push_back(std::move(*fd));
  }
  InThreads(3, [&](int index) {
    const auto exchange = Connect(index, TestLimit(), 1h);
    EXPECT_TRUE(exchange.ok()) << exchange.status().message();
  });
}

TEST_F(FdExchangeTest, StrangersThatKeepCallingDoNotOutlastTheDeadline) {
  Start(2);
  std::atomic<bool> done{false};
  std::vector<std::thread> strangers;  // enough for one to be there at any time
  for (int i = 0; i < 4; ++i) {
    strangers.emplace_back([&] {
      while (!done) static_cast<void>(ConnectAbstract(FdListener::NameFor(token_), TestLimit()));
    });
  }
  EXPECT_EQ(Connect(0, Deadline::After(50ms)).status().code(), ErrorCode::kTimeout);
  done = true;
  for (std::thread& stranger : strangers) stranger.join();
}

TEST_F(FdExchangeTest, WhoStaysSilentIsHungUpOn) {
  Start(2);
  auto silent = ConnectAbstract(FdListener::NameFor(token_), TestLimit());
  ASSERT_TRUE(silent.ok());
  std::thread first([&] { EXPECT_TRUE(Connect(0, TestLimit(), 1ms).ok()); });
  EXPECT_TRUE(WaitFor(silent->get(), POLLIN, TestLimit()).ok());
  Bytes read;
  EXPECT_EQ(ReceiveSome(silent->get(), 1, &read).status().code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(Connect(1).ok());
  first.join();
}

TEST_F(FdExchangeTest, APeThatIsHungUpOnCallsAgain) {
  Start(2);
  std::thread first([&] {
    for (int hung_up = 0; hung_up < 3;) {
      ASSERT_TRUE(WaitFor(listener_.fd(), POLLIN, TestLimit()).ok());
      const auto caller = AcceptAbstract(listener_.fd());
      ASSERT_TRUE(caller.ok());
      hung_up += caller->valid() ? 1 : 0;
    }
    EXPECT_TRUE(Connect(0).ok());
  });
  EXPECT_TRUE(Connect(1).ok());
  first.join();
}

TEST_F(FdExchangeTest, APeWaitsForTheAnswerNoLongerThanTheDeadline) {
  Start(2);
  EXPECT_EQ(Connect(1, Deadline::After(50ms)).status().code(), ErrorCode::kTimeout);
}

TEST_F(FdExchangeTest, TokensAndNamesAreFresh) {
  const auto other = FdListener::Open();
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->token(), token_);
  EXPECT_NE(FdListener::NameFor(other->token()), FdListener::NameFor(token_));
  EXPECT_EQ(FdListener::NameFor(token_), FdListener::NameFor(token_));
}

// ---- PEs as processes ----

/// What PE `index` of a node of processes does: exchanges, and checks what it got.
std::string ExchangeAsProcess(int index, int count, const testing::SharedListener& shared) {
  auto listener = shared.Open(index);
  if (!listener.ok()) return listener.status().message();
  const auto alone = InProcessBootstrap::MakeAll(1);  // says that all are well
  auto exchange = FdExchange::Connect(alone[0].get(), index, count, std::move(*listener),
                                      shared.token(), TestLimit());
  if (!exchange.ok()) return exchange.status().message();
  const UniqueFd mine = Marked(index + 1);
  const std::string checked = Check((*exchange)->AllGather(mine.get(), TestLimit()), count);
  alone[0]->Leave();
  return checked;
}

/// "" if all of `count` processes come by everybody's descriptors.
std::string ExchangeAmongProcesses(int count) {
  const testing::SharedListener listener;
  return RunForked(count, [&](int index) { return ExchangeAsProcess(index, count, listener); });
}

TEST(FdExchangeOfProcesses, MoreDescriptorsThanOneMessageCarries) {
  constexpr int kCount = 260;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 3 * kCount) GTEST_SKIP() << "the limit of open files is too low";
  EXPECT_EQ(ExchangeAmongProcesses(kCount), "");
}

TEST(FdExchangeOfProcesses, AnOrdinaryUserMayHaveFewDescriptorsOnTheirWay) {
  // The kernel counts what a user has sent and nobody has taken yet, against the limit of open
  // files; who may override limits is not counted.
  if (::geteuid() != 0) GTEST_SKIP() << "needs the right to become another user";
  EXPECT_EQ(RunForked(1,
                      [](int) -> std::string {
                        const rlimit limit{100, 100};
                        const bool ready =
                            ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && ::setuid(65533) == 0;
                        return ready ? ExchangeAmongProcesses(30) : "no ordinary user";
                      }),
            "");
}

TEST(FdExchangeOfProcesses, TooFewDescriptorsAreSaid) {
  const testing::SharedListener listener;
  const auto failures = RunForked(4, [&](int index) -> std::string {
    if (index == 3) {  // room for its socket and two more
      const UniqueFd lowest_free(::dup(0));
      const auto count = static_cast<rlim_t>(lowest_free.get()) + 4;
      const rlimit limit{count, count};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "setrlimit failed";
    }
    const std::string failure = ExchangeAsProcess(index, 4, listener);
    return index == 3 ? failure : "";
  });
  EXPECT_THAT(failures, MatchesRegex("process 3: only [0-3] of 4 descriptors of this node's heaps "
                                     "came through: the limit of open files of this process "
                                     "\\(ulimit -n\\) is too low for 4 PEs\n"));
}

}  // namespace
}  // namespace mori::shmem
