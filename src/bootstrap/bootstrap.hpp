// Seam: how the ranks of a world exchange small messages, during set-up and later, and watch each
// other.
//
// Implementations: sockets found by a unique id (socket_bootstrap), threads of one process
// (in_process_bootstrap). They carry messages between ranks; the calls of several ranks are written
// once, on top of that.
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/wait_watch.hpp"

namespace mori::shmem {

/// Most ranks of a world. Larger sizes are taken for a mistake, before anything is made of them.
inline constexpr int kMaxRanks = 1 << 20;

/// "1, 2, 5", with an ellipsis behind the sixteenth.
std::string ListRanks(const std::vector<int>& ranks);

/// Why an exchange ended without `missing`: kTimeout.
Status RanksDidNotCome(const std::vector<int>& missing, int size, const Deadline& deadline);

/// How long a call waits for other ranks: until a deadline, or as long as a watch lets it.
struct WaitLimit {
  WaitLimit(const Deadline& end) : deadline(end) {}
  WaitLimit(WaitWatch* looks_after) : deadline(Deadline::Never()), watch(looks_after) {}

  Deadline deadline;
  /// Asked by the waiting thread, without a lock, several times a second; what it returns ends the
  /// wait. Null: nobody.
  WaitWatch* watch = nullptr;
};

class Mailbox;

/// One rank's end of the exchange. The collective calls come from one thread at a time, in the same
/// order on every rank. One that failed leaves them unusable: later ones fail too.
///
/// Collective calls end with kTimeout at the deadline, and name the ranks that have not come, or as
/// many of them as can be found out; with what the watch returned; with kPeerLost as soon as a rank
/// is known to be lost or to have aborted; with kMismatch if another rank made a different call.
class Bootstrap {
 public:
  /// What the observer hears: a rank that died or left without `Leave()`, or one that gave up.
  struct Loss {
    int rank;
    std::string reason;  ///< "its connection closed", or the text of its `Abort()`
  };
  using Observer = std::function<void(const Loss&)>;

  /// Makes one message of two. Neither order nor grouping may matter.
  using Merge = std::function<Bytes(ByteView, ByteView)>;

  /// What messages between two ranks are for: those of different channels do not meet.
  struct Channel {
    enum class Use : std::uint8_t { kAll = 1 };  ///< calls of all ranks
    Use use = Use::kAll;
    std::uint64_t tag = 0;
    auto operator<=>(const Channel&) const = default;
  };
  /// Where a rank stands in the tree of a call.
  struct Place {
    std::optional<int> parent;
    std::vector<int> children;
  };
  /// A call that a rank has come to.
  struct Round {
    Channel channel;
    std::uint32_t sequence = 0;  ///< calls on the channel before
  };

  virtual ~Bootstrap();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Everyone's message, by rank. Collective. Messages may differ in size; together they have at
  /// most `kMaxFrameBytes`.
  Result<std::vector<Bytes>> AllGather(ByteView mine, const WaitLimit& limit);
  /// What `merge` makes of everyone's messages, on every rank. Collective. One message up and one
  /// down each edge of the tree: no rank handles more than its neighbours' messages, whatever the
  /// number of ranks. `merge` runs on the calling threads, of any ranks.
  Result<Bytes> Combine(ByteView mine, const Merge& merge, const WaitLimit& limit);
  /// Returns once all ranks have called it. Collective. As `Combine()` of nothing.
  Status Barrier(const WaitLimit& limit);

  /// Ranks that have not come to the collective calls in which this rank waits now, ascending;
  /// none where it waits in none, or where it cannot be found out. Asks all ranks: fast while they
  /// run, and 1.5 s at most. Local, thread-safe; a watch may call it.
  std::vector<int> Missing();

  /// Tells all ranks that this one gives up and why; their calls fail with that text. Local.
  virtual void Abort(const Status& why) = 0;

  /// The first loss known so far, as an error; success while all are there. Local, thread-safe,
  /// cheap.
  Status Health() const;

  /// Calls `observer` for each loss, past ones first, from any thread, until replaced (null: none).
  /// After this returns the former observer is not called any more.
  virtual void Observe(Observer observer) = 0;

  /// Leaves in order: the others do not take it for a loss. Local. The object is unusable
  /// afterwards.
  virtual void Leave() = 0;

 protected:
  Bootstrap(int rank, int size);

  /// This rank's place in the tree of all ranks.
  virtual const Place& place() const = 0;
  /// Sends without waiting. What becomes of it shows in `Health()`.
  virtual void Post(int to, const Channel& channel, Bytes message) = 0;
  /// Ranks that have not come to a round; nothing if that cannot be found out.
  virtual std::optional<std::vector<int>> FindMissing(const Round& round) = 0;
  /// Where an implementation puts what comes for this rank.
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }

 private:
  class Call;

  /// The body of a collective call, unless one failed before.
  template <typename Body>
  auto InOrder(Body body) -> decltype(body());

  const int rank_;
  const int size_;
  const std::shared_ptr<Mailbox> mailbox_;
  Status failed_;  ///< of a collective call: there is no next one
};

}  // namespace mori::shmem
