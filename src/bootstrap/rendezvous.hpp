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
#include "base/wait_watch.hpp"
#include "bootstrap/acceptor.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/rendezvous_messages.hpp"

namespace mori::shmem {

/// How long a unique id that nobody uses is served.
inline constexpr std::chrono::minutes kUnusedLifetime{60};

/// One rendezvous, served by a thread of its own from `Begin()` until every rank has reported that
/// it is connected, or, after a failure, until every rank has been told, or until destruction. An
/// id that no rank uses within `lifetime` ends, too.
class RendezvousServer {
 public:
  /// Listens. Nobody is answered before `Begin()`.
  static Result<std::unique_ptr<RendezvousServer>> Open(
      const std::vector<IpAddress>& addresses,
      std::chrono::milliseconds lifetime = kUnusedLifetime);
  static Result<std::unique_ptr<RendezvousServer>> Start(
      const std::vector<IpAddress>& addresses,
      std::chrono::milliseconds lifetime = kUnusedLifetime);
  ~RendezvousServer();

  /// Starts the thread, unless it was started or the id was claimed. Called by one thread at a
  /// time.
  Status Begin();
  bool has_begun() const { return thread_.joinable(); }
  /// Takes the id for a world of one in this process, which needs no connection.
  /// @return false if a rank has come already, or it was claimed before
  bool Claim();
  /// Fails the start of all ranks with `why`, which those hear that have come and the up to
  /// `others` that come later. Starts the thread, if it must. Called by one thread at a time.
  Status GiveUp(const Status& why, int others);
  /// Where a first call shows, before `Begin()`.
  std::vector<int> listeners() const { return acceptor_.listeners(); }
  const Deadline& unused_until() const { return unused_until_; }

  const UniqueId& id() const { return id_; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  /// Waits until it is over, at most for `limit`: after a success all are connected, and after a
  /// failure every rank has been told.
  void AwaitLastWord(std::chrono::milliseconds limit);

 private:
  struct Arrived {
    Connection connection;
    Hello hello;
    bool connected = false;  ///< has said that its place in the tree is taken
    bool failed = false;     ///< has said why it fails, and waits to be told the cause
  };

  enum class Use { kNone, kByRanks, kClaimed };

  RendezvousServer(Acceptor acceptor, const Rendezvous& rendezvous, UniqueFd wake,
                   UniqueFd speakers, std::chrono::milliseconds lifetime);

  void Serve();
  /// Until all are connected, or told of a failure.
  Status MeetAndWelcome();
  Status Admit(Acceptor::Caller caller);
  Status CheckHello(const Hello& hello) const;
  /// Waits for what a rank says from now on.
  Status Listen(int rank, const Arrived& arrived);
  /// Those who say something now. What one of them costs does not depend on how many have come.
  Status HearThem();
  Status HearFrom(int rank);
  /// All that a rank has sent so far.
  Status HearOut(Arrived* arrived);
  /// What a rank says of its failure: the failure of all, unless another's fault may show soon.
  Status Weigh(const Arrived& arrived, const Failure& failure);
  Status WelcomeAll();
  /// Of every rank: its node, numbered by their first ranks.
  std::vector<std::uint32_t> NumberNodes() const;
  /// Ranks that have not come.
  std::vector<int> Missing() const;
  /// Now and then, a line.
  void SayWhoIsLate();
  Status MissingRanks() const;
  /// What `GiveUp()` was called with; success if it was not.
  Status WhyGivenUp();
  Deadline NextGiveUp() const;
  void TellAll(const Status& failure);
  void AwaitHangUp();
  void TellLatecomers(const Status& failure);
  bool AllConnected() const;

  /// A failure that may be another rank's fault: told if nothing better is known by then.
  struct Suspicion {
    Status told;
    int suspect;  ///< what this rank says of its own failure is told instead
    Deadline until;
  };

  Acceptor acceptor_;
  UniqueId id_;
  UniqueFd wake_;
  UniqueFd speakers_;  ///< epoll over those who have come and are not connected yet
  const Deadline unused_until_;
  std::atomic<Use> use_{Use::kNone};  ///< decided once: by the first rank, or by who claims it
  std::map<int, Arrived> arrived_;
  int connected_ = 0;  ///< of them
  Deadline first_give_up_ = Deadline::Never();
  std::chrono::milliseconds budget_{300'000};
  int size_ = 0;          ///< 0 until the first rank says it
  std::size_t gone_ = 0;  ///< ranks that came and were lost: nobody is left to tell
  bool welcomed_ = false;
  std::optional<Suspicion> suspicion_;
  std::optional<WaitClock> clock_;  ///< of the wait for the ranks
  std::atomic<bool> stopping_{false};
  std::atomic<bool> finished_{false};
  std::mutex finished_mutex_;  ///< of these two, too:
  Status given_up_;
  int others_ = 0;
  std::condition_variable finished_changed_;
  std::thread thread_;
};

/// Serves ids of this process. Thread-safe. One thread waits for the first calls for all ids that
/// are not used yet; a rendezvous gets its own with its first call.
class RendezvousService {
 public:
  /// Lives as long as the process.
  static RendezvousService& Instance();

  /// Opens a rendezvous on the addresses that `config` selects. Where this machine has no address,
  /// the id is good for a world of one in this process.
  Result<UniqueId> Open(const Config& config);

  /// Takes an id for a world of one in this process, which needs no connection.
  /// @return kPeerLost if it is not one of this process, or it is used already
  Status Claim(const RendezvousName& name);
  /// Why nobody can call for an id without addresses.
  Status WhyAlone(const RendezvousName& name);

  /// After what failed in this process, whose id other ranks may have: fails their start with
  /// `why`, and waits a little until up to `others` have heard of it.
  void GiveUp(const UniqueId& id, const Status& why, int others);
  /// After an init here: waits a little until the rendezvous is over, should this process serve it.
  /// After a failure all ranks are to hear of it, since this process may end now; after a success
  /// nobody is waited for but its thread. Does nothing for another process's id.
  void AwaitLastWord(const RendezvousName& name);

  /// Ends the threads of rendezvous that are over. Called now and then.
  void Reap();
  /// Around a fork: no other thread is in here meanwhile. The child forgets what belongs to the
  /// parent, whose threads it does not have.
  void BeforeFork() { mutex_.lock(); }
  void AfterForkInParent() { mutex_.unlock(); }
  void AfterForkInChild();

 private:
  using Servers = std::vector<std::shared_ptr<RendezvousServer>>;

  /// An id of a process that nobody can call.
  struct Alone {
    RendezvousName name;
    Status why;
    bool is_claimed = false;
  };

  std::shared_ptr<RendezvousServer> Find(const RendezvousName& name);  // needs `mutex_`
  UniqueId OpenAlone(Status why);
  Status StartDoorman();  // needs `mutex_`
  void AwaitFirstCalls();
  /// Those not begun yet, and where their first calls show; the ones whose time is over are
  /// dropped.
  struct Waiting {
    std::shared_ptr<RendezvousServer> server;
    std::vector<int> listeners;
  };
  std::vector<Waiting> FindWaiting();

  std::mutex mutex_;
  Servers servers_;
  std::vector<Alone> alone_;
  UniqueFd
      doorbell_;  ///< something new for the thread that waits for first calls; empty: none runs
  /// Of a parent process, whose threads are not here: never destroyed.
  Servers* const abandoned_ = new Servers;
};

}  // namespace mori::shmem
