#include "bootstrap/acceptor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <set>

#include "bootstrap/socket.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/denied_call.hpp"
#include "support/forked.hpp"

namespace mori::shmem {
namespace {

using testing::Address;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Loopback;
using testing::RunForked;
using testing::TestLimit;
using namespace std::chrono_literals;

UniqueFd Connect(std::uint16_t port, const IpAddress& address = Loopback()) {
  auto fd = ConnectTo(address, port, TestLimit());
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  return fd.ok() ? std::move(*fd) : UniqueFd();
}

/// One of ours that has proved itself, as it would be on another machine.
Connection Prove(std::uint16_t port, const Rendezvous& rendezvous,
                 const IpAddress& address = Loopback()) {
  UniqueFd fd = Connect(port, address);
  const auto keys = ProveToListener(fd.get(), rendezvous.name, rendezvous.secret, TestLimit());
  EXPECT_TRUE(keys.ok()) << keys.status().message();
  return Connection(std::move(fd), keys.ok() ? *keys : StreamKeys{});
}

/// And has sent its first message.
Connection Call(std::uint16_t port, const Rendezvous& rendezvous, const Frame& first,
                const IpAddress& address = Loopback()) {
  Connection connection = Prove(port, rendezvous, address);
  const Status sent = connection.Send(first, TestLimit());
  EXPECT_TRUE(sent.ok()) << sent.message();
  return connection;
}

Frame Hello(std::uint32_t sender) { return {FrameType::kHello, sender, 0, {1, 2, 3}}; }

/// Reads until the other end closes. @return whether it did, in time.
bool IsDropped(int fd) {
  Bytes read;
  for (;;) {
    if (!WaitFor(fd, POLLIN, TestLimit()).ok()) return false;
    if (!ReceiveSome(fd, 4096, &read).ok()) return true;
  }
}

class AcceptorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto acceptor = Acceptor::Listen({Loopback()}, rendezvous_.name, rendezvous_.secret);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status().message();
    acceptor_.emplace(std::move(*acceptor));
  }

  /// Waits for the next caller while `meanwhile` runs.
  Acceptor::Caller Await(const std::function<void()>& meanwhile) {
    std::atomic<bool> done{false};
    std::thread other([&] {
      meanwhile();
      done = true;
    });
    const Deadline limit = TestLimit();
    std::optional<Acceptor::Caller> caller;
    while (!limit.Expired() && !(caller && done)) {
      auto event = acceptor_->Wait({}, limit.AtMost(10ms));
      EXPECT_TRUE(event.ok()) << event.status().message();
      if (!event.ok()) break;
      if (event->caller) {
        EXPECT_FALSE(caller) << "a second caller";
        caller = std::move(event->caller);
      }
    }
    other.join();
    EXPECT_TRUE(caller) << "nobody came through";
    return caller ? std::move(*caller) : Acceptor::Caller{{UniqueFd(), {}}, {}};
  }

  void ExpectARealCallerComesThrough() {
    std::optional<Connection> fd;
    const auto caller = Await([&] { fd = Call(acceptor_->port(), rendezvous_, Hello(9)); });
    EXPECT_EQ(caller.first.sender, 9u);
    EXPECT_EQ(caller.first.payload, (Bytes{1, 2, 3}));
  }

  const Rendezvous rendezvous_ = NewRendezvous();
  std::optional<Acceptor> acceptor_;
};

TEST_F(AcceptorTest, ACallerComesThroughWithItsFirstMessageAndWhatFollowed) {
  std::optional<Connection> ours;
  auto caller = Await([&] {
    ours = Prove(acceptor_->port(), rendezvous_);
    ours->Queue({FrameType::kJoin, 7, 0, {5}});
    ours->Queue({FrameType::kLetter, 7, 1, {1, 2, 3, 4}});
    ASSERT_TRUE(ours->Flush().ok());
  });
  EXPECT_EQ(caller.first.type, FrameType::kJoin);
  EXPECT_EQ(caller.first.sender, 7u);
  EXPECT_THAT(caller.first.payload, ElementsAre(5));
  const auto next = caller.connection.Receive(TestLimit());
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_THAT(next->payload, ElementsAre(1, 2, 3, 4));
  ASSERT_TRUE(caller.connection.Send({FrameType::kBye, 0, 0, {}}, TestLimit()).ok());
  const auto reply = ours->Receive(TestLimit());
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_EQ(reply->type, FrameType::kBye);
}

TEST_F(AcceptorTest, ManyCallersAtOnceAllComeThrough) {
  constexpr int kCallers = 50;
  std::vector<std::optional<Connection>> fds(kCallers);
  std::thread callers([&] {
    testing::InThreads(kCallers, [&](int i) {
      fds[static_cast<std::size_t>(i)] =
          Call(acceptor_->port(), rendezvous_, Hello(static_cast<std::uint32_t>(i)));
    });
  });
  std::set<std::uint32_t> came;
  for (const Deadline limit = TestLimit(); came.size() < kCallers && !limit.Expired();) {
    auto event = acceptor_->Wait({}, limit);
    ASSERT_TRUE(event.ok());
    if (event->caller) came.insert(event->caller->first.sender);
  }
  callers.join();
  EXPECT_EQ(came.size(), std::size_t{kCallers});
}

TEST_F(AcceptorTest, WaitReturnsForWatchedDescriptorsAndAtTheDeadline) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd watched(ends[0]);
  UniqueFd other(ends[1]);
  auto event = acceptor_->Wait({watched.get()}, Deadline::After(1ms));
  ASSERT_TRUE(event.ok());
  EXPECT_FALSE(event->caller);
  EXPECT_THAT(event->readable, IsEmpty());
  other.Reset();
  event = acceptor_->Wait({watched.get()}, TestLimit());
  ASSERT_TRUE(event.ok());
  EXPECT_THAT(event->readable, ElementsAre(watched.get()));
}

TEST_F(AcceptorTest, GarbageIsDroppedAndDisturbsNobody) {
  std::optional<Connection> fd;
  bool dropped = false;
  const auto caller = Await([&] {
    const UniqueFd stranger = Connect(acceptor_->port());
    static_cast<void>(SendAll(stranger.get(), Bytes(1 << 20, 'x'), Deadline::After(50ms)));
    dropped = IsDropped(stranger.get());
    fd = Call(acceptor_->port(), rendezvous_, Hello(9));
  });
  EXPECT_TRUE(dropped);
  EXPECT_EQ(caller.first.sender, 9u);
}

TEST_F(AcceptorTest, WhoDoesNotKnowTheSecretIsDropped) {
  std::optional<Connection> fd;
  Await([&] {
    const Rendezvous guess = NewRendezvous();
    const UniqueFd stranger = Connect(acceptor_->port());
    EXPECT_EQ(ProveToListener(stranger.get(), rendezvous_.name, guess.secret, TestLimit())
                  .status()
                  .code(),
              ErrorCode::kPeerLost);
    EXPECT_EQ(ProveToListener(Connect(acceptor_->port()).get(), guess.name, rendezvous_.secret,
                              TestLimit())
                  .status()
                  .code(),
              ErrorCode::kPeerLost);
    fd = Call(acceptor_->port(), rendezvous_, Hello(9));
  });
}

TEST_F(AcceptorTest, SilentCallersDisturbNobody) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect(acceptor_->port()));
  ExpectARealCallerComesThrough();
}

TEST_F(AcceptorTest, WhoHangsUpAtAnyPointDisturbsNobody) {
  Connect(acceptor_->port());
  ExpectARealCallerComesThrough();
  const UniqueFd half = Connect(acceptor_->port());
  ASSERT_TRUE(SendAll(half.get(), Bytes(kAnswerBytes / 2, 'x'), TestLimit()).ok());
  ::shutdown(half.get(), SHUT_RDWR);
  ExpectARealCallerComesThrough();
  std::optional<Connection> real;
  Await([&] {
    const Connection proved = Prove(acceptor_->port(), rendezvous_);
    ::shutdown(proved.fd(), SHUT_RDWR);
    real = Call(acceptor_->port(), rendezvous_, Hello(9));
  });
}

TEST_F(AcceptorTest, AHalfMessageWaitsForItsOtherHalfWithoutDisturbingOthers) {
  std::optional<Connection> fd;
  UniqueFd slow;
  Bytes wire;
  auto caller = Await([&] {
    slow = Connect(acceptor_->port());
    const auto keys =
        ProveToListener(slow.get(), rendezvous_.name, rendezvous_.secret, TestLimit());
    ASSERT_TRUE(keys.ok());
    Sealer(keys->sending).Seal(EncodeFrame(Hello(5)), &wire);
    ASSERT_TRUE(SendAll(slow.get(), ByteView(wire).first(10), TestLimit()).ok());
    fd = Call(acceptor_->port(), rendezvous_, Hello(9));
  });
  EXPECT_EQ(caller.first.sender, 9u);
  caller = Await(
      [&] { ASSERT_TRUE(SendAll(slow.get(), ByteView(wire).subspan(10), TestLimit()).ok()); });
  EXPECT_EQ(caller.first.sender, 5u);
}

TEST_F(AcceptorTest, AFirstMessageThatWasChangedOnItsWayIsDropped) {
  std::optional<Connection> fd;
  bool dropped = false;
  const auto caller = Await([&] {
    const UniqueFd odd = Connect(acceptor_->port());
    const auto keys = ProveToListener(odd.get(), rendezvous_.name, rendezvous_.secret, TestLimit());
    ASSERT_TRUE(keys.ok());
    Bytes wire;
    Sealer(keys->sending).Seal(EncodeFrame(Hello(5)), &wire);
    wire.back() ^= 1;
    ASSERT_TRUE(SendAll(odd.get(), wire, TestLimit()).ok());
    dropped = IsDropped(odd.get());
    fd = Call(acceptor_->port(), rendezvous_, Hello(9));
  });
  EXPECT_TRUE(dropped);
  EXPECT_EQ(caller.first.sender, 9u);
}

TEST_F(AcceptorTest, AFirstMessageOfAnExtravagantLengthIsDropped) {
  std::optional<Connection> fd;
  bool dropped = false;
  Await([&] {
    Connection greedy = Prove(acceptor_->port(), rendezvous_);
    static_cast<void>(
        greedy.Send({FrameType::kHello, 0, 0, Bytes((64 << 10) + 1)}, Deadline::After(50ms)));
    dropped = IsDropped(greedy.fd());
    fd = Call(acceptor_->port(), rendezvous_, Hello(9));
  });
  EXPECT_TRUE(dropped);
}

TEST_F(AcceptorTest, TheLargestFirstMessageComesThrough) {
  std::optional<Connection> fd;
  const Frame large{FrameType::kHello, 9, 0, Bytes(64 << 10, 0x3c)};
  const auto caller = Await([&] { fd = Call(acceptor_->port(), rendezvous_, large); });
  EXPECT_TRUE(caller.first.payload == large.payload);
}

TEST(AcceptorOnSeveralAddresses, HasOnePortForAll) {
  const Rendezvous rendezvous = NewRendezvous();
  auto acceptor =
      Acceptor::Listen({Loopback(), Address("127.0.0.2")}, rendezvous.name, rendezvous.secret);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().message();
  EXPECT_THAT(acceptor->addresses(), ElementsAre(Loopback(), Address("127.0.0.2")));
  std::uint32_t sender = 0;
  for (const IpAddress& address : acceptor->addresses()) {
    std::optional<Connection> fd;
    std::thread caller([&] { fd = Call(acceptor->port(), rendezvous, Hello(++sender), address); });
    const auto event = acceptor->Wait({}, TestLimit());
    caller.join();
    ASSERT_TRUE(event.ok() && event->caller) << address.ToString();
    EXPECT_EQ(event->caller->first.sender, sender);
  }
}

TEST(AcceptorOnIpv6, ACallerComesThrough) {
  const IpAddress loopback = Address("::1");
  if (!ListenOn(loopback, 0).ok()) GTEST_SKIP() << "this machine has no IPv6";
  const Rendezvous rendezvous = NewRendezvous();
  auto acceptor = Acceptor::Listen({loopback}, rendezvous.name, rendezvous.secret);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().message();
  std::optional<Connection> fd;
  std::thread caller([&] { fd = Call(acceptor->port(), rendezvous, Hello(3), loopback); });
  const auto event = acceptor->Wait({}, TestLimit());
  caller.join();
  ASSERT_TRUE(event.ok() && event->caller);
  EXPECT_EQ(event->caller->first.sender, 3u);
}

TEST(AcceptorOnAnAddressThatIsNotHere, SkipsItWhileAnotherCanBeBound) {
  const Rendezvous rendezvous = NewRendezvous();
  const IpAddress nowhere = Address("192.0.2.1"), nowhere6 = Address("2001:db8::1");
  const std::vector<IpAddress> candidates{nowhere,
                                          nowhere6,
                                          Loopback(),
                                          nowhere,
                                          nowhere6,
                                          Address("127.0.0.2"),
                                          Address("127.0.0.3"),
                                          Address("127.0.0.4")};
  auto acceptor = Acceptor::Listen(candidates, rendezvous.name, rendezvous.secret);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status().message();
  EXPECT_THAT(acceptor->addresses(),
              ElementsAre(Loopback(), Address("127.0.0.2"), Address("127.0.0.3")))
      << "the first three that can be bound";
  std::optional<Connection> fd;
  std::thread caller([&] { fd = Call(acceptor->port(), rendezvous, Hello(3)); });
  const auto event = acceptor->Wait({}, TestLimit());
  caller.join();
  EXPECT_TRUE(event.ok() && event->caller);
}

TEST(AcceptorOnAnAddressThatIsNotHere, AFamilyThatIsDeniedIsSkippedToo) {
  EXPECT_EQ(RunForked(1,
                      [](int) -> std::string {
                        if (!testing::DenyCall(SYS_socket, EACCES, AF_INET6)) return "no seccomp";
                        const Rendezvous rendezvous = NewRendezvous();
                        const auto acceptor = Acceptor::Listen({Address("::1"), Loopback()},
                                                               rendezvous.name, rendezvous.secret);
                        if (!acceptor.ok()) return acceptor.status().message();
                        return acceptor->addresses().size() == 1 ? "" : "IPv6 was published";
                      }),
            "");
}

TEST(AcceptorOnAnAddressThatIsNotHere, SaysWhichOne) {
  const Rendezvous rendezvous = NewRendezvous();
  const auto acceptor =
      Acceptor::Listen({Address("192.0.2.1")}, rendezvous.name, rendezvous.secret);
  ASSERT_FALSE(acceptor.ok());
  EXPECT_EQ(acceptor.status().code(), ErrorCode::kSystem);
  EXPECT_EQ(acceptor.status().message(),
            "listen on 192.0.2.1 port 0: Cannot assign requested address (errno 99)");
}

// ---- silent strangers

class SilentStrangers : public AcceptorTest {
 protected:
  void Listen(const Acceptor::Limits& limits) {
    auto acceptor = Acceptor::Listen({Loopback(), Address("127.0.0.2")}, rendezvous_.name,
                                     rendezvous_.secret, limits);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status().message();
    acceptor_.emplace(std::move(*acceptor));
  }
  /// Lets the acceptor work until `fd` is dropped.
  bool Drops(int fd) {
    for (const Deadline limit = TestLimit(); !limit.Expired();) {
      EXPECT_TRUE(acceptor_->Wait({}, Deadline::After(1ms)).ok());
      Bytes read;
      if (!ReceiveSome(fd, 4096, &read).ok()) return true;
    }
    return false;
  }
  /// A connection that has been accepted: its challenge is there.
  UniqueFd ConnectAndWait(const IpAddress& from = Loopback()) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    socklen_t length = 0;
    sockaddr_storage name = from.ToSockaddr(0, &length);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), length), 0);
    name = Loopback().ToSockaddr(acceptor_->port(), &length);
    ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length);
    for (const Deadline limit = TestLimit(); !limit.Expired();) {
      EXPECT_TRUE(acceptor_->Wait({}, Deadline::After(1ms)).ok());
      if (WaitFor(fd.get(), POLLIN, Deadline::After({})).ok()) return fd;
    }
    ADD_FAILURE() << "not accepted";
    return fd;
  }
  bool IsDropped(const UniqueFd& fd) {
    Bytes read;
    while (true) {
      const auto got = ReceiveSome(fd.get(), 4096, &read);
      if (!got.ok()) return true;
      if (*got == 0) return false;
    }
  }
};

TEST_F(SilentStrangers, AreDroppedWhenPatienceIsOver) {
  Listen({.strangers = 10, .patience = 1ms, .patience_when_full = 1h});
  const UniqueFd silent = ConnectAndWait();
  EXPECT_TRUE(Drops(silent.get()));
}

TEST_F(SilentStrangers, AreNotThoseWhoKnowTheSecret) {
  Listen({.strangers = 2, .patience = 1s, .patience_when_full = 1h});
  std::vector<Connection> proved;  // they are stopped before they say hello
  std::atomic<bool> done{false};
  std::thread caller([&] {
    for (int i = 0; i < 3; ++i) proved.push_back(Prove(acceptor_->port(), rendezvous_));
    done = true;
  });
  while (!done) EXPECT_TRUE(acceptor_->Wait({}, Deadline::After(1ms)).ok());
  caller.join();
  // Strangers have come later, and are dropped before.
  const UniqueFd silent = ConnectAndWait(), another = ConnectAndWait();
  EXPECT_TRUE(Drops(silent.get()));
  EXPECT_TRUE(Drops(another.get()));
  for (std::uint32_t i = 0; i < proved.size(); ++i) {
    ASSERT_TRUE(proved[i].Send(Hello(i), TestLimit()).ok());
    const auto event = acceptor_->Wait({}, TestLimit());
    ASSERT_TRUE(event.ok() && event->caller);
    EXPECT_EQ(event->caller->first.sender, i);
  }
}

TEST_F(SilentStrangers, NobodyIsDroppedForWhoComesBehind) {
  Listen({.strangers = 4, .patience = 1h, .patience_when_full = 1h});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(ConnectAndWait());
  const UniqueFd waiting = Connect(acceptor_->port());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(acceptor_->Wait({}, Deadline::After(1ms)).ok());
  for (const UniqueFd& fd : silent) EXPECT_FALSE(IsDropped(fd));
  EXPECT_FALSE(WaitFor(waiting.get(), POLLIN, Deadline::After({})).ok()) << "accepted without room";
  silent.pop_back();  // one leaves
  EXPECT_TRUE(testing::Eventually([&] {
    EXPECT_TRUE(acceptor_->Wait({}, Deadline::After(1ms)).ok());
    return WaitFor(waiting.get(), POLLIN, Deadline::After({})).ok();
  }));
}

TEST_F(SilentStrangers, TheAddressThatMostCameFromMakesRoom) {
  Listen({.strangers = 4, .patience = 1h, .patience_when_full = 1ms});
  const UniqueFd lone = ConnectAndWait(Address("127.0.0.9"));
  std::vector<UniqueFd> many;
  for (int i = 0; i < 12; ++i) many.push_back(ConnectAndWait());
  EXPECT_FALSE(IsDropped(lone));
  EXPECT_TRUE(
      std::any_of(many.begin(), many.end(), [&](const UniqueFd& fd) { return IsDropped(fd); }));
}

TEST(AcceptorUnderAFilter, AConnectionThatFailsAtAcceptIsNoShortage) {
  const Rendezvous rendezvous = NewRendezvous();
  for (const int error : {EPERM, EPROTO, ENETDOWN, EHOSTUNREACH}) {
    EXPECT_EQ(RunForked(1,
                        [&](int) -> std::string {
                          auto acceptor =
                              Acceptor::Listen({Loopback()}, rendezvous.name, rendezvous.secret);
                          const UniqueFd caller = Connect(acceptor->port());
                          if (!testing::DenyCall(SYS_accept4, error)) return "no seccomp";
                          return acceptor->Wait({}, Deadline::After(30ms)).status().message();
                        }),
              "")
        << error;
  }
}

// ---- floods: in processes of their own, whose limits they change ----

void LimitDescriptors(rlim_t count) {
  const rlimit limit{count, count};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

/// Listens, tells its port, and waits for rank 9. "" if it came.
std::string ServeOneCaller(const Rendezvous& rendezvous, rlim_t descriptors,
                           std::atomic<int>* port) {
  auto acceptor = Acceptor::Listen({Loopback()}, rendezvous.name, rendezvous.secret);
  if (!acceptor.ok()) return acceptor.status().message();
  LimitDescriptors(descriptors);
  port->store(acceptor->port());
  for (const Deadline limit = TestLimit(); !limit.Expired();) {
    auto event = acceptor->Wait({}, limit);
    if (!event.ok()) return event.status().message();
    if (event->caller) return event->caller->first.sender == 9 ? "" : "another caller came";
  }
  return "nobody came through";
}

int AwaitPort(const std::atomic<int>& port) {
  EXPECT_TRUE(testing::Eventually([&] { return port.load() != 0; }));
  return port.load();
}

TEST(AcceptorFlood, AThousandSilentConnectionsAndMoreKeepNobodyOut) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  constexpr rlim_t kConnections = 1200;  // more than are kept waiting at a time
  if (limit.rlim_max < kConnections + 100)
    GTEST_SKIP() << "the hard limit of open files is too low";
  const Rendezvous rendezvous = NewRendezvous();
  const testing::Shared<std::atomic<int>> port(0);
  const auto failures = RunForked(2, [&](int process) -> std::string {
    if (process == 0) return ServeOneCaller(rendezvous, kConnections + 100, port.get());
    LimitDescriptors(kConnections + 100);
    const auto where = static_cast<std::uint16_t>(AwaitPort(*port));
    std::vector<UniqueFd> silent;
    for (rlim_t i = 0; i < kConnections; ++i) silent.push_back(Connect(where));
    const Connection real = Call(where, rendezvous, Hello(9));
    return real.fd() >= 0 ? "" : "no connection";
  });
  EXPECT_EQ(failures, "");
}

TEST(AcceptorFlood, WithFewDescriptorsStrangersMakeRoom) {
  const Rendezvous rendezvous = NewRendezvous();
  const testing::Shared<std::atomic<int>> port(0);
  const auto failures = RunForked(2, [&](int process) -> std::string {
    if (process == 0) return ServeOneCaller(rendezvous, 40, port.get());
    const auto where = static_cast<std::uint16_t>(AwaitPort(*port));
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 100; ++i) silent.push_back(Connect(where));
    const Connection real = Call(where, rendezvous, Hello(9));
    return real.fd() >= 0 ? "" : "no connection";
  });
  EXPECT_EQ(failures, "");
}

TEST(AcceptorFlood, WithoutAnyDescriptorItSaysWhatToRaise) {
  const Rendezvous rendezvous = NewRendezvous();
  const testing::Shared<std::atomic<int>> port(0);
  const auto failures = RunForked(2, [&](int process) -> std::string {
    if (process == 0) return ServeOneCaller(rendezvous, 4, port.get());
    const auto where = static_cast<std::uint16_t>(AwaitPort(*port));
    // The listener may be gone again before connect has returned: dropped as well.
    const auto fd = ConnectTo(Loopback(), where, TestLimit());
    return !fd.ok() || IsDropped(fd->get()) ? "" : "not dropped";
  });
  EXPECT_EQ(failures,
            "process 0: accept a connection: Too many open files (errno 24); raise the limit of "
            "open files (ulimit -n)\n");
}

}  // namespace
}  // namespace mori::shmem
