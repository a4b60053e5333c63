// Meetings of the nodes: the first PE of each, its leader, speaks for it over the network.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/wait_watch.hpp"
#include "node/board.hpp"
#include "topology/topology.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

/// One PE's part in them. With n nodes a meeting has ceil(log2(n)) rounds: in round r the leader of
/// node i tells that of node i + 2^r what it knows, and hears from that of node i - 2^r (both
/// modulo n).
///
/// Why all come to the same verdict: after round r a leader has heard, by way of others, from the
/// 2^(r+1) nodes that end with its own. It knows that these propose the same if they did so in both
/// halves, and the two leaders propose the same themselves. After the last round the nodes are all.
///
/// Why two sets of words are enough, for even and odd meetings: a word of meeting m is overwritten
/// in meeting m + 2. Who writes it then has ended meeting m + 1, so every node has come to that,
/// and has read all its words of meeting m before.
class Leaders {
 public:
  /// All are borrowed, and outlive it.
  struct Parts {
    RemoteTransport* network = nullptr;
    const Topology* topology = nullptr;
    const Board* board = nullptr;  ///< of this node: who is lost, and whether waits may spin
    int pe = 0;
  };

  /// Of a leader, registers the words that others write. Local.
  static Result<std::unique_ptr<Leaders>> Create(const Parts& parts);
  ~Leaders();

  /// Where this PE's words are, for the others; nothing in particular where it leads no node.
  RemotePlace place() const;
  /// Takes the places of all PEs, by PE. Before the first meeting.
  void SetPlaces(std::span<const RemotePlace> places);

  /// Returns once the leaders of all nodes have called it. Of leaders, collective over them, one
  /// at a time. What each PE had completed before it came is visible after. Of no use any more
  /// after an error.
  /// @param proposal  of this node, where `joint` says that its PEs propose the same
  /// @param joint  of this node; on return of all
  /// @return kPeerLost if a PE is lost; what `watch` ended the wait with
  Status Meet(const Proposal& proposal, Joint* joint, WaitWatch* watch);

 private:
  /// What a leader tells another in one round. The word comes last.
  struct Note {
    std::uint64_t call;  ///< proposal, in as far as it is not that of a barrier
    std::uint64_t first;
    std::uint64_t second;
    std::uint64_t third;
    std::uint64_t word;  ///< number of the meeting, and flags
  };
  struct Slots;

  explicit Leaders(const Parts& parts);

  Status Tell(int node, std::uint64_t place, const Note& note);
  Result<std::uint64_t> Hear(const Note& note, WaitWatch* watch) const;
  Status CheckWait(WaitWatch* watch) const;

  const Parts parts_;
  const int node_;
  const int n_nodes_;
  std::unique_ptr<Slots> slots_;                ///< of a leader
  std::unique_ptr<Registration> registration_;  ///< of these
  std::vector<RemotePlace> places_;             ///< by node
  std::uint64_t meeting_ = 0;
};

}  // namespace mori::shmem
