// Where the ranks of one unique id meet: the process that made the id answers them until all are
// connected.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/config.hpp"
#include "bootstrap/acceptor.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/rendezvous_messages.hpp"

namespace mori::shmem {

/// One rendezvous, served by a thread of its own from `Start()` until every rank has reported that
/// it is connected, or, after a failure, until every rank has been told, or until destruction.
class RendezvousServer {
 public:
  static Result<std::unique_ptr<RendezvousServer>> Start(const std::vector<IpAddress>& addresses);
  ~RendezvousServer();

  const UniqueId& id() const { return id_; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  /// After a failure: waits until every rank has been told, at most for `limit`.
  void AwaitLastWord(std::chrono::milliseconds limit);

 private:
  struct Arrived {
    Connection connection;
    Hello hello;
    std::chrono::steady_clock::time_point give_up_at;
    bool connected = false;  ///< has said that its place in the tree is taken
    bool failed = false;     ///< has said why it fails, and waits to be told the cause
  };

  RendezvousServer(Acceptor acceptor, const Rendezvous& rendezvous, UniqueFd wake);

  void Serve();
  /// Until all are connected, or told of a failure.
  Status MeetAndWelcome();
  Status Admit(Acceptor::Caller caller);
  Status CheckHello(const Hello& hello) const;
  Status HearFrom(int fd);
  /// All that a rank has sent so far.
  Status HearOut(Arrived* arrived);
  /// What a rank says of its failure: the failure of all, unless another's fault may show soon.
  Status Weigh(const Arrived& arrived, const Failure& failure);
  Status Welcome();
  Status MissingRanks() const;
  Deadline NextGiveUp() const;
  void TellAll(const Status& failure);
  void AwaitHangUp();
  void TellLatecomers(const Status& failure);
  bool AllConnected() const;

  /// A failure that may be another rank's fault: told if nothing better is known by then.
  struct Suspicion {
    Status told;
    Deadline until;
  };

  Acceptor acceptor_;
  UniqueId id_;
  UniqueFd wake_;
  std::map<int, Arrived> arrived_;
  std::chrono::milliseconds budget_{300'000};
  int size_ = 0;          ///< 0 until the first rank says it
  std::size_t gone_ = 0;  ///< ranks that came and were lost: nobody is left to tell
  bool welcomed_ = false;
  std::optional<Suspicion> suspicion_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> finished_{false};
  std::mutex finished_mutex_;
  std::condition_variable finished_changed_;
  std::thread thread_;
};

/// Serves ids of this process. Thread-safe.
class RendezvousService {
 public:
  /// Lives as long as the process.
  static RendezvousService& Instance();

  /// Starts a rendezvous on the addresses that `config` selects.
  Result<UniqueId> Open(const Config& config);

  /// After a failed init here: waits a little until all ranks have heard of it, should this process
  /// serve them, since it may end now. Does nothing for another process's id.
  void AwaitLastWord(const RendezvousName& name);

  /// Ends the threads of rendezvous that are over. Called now and then.
  void Reap();
  /// Around a fork: no other thread is in here meanwhile. The child forgets what belongs to the
  /// parent, whose threads it does not have.
  void BeforeFork() { mutex_.lock(); }
  void AfterForkInParent() { mutex_.unlock(); }
  void AfterForkInChild();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<RendezvousServer>> servers_;
  /// Of a parent process, whose threads are not here: never destroyed.
  std::vector<std::shared_ptr<RendezvousServer>>* const abandoned_ =
      new std::vector<std::shared_ptr<RendezvousServer>>;
};

}  // namespace mori::shmem
