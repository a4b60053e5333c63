// Bootstrap over sockets: ranks meet at a rendezvous (a unique id), then stay connected as a tree.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/unique_fd.hpp"
#include "bootstrap/acceptor.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/connection.hpp"
#include "bootstrap/factory.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/tree.hpp"

namespace mori::shmem {

/// One rank of a tree (bootstrap/tree.hpp). A thread of its own reads
/// all connections from the moment the tree stands: it hands messages to the collective calls, and
/// floods the news of a lost rank. No send waits: what a socket does not take at once, that thread
/// sends later.
///
/// A rank is lost when its connection closes, and when its host's system has been silent for
/// `BootstrapOptions::silence`. The kernels ask each other (keep-alive), and answer for a process
/// that is stopped, too: it is late, not lost. A message of ours that asked for an answer could not
/// tell the two apart, and neither can TCP_USER_TIMEOUT, which ends a connection to a stopped
/// process once its buffers are full.
class SocketBootstrap final : public Bootstrap {
 public:
  using Options = BootstrapOptions;

  /// As `MakeBootstrap()`: meets the others at the rendezvous and takes its place in the tree.
  static Result<std::unique_ptr<SocketBootstrap>> Connect(const Rendezvous& rendezvous,
                                                          const Options& options);

  ~SocketBootstrap() override;

  void Abort(const Status& why) override;
  void Accuse(int rank, const std::string& reason) override;
  void Observe(Observer observer) override;
  void Leave() override;

 private:
  /// A connection to the parent or to a child.
  struct Link {
    Link(int link_rank, Connection proved) : rank(link_rank), connection(std::move(proved)) {}

    const int rank;
    Connection connection;  ///< the reading thread receives
    std::mutex send_mutex;  ///< callers and the reading thread both send
    bool departed = false;  ///< guarded by `mutex_`: said good-bye, or is lost
  };
  /// A call that somebody asks about: who has not come to it?
  using Question = std::pair<Channel, std::uint32_t>;
  /// By rank.
  using Marks = std::vector<bool>;
  /// Rank 0 finds out who has not come.
  struct Census {
    Deadline end;
    std::vector<std::optional<bool>> came;  ///< by rank; nothing: has not answered
    int answers = 0;
  };
  class Joiner;

  SocketBootstrap(int rank, int size, std::chrono::seconds silence)
      : Bootstrap(rank, size), silence_(silence) {}

  const Place& place() const override { return place_; }
  std::optional<int> ChildTowards(int rank) const override;
  void Post(int to, const Channel& channel, Bytes message) override;
  std::optional<std::vector<int>> FindMissing(const Round& round) override;

  Status Start(std::unique_ptr<Link> parent, std::vector<std::unique_ptr<Link>> children);
  /// Returns once all ranks are in the tree, and know its shape, which rank 0 brings. Collective.
  Status LearnShape(const std::vector<std::uint32_t>& node_of, const WaitLimit& limit);
  std::vector<Link*> Links() const;
  /// Ends the reading thread and the connections, without a word.
  void Stop();
  void ReadLoop();
  void ReadFrom(Link* link);
  void Handle(Link* link, Frame frame);
  /// The neighbour on the way to another rank.
  Link* WayTo(int rank) const;
  /// Hands a message to this rank, or passes it on. @return false for one that is out of place
  bool Deliver(Link* link, Frame frame);
  /// The next step of a letter that is another rank's, with `mutex_` held. @return false where it
  /// has no way but back
  bool PassOn(const Link* from, const Frame& frame, int to);
  /// From now on letters find their way. Those that wait are sent first.
  void SetTree(Tree tree);
  /// Into the mailbox. Without room this rank gives up.
  void Keep(int from, const Channel& channel, Bytes message);
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

  /// The parts of these messages that are about a call. @return nothing for bytes that name none
  static std::optional<Question> ReadQuestion(const Frame& frame, ByteReader* reader);
  void Ask(Link* link, FrameType type, const Question& question, ByteView more = {});
  void StartCensus(const Question& question);
  void NotePresence(const Question& question, int rank, bool came);
  /// Ends the censuses that are complete, or whose time is over.
  void EndCensuses();
  Marks MissingIn(const Census& census) const;
  void PassOnMissing(const Question& question, const Marks& missing);

  const std::chrono::seconds silence_;
  std::unique_ptr<Link> parent_;  ///< null on rank 0
  std::vector<std::unique_ptr<Link>> children_;
  Place place_;
  UniqueFd wake_;

  mutable std::mutex mutex_;
  std::optional<Tree> tree_;  ///< once all are in it
  /// Letters that came before its shape was known, and by whom.
  std::vector<std::pair<Link*, Frame>> waiting_;
  std::map<Question, Census> censuses_;
  std::map<Question, std::set<Link*>> askers_;                       ///< children
  std::map<Question, std::shared_ptr<std::optional<Marks>>> asked_;  ///< by this rank
  std::condition_variable answered_;                                 ///< of `asked_`, or a loss
  std::vector<Loss> losses_;
  std::set<int> lost_ranks_;   ///< guarded by `observer_mutex_`
  std::mutex observer_mutex_;  ///< held while the observer runs; taken before `mutex_`
  Observer observer_;

  std::atomic<bool> closing_{false};
  std::thread reader_;
};

}  // namespace mori::shmem
