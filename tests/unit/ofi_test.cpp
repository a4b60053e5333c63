// What the transport over libfabric adds to what every remote transport owes: choice of a network,
// forks, processes that die, messages of strangers.
#include "transport/ofi/ofi_transport.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>

#include "support/forked.hpp"
#include "support/remote_pes.hpp"
#include "transport/factory.hpp"

namespace mori::shmem {
namespace {

using detail::AtomicOp;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::RemoteNetwork;
using testing::RemotePe;
using testing::RemotePes;
using testing::TestLimit;

#define ASSERT_DONE(expression)                             \
  do {                                                      \
    const Status mori_status = (expression);                \
    ASSERT_TRUE(mori_status.ok()) << mori_status.message(); \
  } while (false)

Result<std::unique_ptr<RemoteTransport>> Make(RemoteParts parts, const std::string& provider = "") {
  OfiOptions options;
  options.provider = provider;
  options.addresses = {testing::Loopback()};
  return MakeOfiTransport(options, std::move(parts));
}

class OverOfi final : public RemoteNetwork {
 public:
  std::unique_ptr<RemoteTransport> Join(RemoteParts parts) override {
    auto made = Make(std::move(parts));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(*made) : nullptr;
  }
  void Lose(int) override {}
};

class Ofi : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status is_here = Make({}).status();
    if (is_here.code() == ErrorCode::kUnsupported) GTEST_SKIP() << is_here.message();
    ASSERT_TRUE(is_here.ok()) << is_here.message();
  }
  static RemotePes MakePes(int n_pes) { return {std::make_unique<OverOfi>(), n_pes}; }
};

// ---- choice

TEST_F(Ofi, SaysWhichNetworkItIs) {
  const auto made = Make({});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->name(), "ofi");
  EXPECT_THAT((*made)->Describe(), ::testing::MatchesRegex("libfabric [0-9.]+, tcp.* over lo .*"));
}

TEST_F(Ofi, AProviderThatIsNotThereIsNamed) {
  const Status status = Make({}, "carrier_pigeon").status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("MORI_OFI_PROVIDER=\"carrier_pigeon\""));
}

TEST_F(Ofi, ForeignAddressesAreNoNetwork) {
  OfiOptions options;
  options.addresses = {testing::Address("192.0.2.77")};
  const Status status = MakeOfiTransport(options, {}).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.message();
  options.addresses.clear();
  const Status none = MakeOfiTransport(options, {}).status();
  EXPECT_EQ(none.code(), ErrorCode::kUnsupported) << none.message();
}

TEST_F(Ofi, TheFactoryFollowsTheConfiguration) {
  const auto make = [](Config config) {
    config.socket_ifname = "lo";
    return MakeRemoteTransport(config, {});
  };
  EXPECT_TRUE(make({}).ok()) << make({}).status().message();
  Config config;
  config.network = Network::kOfi;
  config.ofi_provider = "tcp;ofi_rxm";
  EXPECT_TRUE(make(config).ok());
  config.network = Network::kVerbs;
  EXPECT_THAT(make(config).status().message(), HasSubstr("MORI_SHMEM_TRANSPORT=verbs"));
  config.network = Network::kP2p;
  EXPECT_THAT(make(config).status().message(), HasSubstr("MORI_SHMEM_TRANSPORT=p2p"));
}

TEST_F(Ofi, PesOfDifferentNetworksDoNotMeet) {
  RemoteParts parts;
  parts.n_pes = 2;
  auto mine = Make(parts);
  parts.self = 1;
  auto other = Make(parts);
  ASSERT_TRUE(mine.ok() && other.ok());
  Bytes address = (*other)->Address();
  const auto at =
      std::search(address.begin(), address.end(), std::begin("tcp"), std::begin("tcp") + 3);
  ASSERT_NE(at, address.end());
  *at = 'u';
  const Bytes all[] = {(*mine)->Address(), address};
  const Status status = (*mine)->Connect(all, TestLimit());
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_THAT(status.message(), HasSubstr("MORI_OFI_PROVIDER"));
}

// ---- descriptors

/// TCP sockets over IP of this process, and of these how many stay open over an exec.
struct Sockets {
  int all = 0;
  int kept_over_exec = 0;
};
Sockets CountSockets() {
  Sockets count;
  for (int fd = 0; fd < 4096; ++fd) {
    int type = 0;
    socklen_t bytes = sizeof type;
    sockaddr_storage name{};
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM) continue;
    bytes = sizeof name;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes);
    if (name.ss_family != AF_INET && name.ss_family != AF_INET6) continue;
    ++count.all;
    count.kept_over_exec += (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0 ? 1 : 0;
  }
  return count;
}

void PutBothWays(RemotePes& pes, std::uint64_t value) {
  for (const int from : {0, 1}) {
    const int to = 1 - from;
    ASSERT_DONE(pes[from].channel().Put(to, pes[to].place(0), &value, 8));
    ASSERT_DONE(pes[from].channel().Quiet());
    ASSERT_EQ(pes[to].word<std::uint64_t>(0).load(), value);
  }
}

TEST_F(Ofi, AForkedChildHasNoConnectionAndLeavesThemWhole) {
  const int before = CountSockets().all;
  RemotePes pes = MakePes(2);
  PutBothWays(pes, 1);
  EXPECT_GE(CountSockets().all, before + 4) << "listening twice, and both ends of a connection";
  const std::string failure = testing::RunForked(1, [&](int) -> std::string {
    const int left = CountSockets().all;
    return left == before ? "" : fmt::format("{} sockets, {} before", left, before);
  });
  EXPECT_EQ(failure, "");
  PutBothWays(pes, 2);
}

TEST_F(Ofi, ConnectionsCloseOnExec) {
  RemotePes pes = MakePes(2);
  PutBothWays(pes, 1);
  EXPECT_TRUE(Eventually([] { return CountSockets().kept_over_exec == 0; }));
}

// ---- processes

/// What each of several forked processes tells the others.
struct Shown {
  std::atomic<bool> is_there{false};
  std::size_t bytes = 0;
  std::uint8_t address[256];
  RemotePlace place;
};
struct Showcase {
  Shown pes[3];
  std::atomic<int> met[8];
};

std::string Text(const Status& status) { return status.ok() ? "" : status.message(); }

/// A PE in a process of its own, connected to the others.
class ProcessPe {
 public:
  ProcessPe(int self, int n_pes, Showcase* showcase)
      : pe_(self, n_pes), showcase_(showcase), n_pes_(n_pes) {
    OverOfi network;
    pe_.Join(&network);
    Shown& mine = showcase->pes[self];
    const Bytes address = pe_.transport()->Address();
    mine.bytes = address.size();
    std::copy(address.begin(), address.end(), mine.address);
    mine.place = pe_.place(0);
    mine.is_there = true;
    std::vector<Bytes> all;
    for (int pe = 0; pe < n_pes; ++pe) {
      const Shown& other = showcase->pes[pe];
      EXPECT_TRUE(Eventually([&] { return other.is_there.load(); }));
      all.emplace_back(other.address, other.address + other.bytes);
    }
    EXPECT_EQ(Text(pe_.transport()->Connect(all, TestLimit())), "");
    Meet(0);
  }
  Channel& channel() { return pe_.channel(); }
  RemotePe& pe() { return pe_; }
  RemotePlace place(int pe, std::size_t offset) const {
    const RemotePlace start = showcase_->pes[pe].place;
    return {start.address + offset, start.key};
  }
  void Meet(int round) {
    ++showcase_->met[round];
    EXPECT_TRUE(Eventually([&] { return showcase_->met[round] == n_pes_; }));
  }

 private:
  RemotePe pe_;
  Showcase* showcase_;
  int n_pes_;
};

TEST_F(Ofi, ProcessesReachEachOther) {
  testing::Shared<Showcase> showcase;
  EXPECT_EQ(
      testing::RunForked(3,
                         [&](int self) -> std::string {
                           ProcessPe me(self, 3, showcase.get());
                           std::vector<std::uint64_t> data(30'000, self + 1);
                           for (int pe = 0; pe < 3; ++pe) {
                             const Status put = me.channel().Put(
                                 pe, me.place(pe, 1024 + self * 240'000), data.data(), 240'000);
                             if (!put.ok()) return put.message();
                             for (int i = 0; i < 100; ++i) {
                               const Status post = me.channel().Post(pe, me.place(pe, 0),
                                                                     AtomicOp::kFetchAdd, 8, 1);
                               if (!post.ok()) return post.message();
                             }
                           }
                           if (const Status quiet = me.channel().Quiet(); !quiet.ok())
                             return quiet.message();
                           me.Meet(1);
                           if (me.pe().word<std::uint64_t>(0).load() != 300) return "a wrong sum";
                           for (int pe = 0; pe < 3; ++pe) {
                             const auto* got = reinterpret_cast<const std::uint64_t*>(
                                 me.pe().memory(1024 + static_cast<std::size_t>(pe) * 240'000));
                             for (int i = 0; i < 30'000; ++i) {
                               if (got[i] != static_cast<std::uint64_t>(pe) + 1)
                                 return fmt::format("word {} of PE {} is {}", i, pe, got[i]);
                             }
                           }
                           me.Meet(2);
                           return "";
                         }),
      "");
}

TEST_F(Ofi, AKilledProcessIsLostAndOthersAreServed) {
  testing::Shared<Showcase> showcase;
  std::atomic<int>& killed = showcase->met[7];
  const std::string failures = testing::RunForked(3, [&](int self) -> std::string {
    ProcessPe me(self, 3, showcase.get());
    const std::uint64_t one = 1;
    Channel& channel = me.channel();
    for (int pe = 0; pe < 3; ++pe) {
      if (const Status put = channel.Put(pe, me.place(pe, 8), &one, 8); !put.ok())
        return put.message();
    }
    if (const Status quiet = channel.Quiet(); !quiet.ok()) return quiet.message();
    me.Meet(1);
    if (self == 2) {
      killed = 1;
      ::kill(::getpid(), SIGKILL);
    }
    EXPECT_TRUE(Eventually([&] { return killed == 1; }));
    Status lost;
    std::uint64_t found = 0;
    const std::vector<std::uint8_t> large(1 << 20);
    EXPECT_TRUE(Eventually([&] {
      lost = self == 0 ? channel.Fetch(2, me.place(2, 0), AtomicOp::kFetchAdd, 8, 1, 0, &found)
                       : channel.Put(2, me.place(2, 4096), large.data(), large.size());
      return !lost.ok();
    }));
    if (lost.code() != ErrorCode::kPeerLost) return "not lost: " + lost.message();
    for (int i = 0; i < 200; ++i) {
      const Status fetch =
          channel.Fetch(1 - self, me.place(1 - self, 0), AtomicOp::kFetchAdd, 8, 1, 0, &found);
      if (!fetch.ok()) return fetch.message();
    }
    if (found < 199) return fmt::format("found {}", found);
    if (me.pe().losses().size() != 1) return fmt::format("{} losses", me.pe().losses().size());
    ++showcase->met[2];
    EXPECT_TRUE(Eventually([&] { return showcase->met[2] == 2; }));
    return "";
  });
  EXPECT_THAT(failures, ::testing::StartsWith("process 2: wait status 0x9"));
  EXPECT_EQ(std::count(failures.begin(), failures.end(), '\n'), 1) << failures;
}

TEST_F(Ofi, AStoppedProcessIsLateAndNotLost) {
  testing::Shared<Showcase> showcase;
  std::atomic<int>& stopped = showcase->met[7];
  EXPECT_EQ(testing::RunForked(
                2,
                [&](int self) -> std::string {
                  ProcessPe me(self, 2, showcase.get());
                  std::uint64_t found = 0;
                  if (self == 1) {
                    stopped = ::getpid();
                    EXPECT_TRUE(Eventually([&] { return showcase->met[2] == 1; }));
                    return "";
                  }
                  EXPECT_TRUE(Eventually([&] { return stopped != 0; }));
                  Status status =
                      me.channel().Fetch(1, me.place(1, 0), AtomicOp::kFetchAdd, 8, 1, 0, &found);
                  if (!status.ok()) return status.message();
                  ::kill(stopped, SIGSTOP);
                  // Longer than a connection that is gone is tried.
                  std::thread waker([&] {
                    EXPECT_TRUE(Eventually([&] { return me.pe().asked > 60; }));
                    ::kill(stopped, SIGCONT);
                  });
                  for (int i = 0; i < 5000 && status.ok(); ++i)
                    status = me.channel().Post(1, me.place(1, 0), AtomicOp::kFetchAdd, 8, 1);
                  if (status.ok()) status = me.channel().Quiet();
                  waker.join();
                  if (!status.ok()) return status.message();
                  status = me.channel().Fetch(1, me.place(1, 0), AtomicOp::kFetch, 8, 0, 0, &found);
                  showcase->met[2] = 1;
                  return found == 5001 ? Text(status) : fmt::format("found {}", found);
                }),
            "");
}

}  // namespace
}  // namespace mori::shmem
