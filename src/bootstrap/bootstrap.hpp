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
#include <span>
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
  // Implicit: a caller passes the one or the other.
  WaitLimit(const Deadline& end) : deadline(end) {}  // NOLINT(google-explicit-constructor)
  WaitLimit(WaitWatch* looks_after)                  // NOLINT(google-explicit-constructor)
      : deadline(Deadline::Never()), watch(looks_after) {}
  WaitLimit(const Deadline& end, WaitWatch* looks_after) : deadline(end), watch(looks_after) {}

  Deadline deadline;
  /// Asked by the waiting thread, without a lock, several times a second; what it returns ends the
  /// wait. Null: nobody.
  WaitWatch* watch = nullptr;
};

class Mailbox;

/// Some ranks that exchange among themselves. The same on all of them.
struct RankGroup {
  std::vector<int> ranks;  ///< each once; the first ones pass on what the others say
  /// Tells calls apart that go on at the same time: those of groups with ranks in common need
  /// different ones.
  std::uint64_t tag = 0;
};

/// One rank's end of the exchange.
///
/// Calls of all ranks come from one thread at a time, in the same order on every rank. One that
/// failed leaves them unusable: later ones fail too. Calls of a group come from its ranks only, in
/// the same order among calls with the same tag; any number of groups may be at it at the same
/// time, and calls of all ranks beside them, each from a thread of its own. A tag whose call failed
/// is not used again.
///
/// All of these end with kTimeout at the deadline, and name the ranks that have not come, or as
/// many of them as can be found out; with what the watch returned; with kPeerLost as soon as any
/// rank of the world is known to be lost or to have aborted; with kMismatch if another rank made a
/// different call; with kInvalidArgument for messages that are too long.
///
/// Messages travel along the tree that finds lost ranks, past at most 2 log8(n) ranks. Of direct
/// connections each would need a handshake, two descriptors and buffers in the kernel; what goes
/// this way is short and seldom, as set-up is, so that a world of 100 000 keeps to a few
/// connections a rank.
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
    enum class Use : std::uint8_t {
      kAll = 1,        ///< calls of all ranks
      kGroup = 2,      ///< calls of a group
      kPair = 3,       ///< Send and Receive
      kElsewhere = 4,  ///< calls of all ranks that go another way: no messages
    };
    Use use = Use::kAll;
    std::uint64_t tag = 0;
    auto operator<=>(const Channel&) const = default;  // NOLINT(modernize-use-nullptr): no pointer
  };
  /// Where a rank stands in the tree of a call.
  struct Place {
    std::optional<int> parent;
    std::vector<int> children;
  };
  /// A call that a rank has come to.
  struct Round {
    Channel channel;
    std::uint32_t sequence = 0;                     ///< calls on the channel before
    std::shared_ptr<const std::vector<int>> ranks;  ///< that are to come; null: all
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

  /// Everyone's message for this rank, by rank, out of `messages`, which has one for every rank.
  /// Collective. One message up and one down each edge of the tree, too: what lies on the way of
  /// many takes up to `kMaxFrameBytes` in all.
  Result<std::vector<Bytes>> AllToAll(std::span<const Bytes> messages, const WaitLimit& limit);

  /// The same among the ranks of a group, by their place in it.
  /// @return kInvalidArgument where this rank is not in it, or ranks are twice there or out of
  /// range
  Result<std::vector<Bytes>> AllGather(const RankGroup& group, ByteView mine,
                                       const WaitLimit& limit);
  Result<Bytes> Combine(const RankGroup& group, ByteView mine, const Merge& merge,
                        const WaitLimit& limit);
  Status Barrier(const RankGroup& group, const WaitLimit& limit);
  Result<std::vector<Bytes>> AllToAll(const RankGroup& group, std::span<const Bytes> messages,
                                      const WaitLimit& limit);

  /// Sends a message to any rank, this one too. Local, does not wait, thread-safe. Messages of the
  /// same tag to the same rank arrive in order. What is not received takes up memory there: a rank
  /// with 256 MiB of it gives up.
  /// @return kInvalidArgument for a rank out of range, or a message that is too long; kPeerLost
  ///   once any rank is lost
  Status Send(int to, std::uint64_t tag, ByteView message);
  /// The next message of `from` with the tag. Thread-safe; several threads may wait for different
  /// ones.
  /// @return kTimeout at the deadline, which names the rank; kPeerLost if any rank is lost, or
  ///   `from` is known to have left; what the watch returned
  Result<Bytes> Receive(int from, std::uint64_t tag, const WaitLimit& limit);

  /// Ranks that have not come to the collective calls in which this rank waits now, ascending;
  /// none where it waits in none, or where it cannot be found out. Asks all ranks: fast while they
  /// run, and 1.5 s at most. Local, thread-safe; a watch may call it.
  std::vector<int> Missing();

  /// A call of all ranks that goes another way: this rank has come to it, and waits in it as long
  /// as this lives. So `Missing()` knows of it, too. All ranks make such calls in the same order,
  /// one at a time.
  class Elsewhere {
   public:
    explicit Elsewhere(Bootstrap* end);
    ~Elsewhere();
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;

   private:
    Mailbox* const mailbox_;
    const Round round_;
  };

  /// Tells all ranks that this one gives up and why; their calls fail with that text. Local.
  virtual void Abort(const Status& why) = 0;
  /// Tells all ranks, the one that it is about among them, that `rank` is lost: who uses another
  /// network may see that sooner. Does nothing for a rank that is known to be lost, or out of
  /// range. Local, thread-safe.
  virtual void Accuse(int rank, const std::string& reason) = 0;

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
  /// The child that another rank is or lies below; nothing if it does not lie below this one.
  virtual std::optional<int> ChildTowards(int rank) const = 0;
  /// Sends without waiting. What becomes of it shows in `Health()`.
  virtual void Post(int to, const Channel& channel, Bytes message) = 0;
  /// Ranks that have not come to a round, ascending, others than those of its group among them;
  /// nothing if that cannot be found out.
  virtual std::optional<std::vector<int>> FindMissing(const Round& round) = 0;
  /// Where an implementation puts what comes for this rank.
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }

 private:
  class Call;
  class Members;

  Result<std::vector<Bytes>> AllGather(const Members& members, ByteView mine,
                                       const WaitLimit& limit);
  Result<Bytes> Combine(const Members& members, ByteView mine, const Merge& merge,
                        const WaitLimit& limit);
  Result<std::vector<Bytes>> AllToAll(const Members& members, std::span<const Bytes> messages,
                                      const WaitLimit& limit);
  Members Everyone() const;
  Result<Members> MembersOf(const RankGroup& group) const;
  std::optional<std::vector<int>> FindMissingOf(const Round& round);
  /// The body of a collective call, unless one failed before.
  template <typename Body>
  auto InOrder(Body body) -> decltype(body());

  const int rank_;
  const int size_;
  const std::shared_ptr<Mailbox> mailbox_;
  Status failed_;  ///< of a collective call: there is no next one
};

}  // namespace mori::shmem
