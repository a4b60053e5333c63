// Runs one body as several PEs, each a process or a thread, with a deadline, and collects what
// became of each.
#pragma once

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "mori/shmem/shmem.hpp"

namespace mori::shmem::testing {

/// Thrown by a body that found something wrong.
struct PeFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ends the body with a failure unless `condition` holds.
#define PE_CHECK(condition)                                                                      \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      throw ::mori::shmem::testing::PeFailure(                                                   \
          fmt::format("{}:{}: {} does not hold; last error: {}", __FILE__, __LINE__, #condition, \
                      ::mori::shmem::ShmemLastError()));                                         \
    }                                                                                            \
  } while (false)

/// `left == right`, with both values in the failure.
#define PE_CHECK_EQ(left, right)                                                            \
  do {                                                                                      \
    const auto mori_left = (left);                                                          \
    const auto mori_right = (right);                                                        \
    if (!(mori_left == mori_right)) {                                                       \
      throw ::mori::shmem::testing::PeFailure(                                              \
          fmt::format("{}:{}: {} is {}, not {}; last error: {}", __FILE__, __LINE__, #left, \
                      mori_left, mori_right, ::mori::shmem::ShmemLastError()));             \
    }                                                                                       \
  } while (false)

struct Blackboard;

struct Pe {
  int rank;
  int size;
  UniqueId id;
  Blackboard* blackboard;  ///< shared by all PEs of a run

  /// Another id, the same for all PEs: made by rank 0, awaited by the others. `round` counts from
  /// 1; between two rounds all PEs must have met.
  UniqueId FreshId(int round) const;

  /// Init with the unique id; fails the body if that fails.
  void Init() const { PE_CHECK_EQ(TryInit(), 0); }
  int TryInit() const { return ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, rank, size, id); }
};
/// The PEs beside this one, around; itself where it is alone.
inline int Right(const Pe& pe) { return (pe.rank + 1) % pe.size; }
inline int Left(const Pe& pe) { return (pe.rank + pe.size - 1) % pe.size; }

using Body = std::function<void(const Pe&)>;

struct Outcome {
  int exit_code = 0;  ///< 1 after a failure of the body
  int signal = 0;     ///< that ended the process; SIGKILL at the deadline
  bool timed_out = false;
  std::string output;  ///< standard error of a process, or the failure of a thread
  bool ok() const { return exit_code == 0 && signal == 0 && !timed_out; }
};

struct Options {
  std::chrono::seconds deadline{120};
  std::vector<std::pair<std::string, std::string>>
      environment;  ///< beside a heap of 8 MiB of the host on the loopback; "" unsets
};

enum class As { kProcesses, kThreads };

/// Takes the calling process, which has one thread, to the network of a node where
/// MORI_TEST_NETWORKS names one: `a=/proc/42/ns/net,b=...`.
/// Fails the body where that cannot be done.
void EnterNetworkOf(const std::string& node);

/// Each PE a forked process, on one node unless MORI_TEST_NODES spreads them. Rank 0 makes the
/// unique id and hands it to the others before the body starts.
std::vector<Outcome> RunProcesses(int size, const Body& body, const Options& options = {});

/// Each PE a thread of one forked process, so that a deadline can end it. One outcome a thread; how
/// the process ended is in all.
std::vector<Outcome> RunThreads(int size, const Body& body, const Options& options = {});

std::vector<Outcome> RunAs(As as, int size, const Body& body, const Options& options = {});

/// One forked process that runs `body` alone, without a unique id.
Outcome RunAlone(const std::function<void()>& body, const Options& options = {});

/// For EXPECT_EQ(Failures(...), ""): what went wrong, PE by PE.
std::string Failures(const std::vector<Outcome>& outcomes);

}  // namespace mori::shmem::testing
