// CPU time that a rendezvous spends per rank, over the number of ranks: one process answers them
// all, so this is what bounds init of very many PEs.
//
//   rendezvous_cost --most 4000
//
// A second process plays the ranks, one after another: it connects, proves that it knows the
// secret, says hello, and after everybody's welcome says that it is connected.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "bootstrap/handshake.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/socket.hpp"
#include "common/figure.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

void Require(const Status& status) {
  if (status.ok()) return;
  std::printf("BAD %s\n", status.message().c_str());
  std::fflush(stdout);
  ::_exit(1);
}

template <typename T>
T Require(Result<T> result) {
  Require(result.status());
  return std::move(*result);
}

Deadline Soon() { return Deadline::After(std::chrono::seconds(60)); }

Hello HelloOf(int rank, int size, const IpAddress& address) {
  Hello hello;
  hello.rank = rank;
  hello.size = size;
  hello.version = "0.1.0";
  hello.host = "benchmark-host";
  hello.process_id = 4242;
  hello.budget = std::chrono::seconds(60);
  hello.endpoint = {1, {address}};
  return hello;
}

void PlayRanks(const UniqueId& id, int size) {
  const Rendezvous rendezvous = Require(DecodeUniqueId(id));
  const IpAddress& address = rendezvous.addresses.front();
  std::vector<Connection> ranks;
  for (int rank = 0; rank < size; ++rank) {
    UniqueFd fd = Require(ConnectTo(address, rendezvous.port, Soon()));
    const StreamKeys keys =
        Require(ProveToListener(fd.get(), rendezvous.name, rendezvous.secret, Soon()));
    ranks.emplace_back(std::move(fd), keys);
    const Frame hello{FrameType::kHello, static_cast<std::uint32_t>(rank), 0,
                      EncodeHello(HelloOf(rank, size, address))};
    Require(ranks.back().Send(hello, Soon()));
  }
  for (Connection& rank : ranks) {
    const Frame welcome = Require(rank.Receive(Soon()));
    if (welcome.type != FrameType::kWelcome) {
      Require(Error(ErrorCode::kMismatch, "a rank was not welcome"));
    }
  }
  for (Connection& rank : ranks) {
    Require(rank.Send({FrameType::kBye, 0, 0, {}}, Soon()));
  }
}

double CpuNs(int who) {
  rusage use{};
  ::getrusage(who, &use);
  const auto ns = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_usec) * 1e3;
  };
  return ns(use.ru_utime) + ns(use.ru_stime);
}

struct Cost {
  double server_ns;  ///< of this process, which serves, per rank
  double caller_ns;  ///< of one rank
};

Cost Serve(int size) {
  const std::vector<IpAddress> loopback{{AF_INET, {127, 0, 0, 1}, 0}};
  const auto server = Require(RendezvousServer::Start(loopback));
  const double server_start = CpuNs(RUSAGE_SELF);
  const double callers_start = CpuNs(RUSAGE_CHILDREN);
  const pid_t ranks = ::fork();
  if (ranks == 0) {
    PlayRanks(server->id(), size);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(ranks, &status, 0);
  if (status != 0) ::_exit(1);
  while (!server->finished()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {(CpuNs(RUSAGE_SELF) - server_start) / size,
          (CpuNs(RUSAGE_CHILDREN) - callers_start) / size};
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  using namespace mori::bench;
  CLI::App app("CPU time of a rendezvous per rank");
  int most = 4000;
  int batches = 3;
  app.add_option("--most", most, "Largest number of ranks")->check(CLI::Range(64, 100'000));
  app.add_option("--batches", batches, "Batches per figure")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  for (int size = 64; size <= most; size *= 4) {
    std::vector<double> server, caller;
    for (int batch = 0; batch < batches; ++batch) {
      const Cost cost = Serve(size);
      server.push_back(cost.server_ns);
      caller.push_back(cost.caller_ns);
    }
    PrintTimes({"rendezvous_server_cpu", 0, size, "", Unit::kUs}, server);
    PrintTimes({"rendezvous_caller_cpu", 0, size, "", Unit::kUs}, caller);
  }
}
