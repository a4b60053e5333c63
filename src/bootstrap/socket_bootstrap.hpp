// Bootstrap over sockets: ranks meet at a rendezvous (a unique id), then stay connected as a tree.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/unique_fd.hpp"
#include "bootstrap/acceptor.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/connection.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "bootstrap/socket.hpp"

namespace mori::shmem {

/// One rank of a tree with eight children a node (bootstrap/thread.hpp). A thread of its own reads
/// all connections from the moment the tree stands: it hands messages to the collective calls, and
/// floods the news of a lost rank. No send waits: what a socket does not take at once, that thread
/// sends later.
///
/// A rank is lost when its connection closes, and when its host's system has been silent for
/// `Options::silence`. The kernels ask each other (keep-alive), and answer for a process that is
/// stopped, too: it is late, not lost. A message of ours that asked for an answer could not tell
/// the two apart, and neither can TCP_USER_TIMEOUT, which ends a connection to a stopped process
/// once its buffers are full.
class SocketBootstrap final : public Bootstrap {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string version;
    std::string host;
    std::vector<IpAddress> listen_addresses;  ///< where this rank's children may connect
    std::chrono::milliseconds budget{300'000};
    std::chrono::seconds silence = kSilence;
    Status failure;  ///< why this rank cannot take part: told to all others, and returned
  };

  /// Once all have come, what is left to do has at least this much time, or the budget if that is
  /// less: the last rank may have come just in time.
  static constexpr std::chrono::seconds kAfterMeeting{30};

  /// Meets the other ranks and takes its place in the tree. Collective; waits at most about
  /// `budget` for others to come. What fails here is told to all others.
  /// @return what the rendezvous says (kMismatch, kTimeout with the missing ranks, kPeerLost with
  /// the rank), kPeerLost if nobody
  ///   answers for this id, kInvalidArgument for rank and size, or `failure`.
  static Result<std::unique_ptr<SocketBootstrap>> Connect(const Rendezvous& rendezvous,
                                                          const Options& options);

  ~SocketBootstrap() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<std::vector<Bytes>> AllGather(ByteView mine, const Deadline& deadline) override;
  void Abort(const Status& why) override;
  Status Health() const override;
  void Observe(Observer observer) override;
  void Close() override;

 private:
  /// A connection to the parent or to a child.
  struct Link {
    Link(int link_rank, Connection proved) : rank(link_rank), connection(std::move(proved)) {}

    const int rank;
    Connection connection;    ///< the reading thread receives
    std::mutex send_mutex;    ///< collective calls and the reading thread both send
    std::deque<Frame> inbox;  ///< guarded by `mutex_`
    bool departed = false;    ///< guarded by `mutex_`: said good-bye, or is lost
    bool has_asked = false;   ///< guarded by `mutex_`: for who is missing
  };
  /// Rank 0 finds out who has not come to an exchange.
  struct Census {
    std::uint32_t sequence;
    Deadline end;
    std::vector<std::optional<bool>> came;  ///< by rank; nothing: has not answered
    int answers = 0;
  };
  class Joiner;

  SocketBootstrap(int rank, int size, std::chrono::seconds silence)
      : rank_(rank), size_(size), silence_(silence) {}

  Status Start(std::unique_ptr<Link> parent, std::vector<std::unique_ptr<Link>> children);
  std::vector<Link*> Links() const;
  /// Ends the reading thread and the connections, without a word.
  void Leave();
  void ReadLoop();
  void ReadFrom(Link* link);
  void Handle(Link* link, Frame frame);
  /// Whether its host has been silent for too long, which is a loss.
  bool CheckSilence(Link* link);
  void NoteLoss(Loss loss, const Link* heard_from);
  /// A neighbour that may not know that it is lost: it learns so from the end of its connection.
  void DeclareLost(Link* link, std::string reason);
  /// Sends at once, or leaves it to the reading thread. The loss of the other end shows there.
  void Send(Link* link, FrameType type, std::uint32_t sequence, ByteView payload);
  /// Waits until the others' systems have all that was sent, a little.
  void AwaitDelivery();
  void Wake() const;
  Deadline NextWakeUp() const;

  /// The error of an exchange whose deadline has passed: asks rank 0 who is missing.
  Status WhoIsMissing(std::uint32_t sequence, const Deadline& deadline);
  void StartCensus(std::uint32_t sequence);
  void NotePresence(std::uint32_t sequence, int rank, bool came);
  /// Ends a census that is complete, or whose time is over.
  void EndCensus();
  void PassOnMissing(std::uint32_t sequence, const std::vector<int>& missing);

  Result<std::vector<Bytes>> Exchange(ByteView mine, const Deadline& deadline);
  Result<Frame> Receive(Link* link, FrameType type, std::uint32_t sequence,
                        const Deadline& deadline);
  Status LossStatus() const;  ///< needs `mutex_`

  const int rank_;
  const int size_;
  const std::chrono::seconds silence_;
  std::unique_ptr<Link> parent_;  ///< null on rank 0
  std::vector<std::unique_ptr<Link>> children_;
  UniqueFd wake_;
  Status failed_;  ///< of an exchange: there is no next one

  mutable std::mutex mutex_;
  std::uint32_t entered_ = 0;  ///< exchanges that this rank has come to
  std::optional<Census> census_;
  std::optional<std::pair<std::uint32_t, std::vector<int>>> missing_;  ///< of an exchange
  std::condition_variable changed_;
  std::vector<Loss> losses_;
  std::set<int> lost_ranks_;   ///< guarded by `observer_mutex_`
  std::mutex observer_mutex_;  ///< held while the observer runs; taken before `mutex_`
  Observer observer_;

  std::atomic<bool> closing_{false};
  std::thread reader_;
};

}  // namespace mori::shmem
