// What the PEs of a world do together: each collective call is a proposal, and all must propose the
// same.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "node/board.hpp"
#include "shmem/leaders.hpp"
#include "shmem/peer_watch.hpp"
#include "topology/topology.hpp"

namespace mori::shmem {

/// How long a call waits for the others, and what a user sets that with.
struct Budget {
  std::optional<std::chrono::milliseconds> time;  ///< nothing: for ever
  const char* variable = "MORI_SHMEM_TIMEOUT";
};

/// All PEs of the world: over the board within a node, over the network between leaders of nodes,
/// over the bootstrap until there is a network, and where PEs differ. The calls are collective, and
/// come from one thread of the PE at a time.
class Group {
 public:
  /// All are borrowed, and outlive the group.
  struct Parts {
    const Topology* topology = nullptr;
    Board* board = nullptr;
    Bootstrap* bootstrap = nullptr;
    const PeerWatch* peers = nullptr;
    int pe = 0;
    Budget budget;                              ///< of calls after init
    std::chrono::milliseconds exchange_budget;  ///< of an exchange, where `budget` is for ever
    std::optional<Deadline> init_ends = {};     ///< of all that is waited for until `EndInit()`
  };
  explicit Group(const Parts& parts) : parts_(parts), init_ends_(parts.init_ends) {}

  /// From here on calls have the budget of calls.
  void EndInit() { init_ends_.reset(); }

  /// From now on nodes meet over the network. On all PEs between the same two calls. Borrowed.
  void MeetOverNetwork(Leaders* leaders) { leaders_ = leaders; }

  /// Returns once all PEs have come with the same proposal. What each did before is visible to all
  /// after, as far as load and store reach.
  /// @param news  whether this PE has news, on return whether any has; null: none, and not asked
  /// @return kMismatch with both sides where two differ; kPeerLost, with who had not come; kTimeout
  ///   with who did not come, after which this PE is lost to the others
  Status Meet(const Proposal& proposal, const char* call, bool* news, const Budget& budget);
  Status Meet(const Proposal& proposal, const char* call, bool* news = nullptr) {
    return Meet(proposal, call, news, BudgetOfCall());
  }
  /// Success if it went well on every PE, otherwise why it did not on the first.
  Status AgreeOnOutcome(const Status& mine);
  /// Everyone's message, by PE: a part of a call, or of init. @return as `Meet()`
  Result<std::vector<Bytes>> AllGather(ByteView mine);

 private:
  Status MeetOnNode(const Proposal& proposal, const char* call, bool* news, const Budget& budget);
  Status MeetAcrossNodes(const Proposal& proposal, const char* call, bool* news,
                         const Budget& budget);
  Status MeetOverNetwork(const Proposal& proposal, Joint* joint, WaitWatch* watch);
  /// By messages of the bootstrap, which find out who differs.
  Status Compare(const Proposal& proposal, const char* call, bool* news, WaitWatch* watch);
  Budget BudgetOfCall() const;
  /// Why a meeting ended with `ended`: who is lost and who had not come.
  Status WhyEnded(const Status& ended) const;

  const Parts parts_;
  Leaders* leaders_ = nullptr;  ///< null while there is no network
  std::optional<Deadline> init_ends_;
};

/// "PE 0 made barrier_all(), PE 3 made a free of null".
Status Disagreement(const char* call, int first_pe, const Proposal& first, int other_pe,
                    const Proposal& other);

/// Of a free, in place of `third`: of null, or of a block that a stream of the PE still uses, so
/// that nobody may free.
inline constexpr std::uint64_t kFreeOfNull = 1;
inline constexpr std::uint64_t kFreeInUse = 2;

/// "0,2,5".
std::string PeList(const std::vector<int>& pes);

}  // namespace mori::shmem
