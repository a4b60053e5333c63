// Who is lost, who is late, and what is said of them: what every wait of the host looks at.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "node/board.hpp"
#include "node/waiter.hpp"

namespace mori::shmem {

/// Thread-safe.
class PeerWatch {
 public:
  struct Parts {
    Board* board = nullptr;  ///< whose mark says that a PE is lost, on all PEs
    int my_pe = 0;
    std::vector<std::string> names;  ///< of all PEs: "PE 2 (host node7, process 4711)"
    std::vector<int> node_pes;       ///< the board's PEs, by index
    std::optional<std::chrono::milliseconds> budget;  ///< of a wait; nothing: for ever
    /// By which PEs meet that are on several nodes; null where the board has all of them.
    Bootstrap* bootstrap = nullptr;
  };

  explicit PeerWatch(Parts parts) : parts_(std::move(parts)) {}

  /// Marks a PE as lost on all PEs of the node, with the reason.
  void NoteLoss(const Bootstrap::Loss& loss);
  /// Success while no PE is lost; otherwise kPeerLost with the first one, and why. One load while
  /// all are there; after a loss that was marked without a reason it may wait a little for the news
  /// of why.
  Status Health() const;
  /// That `pe` is lost, and why.
  Status Lost(int pe) const;
  /// PEs that this PE waits for now in a collective call, and those that are lost. Ascending.
  std::vector<int> LateOrLost() const;

  /// PEs that have not come to the collective call in which this PE sleeps. Ascending.
  std::vector<int> Late() const;
  /// "PE 2 (host node7, process 4711), PE 5 (...) and 3 more".
  std::string Names(const std::vector<int>& pes) const;
  std::optional<std::chrono::milliseconds> budget() const { return parts_.budget; }

 private:
  const Parts parts_;
  /// Needs no loss to be known here yet, only that the PE is marked.
  std::string ReasonFor(int pe) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::map<int, std::string> reasons_;  ///< of lost PEs
};

/// Looks after a wait for all PEs to come to a collective call.
class CallWatch final : public WaitWatch {
 public:
  /// @param budget  nothing: for ever. `variable` is what a user sets it with.
  /// @param messages  what the PEs wait for comes by this bootstrap, whatever board they have
  CallWatch(const PeerWatch& peers, const char* call,
            std::optional<std::chrono::milliseconds> budget, const char* variable,
            Bootstrap* messages = nullptr)
      : peers_(peers), call_(call), variable_(variable), messages_(messages), clock_(budget) {}

  /// Warns of who is late, now and then. @return kTimeout with their names after the budget
  Status Look() override;

 private:
  /// Who is late; where that is not known now, who was so at the last look.
  std::string LateNames();

  const PeerWatch& peers_;
  std::vector<int> late_;
  const char* const call_;
  const char* const variable_;
  Bootstrap* const messages_;
  WaitClock clock_;
};

}  // namespace mori::shmem
