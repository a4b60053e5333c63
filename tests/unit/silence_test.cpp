// A host that goes silent is a loss; a process that is stopped is not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "support/bootstrap_ranks.hpp"
#include "support/forked.hpp"

namespace mori::shmem {
namespace {

using testing::Eventually;
using testing::RunForked;
using namespace std::chrono_literals;

constexpr std::chrono::seconds kLimit{3};

/// The loopback of this process's network namespace.
bool SetLoopback(bool up) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = static_cast<short>(up ? IFF_UP : 0);
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

bool EnterOwnNetwork() {
  return (::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
         SetLoopback(true);
}

SocketBootstrap::Options RankWithLimit(int rank, int size) {
  auto options = testing::RankOptions(rank, size);
  options.silence = kLimit;
  return options;
}

/// The loss that `end` hears of within the test's limit.
std::string LossAt(const SocketBootstrap& end) {
  return Eventually([&] { return !end.Health().ok(); }) ? end.Health().message() : "none";
}

TEST(Silence, OfAHostIsALossWhetherSomethingIsUnderWayOrNot) {
  const auto failures = RunForked(2, [](int sends) -> std::string {
    if (!EnterOwnNetwork()) return "no namespace";
    auto server = testing::StartRendezvous();
    if (!server.ok()) return server.status().message();
    const auto joined =
        testing::JoinAll((*server)->id(), {RankWithLimit(0, 2), RankWithLimit(1, 2)});
    for (const auto& rank : joined) {
      if (!rank.ok()) return rank.status().message();
    }
    if (!SetLoopback(false)) return "the loopback stays up";
    if (sends != 0) static_cast<void>((*joined[1])->AllGather({}, Deadline::After({})));
    const std::string loss = LossAt(**joined[0]);
    const std::string expected = "rank 1 is lost: its host has not answered for ";
    return loss.starts_with(expected) ? "" : loss;
  });
  if (failures.find("no namespace") != std::string::npos)
    GTEST_SKIP() << "this process may not make a network namespace";
  EXPECT_EQ(failures, "");
}

TEST(Silence, OfAStoppedProcessIsNoLoss) {
  struct Board {
    UniqueId id;
    std::atomic<bool> is_served{false};
    std::atomic<pid_t> stopped{0};
  };
  const testing::Shared<Board> board;
  EXPECT_EQ(RunForked(2,
                      [&](int rank) -> std::string {
                        std::unique_ptr<RendezvousServer> server;
                        if (rank == 0) {
                          auto started = testing::StartRendezvous();
                          if (!started.ok()) return started.status().message();
                          server = std::move(*started);
                          board->id = server->id();
                          board->is_served = true;
                        }
                        if (!Eventually([&] { return board->is_served.load(); })) return "no id";
                        auto joined = testing::Join(board->id, RankWithLimit(rank, 2));
                        if (!joined.ok()) return joined.status().message();
                        if (rank == 1) {
                          board->stopped = ::getpid();
                          ::raise(SIGSTOP);
                        } else {
                          if (!Eventually([&] { return board->stopped != 0; }))
                            return "not stopped";
                          std::this_thread::sleep_for(2 * kLimit);  // this is what must not matter
                          ::kill(board->stopped, SIGCONT);
                        }
                        const auto all = (*joined)->AllGather({}, testing::TestLimit());
                        (*joined)->Leave();
                        return all.status().message();
                      }),
            "");
}

}  // namespace
}  // namespace mori::shmem
