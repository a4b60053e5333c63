// What ranks of a bootstrap spend on meeting, and on what they do together afterwards: processes of
// this machine, over TCP on the loopback.
//
//   bootstrap --ranks 2 8 64
//   bootstrap --ranks 64 --nodes 8     as if they were spread over eight nodes
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bootstrap/factory.hpp"
#include "bootstrap/rendezvous.hpp"
#include "common/figure.hpp"

namespace mori::bench {
namespace {

using namespace mori::shmem;

constexpr std::size_t kRecordBytes = 64;

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

struct Options {
  std::vector<int> ranks{2, 8, 64};
  int nodes = 1;
  int batches = 11;
  int rounds = 200;
};

Deadline Soon() { return Deadline::After(std::chrono::seconds(60)); }

IpAddress Loopback() { return {AF_INET, {127, 0, 0, 1}, 0}; }

Bytes Sum(ByteView a, ByteView b) {
  Bytes sum(a.begin(), a.end());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<std::uint8_t>(sum[i] + b[i]);
  return sum;
}

/// One message there and back between rank 0 and the last.
void PingPong(Bootstrap* end) {
  const int last = end->size() - 1;
  if (end->rank() == 0) {
    Require(end->Send(last, 1, Bytes(kRecordBytes)));
    Require(end->Receive(last, 1, Soon()));
  } else if (end->rank() == last) {
    Require(end->Receive(0, 1, Soon()));
    Require(end->Send(0, 1, Bytes(kRecordBytes)));
  }
}

/// Times `operation` on all ranks; rank 0 prints it.
template <typename Operation>
void Measure(Bootstrap* end, const Options& options, const std::string& metric,
             Operation operation) {
  std::vector<double> times;
  for (int batch = 0; batch < options.batches; ++batch) {
    Require(end->Barrier(Soon()));
    const double start = NowNs();
    for (int round = 0; round < options.rounds; ++round) operation();
    times.push_back((NowNs() - start) / options.rounds);
  }
  if (end->rank() != 0) return;
  PrintTimes({metric, kRecordBytes, end->size(), "", Unit::kUs}, times);
  std::fflush(stdout);
}

void RunRank(const Rendezvous& rendezvous, int rank, int size, const Options& options) {
  BootstrapOptions mine;
  mine.rank = rank;
  mine.size = size;
  mine.version = "benchmark";
  mine.host = "benchmark-host";
  mine.node = "node " + std::to_string(rank % options.nodes);
  mine.listen_addresses = {Loopback()};
  const double start = NowNs();
  const auto end = Require(MakeBootstrap(rendezvous, mine));
  if (rank == 0) PrintTimes({"bootstrap_meet", 0, size, "", Unit::kMs}, {NowNs() - start});

  const Bytes record(kRecordBytes, 1);
  Measure(end.get(), options, "bootstrap_combine", [&] {
    const Bytes sum = Require(end->Combine(record, Sum, Soon()));
    if (sum[0] != static_cast<std::uint8_t>(size))
      Require(Error(ErrorCode::kInternal, "wrong sum"));
  });
  Measure(end.get(), options, "bootstrap_barrier", [&] { Require(end->Barrier(Soon())); });
  Measure(end.get(), options, "bootstrap_all_gather",
          [&] { Require(end->AllGather(record, Soon())); });
  Measure(end.get(), options, "bootstrap_ping_pong", [&] { PingPong(end.get()); });
  Options fewer = options;
  fewer.rounds = std::max(1, options.rounds / 20);
  const std::vector<Bytes> messages(static_cast<std::size_t>(size), record);
  Measure(end.get(), fewer, "bootstrap_all_to_all",
          [&] { Require(end->AllToAll(messages, Soon())); });
  Require(end->Barrier(Soon()));
  end->Leave();
}

int Run(int size, const Options& options) {
  const auto server = Require(RendezvousServer::Start({Loopback()}));
  const Rendezvous rendezvous = Require(DecodeUniqueId(server->id()));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(::fork());
    if (ranks.back() != 0) continue;
    RunRank(rendezvous, rank, size, options);
    ::_exit(0);
  }
  int worst = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    ::waitpid(rank, &status, 0);
    worst = std::max(worst, status);
  }
  return worst;
}

}  // namespace
}  // namespace mori::bench

int main(int argc, char** argv) {
  using namespace mori::bench;
  CLI::App app("Time of what ranks of a bootstrap do together");
  Options options;
  app.add_option("--ranks", options.ranks, "Numbers of ranks")->check(CLI::Range(2, 4000));
  app.add_option("--nodes", options.nodes, "Nodes that they say they are on")
      ->check(CLI::PositiveNumber);
  app.add_option("--batches", options.batches, "Batches per figure")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "Rounds per batch")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  for (const int size : options.ranks) {
    if (Run(size, options) != 0) return 1;
  }
}
