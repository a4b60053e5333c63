#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

namespace mori::shmem {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

UniqueFd Private() {
  return UniqueFd::KeptFromChildren([] { return ::socket(AF_UNIX, SOCK_STREAM, 0); });
}

/// Whether `holds` is true in a forked child.
template <typename Condition>
bool InAChild(Condition holds) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(holds() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(UniqueFd, ClosesWhatItOwnsOnce) {
  UniqueFd first(::dup(0));
  const int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): that is what is asked
  EXPECT_TRUE(IsOpen(number));
  second = UniqueFd();
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFd, ChildrenHaveAnOrdinaryOneToo) {
  const UniqueFd fd(::dup(0));
  EXPECT_TRUE(InAChild([&] { return IsOpen(fd.get()); }));
}

TEST(UniqueFd, ChildrenDoNotHaveWhatIsKeptFromThem) {
  UniqueFd first = Private();
  ASSERT_TRUE(first.valid());
  const UniqueFd fd = std::move(first);
  EXPECT_TRUE(InAChild([&] { return !IsOpen(fd.get()); }));
  EXPECT_TRUE(IsOpen(fd.get())) << "the parent still has it";
}

TEST(UniqueFd, WhatIsReleasedIsForChildrenToo) {
  UniqueFd fd = Private();
  const UniqueFd released(fd.Release());
  EXPECT_TRUE(InAChild([&] { return IsOpen(released.get()); }));
}

TEST(UniqueFd, TheNumberOfAClosedOneMayBeAnothers) {
  UniqueFd fd = Private();
  const int number = fd.get();
  fd.Reset();
  const UniqueFd other(::dup2(0, number));
  EXPECT_TRUE(InAChild([&] { return IsOpen(number); }));
}

TEST(UniqueFd, AnInheritedOwnerClosesNothing) {
  UniqueFd fd = Private();
  const int number = fd.get();
  EXPECT_TRUE(InAChild([&] {
    if (::dup2(0, number) != number) return false;  // the child's own, by chance of that number
    fd.Reset();
    return IsOpen(number);
  }));
}

TEST(UniqueFd, AFailureKeepsItsErrno) {
  const UniqueFd fd = UniqueFd::KeptFromChildren([] { return ::socket(-1, SOCK_STREAM, 0); });
  EXPECT_EQ(errno, EAFNOSUPPORT);
  EXPECT_FALSE(fd.valid());
}

TEST(UniqueFd, AForkWhileOthersAreMadeLeavesNoneToTheChild) {
  const auto sockets = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      int domain = 0;
      socklen_t length = sizeof domain;
      count += ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
    }
    return count;
  };
  // Those that a child has without this test: of the test's runner, say.
  int others = sockets();
  while (others > 0 && !InAChild([&] { return sockets() == others; })) --others;
  std::atomic<bool> done{false};
  std::thread maker([&] {
    while (!done) {
      const UniqueFd one = Private(), two = Private();
    }
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(InAChild([&] { return sockets() == others; }));
  done = true;
  maker.join();
}

}  // namespace
}  // namespace mori::shmem
