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
#include "bootstrap/frame.hpp"
#include "bootstrap/rendezvous_messages.hpp"

namespace mori::shmem {

/// One rank of a tree with eight children a node (bootstrap/thread.hpp). A thread of its own reads
/// all connections from the moment the tree stands: it hands messages to the collective calls, and
/// floods the news of a lost rank.
class SocketBootstrap final : public Bootstrap {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string version;
    std::string host;
    std::vector<IpAddress> listen_addresses;  ///< where this rank's children may connect
    std::chrono::milliseconds budget{300'000};
    Status failure;  ///< why this rank cannot take part: told to all others, and returned
  };

  /// Meets the other ranks and takes its place in the tree. Collective; waits at most about
  /// `budget`.
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
    int rank = 0;
    UniqueFd fd;
    FrameParser parser;
    std::mutex send_mutex;    ///< collective calls and the reading thread both send
    std::deque<Frame> inbox;  ///< guarded by `mutex_`
    bool departed = false;    ///< guarded by `mutex_`: said good-bye, or is lost
  };
  class Joiner;

  SocketBootstrap(int rank, int size) : rank_(rank), size_(size) {}

  Status Start(std::unique_ptr<Link> parent, std::vector<std::unique_ptr<Link>> children);
  std::vector<Link*> Links() const;
  /// Ends the reading thread and the connections, without a word.
  void Leave();
  void ReadLoop();
  void ReadFrom(Link* link);
  void Handle(Link* link, Frame frame);
  void NoteLoss(Loss loss, const Link* heard_from);
  Status Send(Link* link, const Frame& frame, const Deadline& deadline);
  Result<Frame> Receive(Link* link, FrameType type, std::uint32_t sequence,
                        const Deadline& deadline);
  Status LossStatus() const;  ///< needs `mutex_`

  const int rank_;
  const int size_;
  std::unique_ptr<Link> parent_;  ///< null on rank 0
  std::vector<std::unique_ptr<Link>> children_;
  UniqueFd wake_;
  std::uint32_t sequence_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Loss> losses_;
  std::set<int> lost_ranks_;   ///< guarded by `observer_mutex_`
  std::mutex observer_mutex_;  ///< held while the observer runs; taken before `mutex_`
  Observer observer_;

  std::atomic<bool> closing_{false};
  std::thread reader_;
};

}  // namespace mori::shmem
