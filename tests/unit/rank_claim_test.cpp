#include "node/rank_claim.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "node/abstract_socket.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

/// A child that runs `body` and then lives until it is told to end.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    process_ = ::fork();
    if (process_ == 0) {
      body();
      static_cast<void>(!::write(ready[1], "x", 1));
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the child ended early";
    ::close(ready[0]);
  }
  ~Child() { End(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t process() const { return process_; }
  void End() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  pid_t process_ = 0;
};

class RankClaimTest : public ::testing::Test {
 protected:
  /// The owner of a rank; 0 if it is ours now.
  pid_t OwnerOf(int rank) const {
    const auto owner = ClaimRank(job_, rank);
    EXPECT_TRUE(owner.ok()) << owner.status().message();
    return owner.ok() ? owner->value_or(0) : -1;
  }

  const std::string job_ = fmt::format(
      "{} {}", ::getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(RankClaimTest, AnotherProcessIsNamedUntilItEnds) {
  Child child([&] {
    if (OwnerOf(1) != 0) ::_exit(1);
  });
  EXPECT_EQ(OwnerOf(1), child.process());
  EXPECT_EQ(OwnerOf(2), 0) << "another rank is free";
  child.End();
  EXPECT_EQ(OwnerOf(1), 0);
}

TEST_F(RankClaimTest, OneProcessMayClaimItsRankAgain) {
  EXPECT_EQ(OwnerOf(1), 0);
  EXPECT_EQ(OwnerOf(1), 0);
}

TEST_F(RankClaimTest, ANewClaimGivesTheOldOneBack) {
  EXPECT_EQ(OwnerOf(1), 0);
  EXPECT_EQ(OwnerOf(2), 0);
  Child child([&] {
    if (OwnerOf(1) != 0) ::_exit(1);
  });
}

/// A name that is taken and does not say by whom, as by a process of another user.
TEST_F(RankClaimTest, AnOwnerThatCannotBeSeenIsAnErrorWithARemedy) {
  const std::string name = AbstractNameFor(fmt::format("{}\nclaimed rank={}", job_, 3));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int holder = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::bind(holder, reinterpret_cast<const sockaddr*>(&address), length), 0);
  const auto owner = ClaimRank(job_, 3);
  ::close(holder);
  EXPECT_EQ(owner.status().code(), ErrorCode::kMismatch);
  EXPECT_NE(owner.status().message().find("is rank 3"), std::string::npos);
  EXPECT_NE(owner.status().message().find("MORI_UNIQUE_ID"), std::string::npos);
}

TEST_F(RankClaimTest, AForkedChildDoesNotKeepTheClaim) {
  // The owner forks a child, which outlives it.
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    if (OwnerOf(1) != 0) ::_exit(1);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    static_cast<void>(!::write(pipe_fds[1], &child, sizeof child));
    ::_exit(0);
  }
  pid_t survivor = 0;
  EXPECT_EQ(::read(pipe_fds[0], &survivor, sizeof survivor), ssize_t{sizeof survivor});
  EXPECT_EQ(::waitpid(owner, nullptr, 0), owner);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  // The child may not have come yet to where it lets go.
  EXPECT_TRUE(testing::Eventually([&] { return OwnerOf(1) == 0; }));
  if (survivor > 0) ::kill(survivor, SIGKILL);
}

}  // namespace
}  // namespace mori::shmem
