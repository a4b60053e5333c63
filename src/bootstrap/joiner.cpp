// How one rank of a SocketBootstrap finds its place in the tree.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "base/wait_watch.hpp"
#include "bootstrap/init_watch.hpp"
#include "bootstrap/mailbox.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/socket_bootstrap.hpp"

namespace mori::shmem {
namespace {

using std::chrono::milliseconds;

/// The rendezvous reports a rank that did not come; a waiting rank gives it this much longer than
/// its own budget to say so.
constexpr milliseconds kGrace{2'000};
/// How long the rendezvous may take to find out whose fault a failure is.
constexpr milliseconds kVerdict{5'000};
constexpr milliseconds kConnectAttempt{5'000};
constexpr milliseconds kRetryPause{20};
/// How often a wait that lasts looks whether it has something to say.
constexpr milliseconds kBetweenLooks{250};
/// The others' readers never pause; this only ends a wait for a stopped process.
Deadline NewsLimit() { return Deadline::After(std::chrono::seconds(2)); }

std::string Describe(const Endpoint& endpoint) {
  std::string text;
  for (const auto& address : endpoint.addresses) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", address.ToString());
  }
  return fmt::format("{} port {}", text, endpoint.port);
}

}  // namespace

/// The steps of one rank from its unique id to its place in the tree.
class SocketBootstrap::Joiner {
 public:
  Joiner(const Rendezvous& rendezvous, const Options& options)
      : rendezvous_(rendezvous),
        options_(options),
        deadline_(Deadline::After(options.budget - options.waited)
                      .AtLeast(std::min<milliseconds>(options.budget, kConnectAttempt))) {}

  Result<std::unique_ptr<SocketBootstrap>> Run() {
    // What fails here is told to the others as what failed before.
    failure_ = options_.failure;
    if (failure_.ok()) failure_ = CheckRank();
    if (failure_.ok()) failure_ = ListenForChildren();
    FaultPoint("init: before the rendezvous");
    MORI_RETURN_IF_ERROR(MeetOthers());
    FaultPoint("init: welcomed");
    auto joined = JoinTree();
    if (!joined.ok()) return TellRendezvous(joined.status());
    // The rendezvous watches over us until here, the tree from here on.
    static_cast<void>(server_->Send(Message(FrameType::kBye, {}), NewsLimit()));
    return joined;
  }

 private:
  Status CheckRank() const {
    if (options_.size > kMaxRanks) {
      return Error(ErrorCode::kInvalidArgument, "a world of {} ranks: {} are the most",
                   options_.size, kMaxRanks);
    }
    if (options_.size >= 1 && options_.rank >= 0 && options_.rank < options_.size) return Status();
    return Error(ErrorCode::kInvalidArgument, "rank {} is out of range for a world of {} (0 to {})",
                 options_.rank, options_.size, options_.size - 1);
  }

  Frame Message(FrameType type, Bytes payload) const {
    return {type, static_cast<std::uint32_t>(options_.rank), 0, std::move(payload)};
  }

  /// Whether it has any shows at the rendezvous only.
  Status ListenForChildren() {
    if (options_.size == 1) return Status();
    MORI_ASSIGN_OR_RETURN(acceptor_, Acceptor::Listen(options_.listen_addresses, rendezvous_.name,
                                                      rendezvous_.secret));
    return Status();
  }

  Status MeetOthers() {
    const Endpoint meeting_point{rendezvous_.port, rendezvous_.addresses};
    auto connected = ConnectAndProve(meeting_point, /*may_come_later=*/false);
    if (!connected.ok() && acceptor_ && connected.status().code() == ErrorCode::kSystem) {
      // Out of descriptors, say: with one less in use the others can be told.
      acceptor_.reset();
      failure_ = connected.status();
      connected = ConnectAndProve(meeting_point, /*may_come_later=*/false);
    }
    if (!connected.ok()) return failure_.ok() ? connected.status() : failure_;
    server_.emplace(std::move(*connected));
    Hello hello;
    hello.rank = options_.rank;
    hello.size = options_.size;
    hello.version = options_.version;
    hello.host = options_.host;
    hello.node = options_.node;
    hello.process_id = static_cast<std::uint32_t>(::getpid());
    hello.failure = failure_.message();
    hello.budget = options_.budget;
    hello.waited = options_.budget - Left();
    if (acceptor_) hello.endpoint = {acceptor_->port(), acceptor_->addresses()};
    const Status sent = server_->Send(Message(FrameType::kHello, EncodeHello(hello)), deadline_);
    MORI_RETURN_IF_ERROR(failure_);
    MORI_RETURN_IF_ERROR(sent);
    FaultPoint("init: hello sent");
    MORI_ASSIGN_OR_RETURN(Frame reply, HearRendezvous(Deadline::After(Left() + kGrace)));
    deadline_ = deadline_.AtLeast(std::min<milliseconds>(options_.budget, kAfterMeeting));
    if (reply.type != FrameType::kWelcome)
      return Error(ErrorCode::kMismatch, "the rendezvous sent something unexpected");
    MORI_ASSIGN_OR_RETURN(place_, DecodeWelcome(reply.payload, options_.size));
    if (place_.children.empty()) acceptor_.reset();
    return Status();
  }

  milliseconds Left() const {
    const auto left = std::chrono::ceil<milliseconds>(deadline_.end() - Deadline::Clock::now());
    return std::clamp(left, milliseconds(0), options_.budget);
  }

  /// The next message of the rendezvous; what it rejects comes back as an error.
  Result<Frame> HearRendezvous(const Deadline& deadline) {
    auto frame = ReceiveWithin(deadline);
    if (frame.ok() && frame->type == FrameType::kReject)
      return rejection_ = DecodeStatus(frame->payload);
    if (frame.ok()) return frame;
    if (frame.status().code() == ErrorCode::kTimeout) {
      return Error(ErrorCode::kTimeout,
                   "the rendezvous at {} did not answer within {:g} s (MORI_BOOTSTRAP_TIMEOUT)",
                   Describe(Endpoint{rendezvous_.port, rendezvous_.addresses}),
                   static_cast<double>(options_.budget.count()) / 1e3);
    }
    return Error(ErrorCode::kPeerLost,
                 "the process that made the unique id was lost during init: {}",
                 frame.status().message());
  }

  /// Now and then says that it still waits: who is missing is known at the other end, which says
  /// so.
  Result<Frame> ReceiveWithin(const Deadline& deadline) {
    WaitClock clock(options_.budget);
    for (;;) {
      if (clock.Look() == WaitClock::Due::kLine) {
        LogWarn(
            "still waiting for all {} ranks to come to init, {:.3g} s: the process that made the "
            "unique id says which are missing",
            options_.size, clock.ElapsedSeconds());
      }
      auto frame = server_->Receive(deadline.AtMost(kBetweenLooks));
      const bool goes_on = frame.status().code() == ErrorCode::kTimeout && !deadline.Expired();
      if (!goes_on) return frame;
    }
  }

  /// News of the rendezvous while we wait for something else: an error if it has rejected us or is
  /// gone.
  Status CheckRendezvous() {
    auto frame = HearRendezvous(Deadline::After({}));
    if (frame.ok()) return Error(ErrorCode::kMismatch, "the rendezvous sent something unexpected");
    // Nothing new: but what it has rejected may be a timeout, too.
    const bool nothing = rejection_.ok() && frame.status().code() == ErrorCode::kTimeout;
    return nothing ? Status() : frame.status();
  }

  /// Tries all addresses in turn until the deadline. Refusal by all is final unless the listener
  /// may come later.
  Result<Connection> ConnectAndProve(const Endpoint& endpoint, bool may_come_later) {
    for (;;) {
      Status last;
      Status stranger;  // who answers on one address need not answer on the others
      bool refused_everywhere = true;
      for (const auto& address : endpoint.addresses) {
        const Deadline attempt = deadline_.AtMost(kConnectAttempt);
        auto fd = ConnectTo(address, endpoint.port, attempt);
        if (!fd.ok()) {
          last = fd.status();
          if (last.code() == ErrorCode::kSystem) return last;
          refused_everywhere = refused_everywhere && last.code() != ErrorCode::kTimeout;
          continue;
        }
        refused_everywhere = false;
        const auto keys = ProveToListener(fd->get(), rendezvous_.name, rendezvous_.secret, attempt);
        if (keys.ok()) return Connection(std::move(*fd), *keys);
        last = keys.status();
        if (last.code() == ErrorCode::kMismatch) stranger = last;
      }
      MORI_RETURN_IF_ERROR(stranger);
      if (server_) MORI_RETURN_IF_ERROR(CheckRendezvous());
      if (refused_everywhere && !may_come_later) {
        return Error(ErrorCode::kPeerLost,
                     "nobody answers for this unique id at {}: the process that made it has ended, "
                     "or the id was used "
                     "already, as each id serves one init ({})",
                     Describe(endpoint), last.message());
      }
      if (deadline_.Expired()) {
        return Error(
            ErrorCode::kTimeout, "no connection to {} within {:g} s (MORI_BOOTSTRAP_TIMEOUT): {}",
            Describe(endpoint), static_cast<double>(options_.budget.count()) / 1e3, last.message());
      }
      std::this_thread::sleep_for(kRetryPause);
    }
  }

  Result<std::unique_ptr<SocketBootstrap>> JoinTree() {
    MORI_ASSIGN_OR_RETURN(auto parent, JoinParent());
    FaultPoint("init: parent joined");
    MORI_ASSIGN_OR_RETURN(auto children, AwaitChildren());
    acceptor_.reset();
    std::unique_ptr<SocketBootstrap> tree(
        new SocketBootstrap(options_.rank, options_.size, options_.silence));
    MORI_RETURN_IF_ERROR(tree->Start(std::move(parent), std::move(children)));
    FaultPoint("init: tree started");
    InitWatch watch(tree.get(), options_.budget);
    const Status complete = tree->LearnShape(place_.node_of, WaitLimit(deadline_, &watch));
    if (complete.ok()) return tree;
    suspect_ = tree->mailbox()->FirstLost();
    return complete;
  }

  Result<std::unique_ptr<Link>> JoinParent() {
    if (place_.parent_rank < 0) return std::unique_ptr<Link>();
    suspect_ = place_.parent_rank;
    auto parent = ConnectAndProve(place_.parent, /*may_come_later=*/true);
    // Out of descriptors, say: no fault of the parent.
    if (parent.status().code() == ErrorCode::kSystem) suspect_ = -1;
    MORI_RETURN_IF_ERROR(parent.status());
    MORI_RETURN_IF_ERROR(parent->Send(Message(FrameType::kJoin, {}), deadline_));
    suspect_ = -1;
    return std::make_unique<Link>(place_.parent_rank, std::move(*parent));
  }

  Result<std::vector<std::unique_ptr<Link>>> AwaitChildren() {
    std::vector<std::unique_ptr<Link>> children;
    std::set<int> expected(place_.children.begin(), place_.children.end());
    WaitClock clock(options_.budget);
    while (!expected.empty()) {
      MORI_RETURN_IF_ERROR(CheckRendezvous());  // also of what has been received before
      MORI_ASSIGN_OR_RETURN(Acceptor::Event event,
                            acceptor_->Wait({server_->fd()}, deadline_.AtMost(kBetweenLooks)));
      if (clock.Look() == WaitClock::Due::kLine) {
        LogWarn("still waiting for rank{} {} to connect to rank {} in init, {:.3g} s",
                expected.size() == 1 ? "" : "s", ListRanks({expected.begin(), expected.end()}),
                options_.rank, clock.ElapsedSeconds());
      }
      if (event.caller) {
        const auto rank = static_cast<int>(event.caller->first.sender);
        if (event.caller->first.type != FrameType::kJoin || expected.erase(rank) == 0)
          continue;  // not ours: dropped
        event.caller->connection.set_max_payload_bytes(kMaxFrameBytes);
        children.push_back(std::make_unique<Link>(rank, std::move(event.caller->connection)));
      } else if (deadline_.Expired()) {
        suspect_ = *expected.begin();
        return Error(ErrorCode::kTimeout,
                     "rank {} did not connect to rank {} within {:g} s (MORI_BOOTSTRAP_TIMEOUT)",
                     *expected.begin(), options_.rank,
                     static_cast<double>(options_.budget.count()) / 1e3);
      }
    }
    // In the order in which they are told: who takes long comes first.
    const auto place_of = [&](const auto& link) {
      return std::ranges::find(place_.children, link->rank);
    };
    std::ranges::sort(children, {}, place_of);
    return children;
  }

  /// Tells the rendezvous, which decides what all are told: our own failure at once, one that may
  /// be another rank's fault unless it learns better soon.
  Status TellRendezvous(const Status& failure) {
    if (!rejection_.ok()) return rejection_;
    const Status news = CheckRendezvous();
    if (!news.ok()) return news;
    const Failure told{failure, suspect_};
    const bool sent =
        server_->Send(Message(FrameType::kAbort, EncodeFailure(told)), NewsLimit()).ok();
    if (suspect_ < 0 || !sent) return failure;
    static_cast<void>(HearRendezvous(Deadline::After(kVerdict)));
    return rejection_.ok() ? failure : rejection_;
  }

  const Rendezvous& rendezvous_;
  const Options& options_;
  Deadline deadline_;
  Status failure_;  ///< why this rank cannot take part
  std::optional<Acceptor> acceptor_;
  std::optional<Connection> server_;
  int suspect_ = -1;  ///< the rank that the present step depends on
  Status rejection_;  ///< the last word of the rendezvous, once it has said it
  Welcome place_;
};

Result<std::unique_ptr<SocketBootstrap>> SocketBootstrap::Connect(const Rendezvous& rendezvous,
                                                                  const Options& options) {
  RendezvousService& here = RendezvousService::Instance();
  if (options.size == 1 && options.rank == 0 && here.Claim(rendezvous.name).ok()) {
    FaultPoint("init: before the rendezvous");
    MORI_RETURN_IF_ERROR(options.failure);
    std::unique_ptr<SocketBootstrap> alone(new SocketBootstrap(0, 1, options.silence));
    MORI_RETURN_IF_ERROR(alone->Start(nullptr, {}));
    return alone;
  }
  if (rendezvous.addresses.empty()) {
    MORI_RETURN_IF_ERROR(options.failure);
    return Error(ErrorCode::kSystem,
                 "nobody can call the process that made this unique id, which serves one world of "
                 "one there: {}",
                 here.WhyAlone(rendezvous.name).message());
  }
  return Joiner(rendezvous, options).Run();
}

}  // namespace mori::shmem
