// Operations on memory of other PEs, over one endpoint.
//
// Small operations are records of messages (wire.hpp). A message goes at once if none is under way
// to its PE; what is put meanwhile is gathered and goes with the next. Large puts and gets are
// writes and reads of the network. A thread of this PE carries out what others send; while it is at
// it, threads that wait do so, too.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "transport/ofi/endpoint.hpp"
#include "transport/ofi/regions.hpp"
#include "transport/ofi/wire.hpp"
#include "transport/remote.hpp"

namespace mori::shmem::ofi {

class OfiChannel final : public Channel {
 public:
  struct Parts {
    RemoteParts remote;
    std::shared_ptr<Endpoint> endpoint;
    std::shared_ptr<Regions> regions;
    std::uint64_t token = 0;  ///< by which this process is told from others at its address
    std::chrono::milliseconds connect_limit{};
  };

  explicit OfiChannel(Parts parts);
  /// Sends what is still to be sent, for a second at most.
  ~OfiChannel() override;

  /// Begins to serve others.
  Status Start();
  /// From now on `pe` is reached.
  void Connect(int pe, fi_addr_t address, std::uint64_t token);

  Status Put(int pe, RemotePlace to, const void* from, std::uint64_t bytes) override;
  Status PutNbi(int pe, RemotePlace to, const void* from, std::uint64_t bytes) override;
  Status Get(int pe, void* to, RemotePlace from, std::uint64_t bytes) override;
  Status GetNbi(int pe, void* to, RemotePlace from, std::uint64_t bytes) override;
  Status PutSignal(int pe, RemotePlace to, const void* from, std::uint64_t bytes, RemotePlace word,
                   std::uint64_t signal, SignalOp op) override;
  Status Post(int pe, RemotePlace word, detail::AtomicOp op, int width,
              std::uint64_t value) override;
  Status Tell(int pe, RemotePlace to, const std::uint64_t* words, std::uint64_t bytes) override;
  Status Fetch(int pe, RemotePlace word, detail::AtomicOp op, int width, std::uint64_t value,
               std::uint64_t expected, std::uint64_t* found) override;
  Status Fence() override;
  Status Quiet() override;
  Status Quiet(int pe) override;
  void Progress() override;
  std::uint64_t Arrivals() override;
  void AwaitArrival(std::uint64_t seen, std::chrono::nanoseconds limit) override;
  void Synchronize() override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// What libfabric is given with each call, and gives back with its completion.
  struct Request {
    enum class Kind { kReceive, kSend, kTransfer };
    explicit Request(Kind its_kind) : kind(its_kind) {}
    fi_context2 space{};  ///< the network's: first
    Kind kind;
    int pe = -1;
  };

  struct Message : Request {
    explicit Message(Kind its_kind) : Request(its_kind) {}
    std::uint64_t number = 0;
    bool has_effect = false;  ///< its sender waits to hear that it is carried out
    alignas(64) std::byte bytes[kMessageBytes];  ///< aligned: words in it stay whole
    MessageWriter writer{bytes};
  };

  /// Who waits for an operation; on its stack.
  struct Waited {
    bool is_done = false;
    Status status;
    std::uint64_t found = 0;
  };

  /// What is under way to a PE and answers by itself: a large put or get, or whatever has a reply.
  struct Operation : Request {
    enum class What { kWrite, kRead, kReply };
    Operation() : Request(Kind::kTransfer) {}
    What what = What::kWrite;
    std::uint64_t number = 0;
    void* target = nullptr;  ///< of a get by message; null once nobody wants it
    std::uint64_t bytes = 0;
    Waited* waited = nullptr;  ///< null where nobody waits
  };

  struct Peer {
    std::mutex mutex;  ///< all below
    int pe = 0;
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    std::uint64_t token = 0;
    std::atomic<bool> is_connected{false};
    std::atomic<bool> is_lost{false};
    Status loss;                                    ///< what every call is told then
    Status failure;                                 ///< the first that no quiet has told
    bool has_taken = false;                         ///< a message: there was a connection
    std::chrono::steady_clock::time_point sent_at;  ///< the last message

    // What goes there: `full` in order, then `open`.
    std::unique_ptr<Message> open;
    std::deque<std::unique_ptr<Message>> full;
    std::vector<std::unique_ptr<Message>> sent;  ///< the network has these
    std::uint64_t next_number = 1;               ///< of messages
    std::uint64_t effect = 0;                    ///< the last message that its PE has to carry out
    std::uint64_t applied = 0;                   ///< the last of which it said so
    bool is_stuck = false;  ///< the network took nothing: not to be tried at once
    std::optional<std::chrono::steady_clock::time_point>
        stuck_since;  ///< nothing taken from then on

    // What comes from there.
    std::uint64_t received = 0;  ///< the last message that was carried out
    std::uint64_t told = 0;      ///< the last of which its PE was told
    bool is_owed = false;        ///< its PE waits to be told

    std::map<std::uint64_t, std::unique_ptr<Operation>> operations;  ///< by number
    std::uint64_t next_operation = 1;
    std::size_t transfers = 0;  ///< writes and reads that the network has

    std::uint64_t fenced_messages = 0;   ///< fences that the next message need not look at
    std::uint64_t fenced_transfers = 0;  ///< and the next write
  };

  Peer& peer(int pe) { return *peers_[static_cast<std::size_t>(pe)]; }
  bool IsSelf(int pe) const { return pe == remote_.self; }
  Status CheckReached(const Peer& peer) const;

  // Calls, with the lock of their peer.
  template <typename Write>
  Status Append(Peer& peer, Lock& lock, std::size_t bytes, bool has_effect, Write write);
  Status MakeRoom(Peer& peer, Lock& lock, std::size_t bytes);
  Status PutSmall(Peer& peer, Lock& lock, RemotePlace to, const void* from, std::uint64_t bytes);
  Status TransferAll(int pe, Operation::What what, void* local, RemotePlace place,
                     std::uint64_t bytes, bool waits);
  Status Transfer(Peer& peer, Lock& lock, Operation::What what, void* local, RemotePlace place,
                  std::uint64_t bytes, Waited* waited);
  Operation* NewOperation(Peer& peer, Operation::What what, Waited* waited);
  Status Await(Peer& peer, Lock& lock, std::uint64_t number, const Waited& waited);
  Status PassFence(Peer& peer, Lock& lock, bool is_transfer);
  Status AwaitWrites(Peer& peer, Lock& lock);
  Status AwaitMessages(Peer& peer, Lock& lock);
  Status AwaitAll(Peer& peer, Lock& lock);
  template <typename Condition>
  Status WaitUntil(Peer& peer, Lock& lock, Condition condition);
  /// Where the network does not reach the memory there.
  Status PutByMessages(int pe, RemotePlace to, const void* from, std::uint64_t bytes);
  Status GetByMessages(int pe, void* to, RemotePlace from, std::uint64_t bytes);
  /// Asks for a small get. @return the number of its operation
  Result<std::uint64_t> AskFor(Peer& peer, Lock& lock, void* to, RemotePlace from,
                               std::uint64_t bytes, Waited* waited);
  /// Nobody waits any more: our stack goes, and of a get by message its target.
  static void Forget(Peer& peer, std::uint64_t number);
  Result<Regions::Found> FindOwn(const Regions::Use& use, RemotePlace place,
                                 std::uint64_t bytes) const;

  // Sending, with the lock of the peer.
  Message& OpenMessage(Peer& peer);
  void CloseMessage(Peer& peer);
  /// Sends what is full, and the open message too if none is under way or `is_urgent`.
  void Send(Peer& peer, bool is_urgent);
  void SendFull(Peer& peer);
  void NoteStuck(Peer& peer);
  void NoteUnstuck(Peer& peer);
  void Lose(Peer& peer, const std::string& why);
  void NoteFailure(Peer& peer, Status failure);

  // What the network brings, for whoever holds `progress_mutex_`.
  bool TryDrain();
  bool Drain();
  void Finish(const fi_cq_msg_entry& entry);
  void FinishFailed();
  void FinishSend(Message* message, const std::string& error);
  void FinishTransfer(Operation* operation, const std::string& error);
  void PostReceive(Message* message);
  void Take(std::span<const std::byte> bytes);
  void CarryOut(Peer& peer, const Record& record, const Regions::Use& use, bool* is_owed);
  void TakeReply(Peer& peer, const Record& record);
  void RefuseFor(Peer& peer, std::uint64_t ticket, const Status& why);
  template <typename Write>
  void Answer(Peer& peer, std::size_t bytes, Write write);
  void TellOwed();

  void Serve();
  void WakeServer();
  /// Whether threads that wait have made progress since the last call.
  bool OthersServe(std::uint64_t* spins) const;
  /// Carries out what comes until nothing has for a while, or a thread that waits takes over.
  /// @return whether the wait descriptor will say when more comes
  bool ServeWhatComes();
  void LookAfterStuck();
  /// Sends something to each peer that something is expected from: a connection that is gone says
  /// so only to who uses it.
  void ProbeSilent();
  void TellLosses();
  void WakeWaiting();

  RemoteParts remote_;
  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Regions> regions_;
  const std::uint64_t token_;
  const std::chrono::milliseconds connect_limit_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<std::uint64_t> fences_{0};

  std::mutex progress_mutex_;
  std::vector<std::unique_ptr<Message>> receives_;
  std::vector<Message*> unposted_;  ///< receives that the network did not take
  std::vector<Peer*> owed_;         ///< peers to be told of what was carried out
  bool has_warned_ = false;         ///< that the device of memory has failed

  std::mutex wake_mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> rounds_{0};  ///< of progress that changed something
  std::atomic<int> waiting_{0};

  std::mutex losses_mutex_;
  std::vector<std::pair<int, std::string>> losses_;  ///< to be told
  std::atomic<bool> has_losses_{false};

  std::atomic<int> spinning_{0};            ///< threads that make progress as they wait
  std::atomic<std::uint64_t> spins_{0};     ///< waits that have spun
  std::atomic<int> stuck_{0};               ///< peers
  std::atomic<bool> has_connected_{false};  ///< since descriptors were looked at
  std::atomic<bool> is_stopped_{false};
  const pid_t owner_ = ::getpid();
  UniqueFd stop_;
  std::thread server_;
};

}  // namespace mori::shmem::ofi
