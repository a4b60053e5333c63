#include "node/abstract_socket.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "bootstrap/socket.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/forked.hpp"

namespace mori::shmem {
namespace {

using testing::RunForked;
using testing::TestLimit;

/// A name that no other run of this test has.
std::string FreshName() {
  static int count = 0;
  return AbstractNameFor(fmt::format("test {} {}", ::getpid(), ++count));
}

UniqueFd Accept(const UniqueFd& listener) {
  EXPECT_TRUE(WaitFor(listener.get(), POLLIN, TestLimit()).ok());
  auto fd = AcceptAbstract(listener.get());
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  return fd.ok() ? std::move(*fd) : UniqueFd();
}

TEST(AbstractSocket, CarriesBytesBothWays) {
  const std::string name = FreshName();
  const auto listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const auto caller = ConnectAbstract(name, TestLimit());
  ASSERT_TRUE(caller.ok()) << caller.status().message();
  const UniqueFd accepted = Accept(*listener);
  Bytes heard(3);
  ASSERT_TRUE(SendAll(caller->get(), Bytes{1, 2, 3}, TestLimit()).ok());
  ASSERT_TRUE(ReceiveAll(accepted.get(), heard, TestLimit()).ok());
  EXPECT_EQ(heard, (Bytes{1, 2, 3}));
  ASSERT_TRUE(SendAll(accepted.get(), Bytes{4, 5, 6}, TestLimit()).ok());
  ASSERT_TRUE(ReceiveAll(caller->get(), heard, TestLimit()).ok());
  EXPECT_EQ(heard, (Bytes{4, 5, 6}));
}

TEST(AbstractSocket, NobodyThereIsSaidAtOnce) {
  const auto caller = ConnectAbstract(FreshName(), TestLimit());
  EXPECT_EQ(caller.status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(caller.status().message(),
            "connect to an abstract socket: Connection refused (errno 111)");
}

TEST(AbstractSocket, ANameIsFreeAgainWhenItsListenerIsGone) {
  const std::string name = FreshName();
  {
    const auto first = ListenAbstract(name);
    ASSERT_TRUE(first.ok());
    const auto second = ListenAbstract(name);
    EXPECT_EQ(second.status().code(), ErrorCode::kSystem);
    EXPECT_EQ(second.status().message(),
              "listen on an abstract socket: Address already in use (errno 98)");
  }
  EXPECT_TRUE(ListenAbstract(name).ok());
}

TEST(AbstractSocket, NobodyWaitingIsNoError) {
  const auto listener = ListenAbstract(FreshName());
  const auto nobody = AcceptAbstract(listener->get());
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE(nobody->valid());
}

TEST(AbstractSocket, LeavesNothingInTheFileSystem) {
  const std::string name = FreshName();
  const auto listener = ListenAbstract(name);
  ASSERT_TRUE(listener.ok());
  EXPECT_FALSE(std::filesystem::exists(name));
  EXPECT_FALSE(std::filesystem::exists("/tmp/" + name));
}

TEST(AbstractSocket, NamesAreHashes) {
  const std::string name = AbstractNameFor("a secret");
  EXPECT_EQ(name.size(), std::string("mori-shmem-").size() + 48);
  EXPECT_TRUE(name.starts_with("mori-shmem-"));
  EXPECT_EQ(name.find("secret"), std::string::npos);
  EXPECT_EQ(AbstractNameFor("a secret"), name);
  EXPECT_NE(AbstractNameFor("a secreu"), name);
  EXPECT_NE(AbstractNameFor(""), name);
}

TEST(AbstractSocket, AnotherUserIsKeptOutOnBothSides) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs the right to become another user";
  const std::string here = FreshName(), there = FreshName();
  const auto listener = ListenAbstract(here);
  ASSERT_TRUE(listener.ok());
  const testing::Shared<std::atomic<bool>> ready(false), done(false);
  const auto failures = RunForked(2, [&](int process) -> std::string {
    if (process == 0) {  // another user: calls us, and listens for us
      if (::setuid(65534) != 0) return "setuid failed";
      const auto theirs = ListenAbstract(there);
      if (!theirs.ok()) return theirs.status().message();
      *ready = true;
      const auto call = ConnectAbstract(here, TestLimit());
      if (call.ok()) return "another user's call got through";
      if (call.status().message() != "another user listens there") return call.status().message();
      return testing::Eventually([&] { return done->load(); }) ? "" : "the other did not come";
    }
    if (!testing::Eventually([&] { return ready->load(); })) return "not ready";
    const auto call = ConnectAbstract(there, TestLimit());
    *done = true;
    if (call.ok()) return "a call to another user got through";
    if (call.status().code() != ErrorCode::kMismatch) return "wrong code";
    if (call.status().message() != "another user listens there") return call.status().message();
    // What waits on our own listener is the other user's call: it is closed without a word.
    if (!WaitFor(listener->get(), POLLIN, TestLimit()).ok()) return "nobody called";
    const auto caller = AcceptAbstract(listener->get());
    return caller.ok() && !caller->valid() ? "" : "another user was accepted";
  });
  EXPECT_EQ(failures, "");
}

}  // namespace
}  // namespace mori::shmem
