#include "bootstrap/socket_bootstrap.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/thread.hpp"

namespace mori::shmem {
namespace {

using std::chrono::milliseconds;

/// The rendezvous reports a rank that did not come; a waiting rank gives it this much longer than
/// its own budget to say so.
constexpr milliseconds kGrace{2'000};
constexpr milliseconds kConnectAttempt{5'000};
constexpr milliseconds kRetryPause{20};
/// Longest text of a loss on its way to the others.
constexpr std::size_t kMaxReason = 4096;
/// News travels on connections whose readers never pause; this only ends a send to a stopped
/// process.
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
      : rendezvous_(rendezvous), options_(options), deadline_(Deadline::After(options.budget)) {}

  Result<std::unique_ptr<SocketBootstrap>> Run() {
    MORI_RETURN_IF_ERROR(CheckRank());
    MORI_RETURN_IF_ERROR(ListenForChildren());
    FaultPoint("init: before the rendezvous");
    MORI_RETURN_IF_ERROR(MeetOthers());
    FaultPoint("init: welcomed");
    auto joined = JoinTree();
    if (!joined.ok()) return TellRendezvous(joined.status());
    // The rendezvous watches over us until here, the tree from here on.
    static_cast<void>(SendFrame(server_.get(), Message(FrameType::kBye, {}), NewsLimit()));
    return joined;
  }

 private:
  Status CheckRank() const {
    if (options_.size >= 1 && options_.rank >= 0 && options_.rank < options_.size) return Status();
    return Error(ErrorCode::kInvalidArgument, "rank {} is out of range for a world of {} (0 to {})",
                 options_.rank, options_.size, options_.size - 1);
  }

  Frame Message(FrameType type, Bytes payload) const {
    return {type, static_cast<std::uint32_t>(options_.rank), 0, std::move(payload)};
  }

  int ChildCount() const {
    return std::clamp(options_.size - FirstChild(options_.rank), 0, kTreeFanOut);
  }

  Status ListenForChildren() {
    if (ChildCount() == 0 || !options_.failure.ok()) return Status();
    MORI_ASSIGN_OR_RETURN(acceptor_, Acceptor::Listen(options_.listen_addresses, rendezvous_.name,
                                                      rendezvous_.secret));
    return Status();
  }

  Status MeetOthers() {
    const Endpoint meeting_point{rendezvous_.port, rendezvous_.addresses};
    auto connected = ConnectAndProve(meeting_point, /*may_come_later=*/false);
    if (!connected.ok()) {
      if (!options_.failure.ok()) return options_.failure;
      return connected.status();
    }
    server_ = std::move(*connected);
    Hello hello{options_.rank,
                options_.size,
                options_.version,
                options_.host,
                static_cast<std::uint32_t>(::getpid()),
                options_.failure.message(),
                options_.budget,
                {}};
    if (acceptor_) hello.endpoint = {acceptor_->port(), acceptor_->addresses()};
    MORI_RETURN_IF_ERROR(
        SendFrame(server_.get(), Message(FrameType::kHello, EncodeHello(hello)), deadline_));
    if (!options_.failure.ok()) return options_.failure;
    FaultPoint("init: hello sent");
    MORI_ASSIGN_OR_RETURN(Frame reply, HearRendezvous(Deadline::After(options_.budget + kGrace)));
    if (reply.type != FrameType::kWelcome)
      return Error(ErrorCode::kMismatch, "the rendezvous sent something unexpected");
    MORI_ASSIGN_OR_RETURN(parent_, DecodeEndpoint(reply.payload));
    return Status();
  }

  /// The next message of the rendezvous; what it rejects comes back as an error.
  Result<Frame> HearRendezvous(const Deadline& deadline) {
    auto frame = ReceiveFrame(server_.get(), 64 << 10, deadline);
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

  /// News of the rendezvous while we wait for something else: an error if it has rejected us or is
  /// gone.
  Status CheckRendezvous() {
    if (WaitFor(server_.get(), POLLIN, Deadline::After({})).code() == ErrorCode::kTimeout)
      return Status();
    auto frame = HearRendezvous(NewsLimit());
    return frame.ok() ? Error(ErrorCode::kMismatch, "the rendezvous sent something unexpected")
                      : frame.status();
  }

  /// Tries all addresses in turn until the deadline. Refusal by all is final unless the listener
  /// may come later.
  Result<UniqueFd> ConnectAndProve(const Endpoint& endpoint, bool may_come_later) {
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
        last = ProveToListener(fd->get(), rendezvous_.name, rendezvous_.secret, attempt);
        if (last.ok()) return fd;
        if (last.code() == ErrorCode::kMismatch) stranger = last;
      }
      MORI_RETURN_IF_ERROR(stranger);
      if (server_.valid()) MORI_RETURN_IF_ERROR(CheckRendezvous());
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
    std::unique_ptr<SocketBootstrap> tree(new SocketBootstrap(options_.rank, options_.size));
    MORI_RETURN_IF_ERROR(tree->Start(std::move(parent), std::move(children)));
    FaultPoint("init: tree started");
    auto complete = tree->AllGather({}, deadline_);
    if (!complete.ok()) return complete.status();
    return tree;
  }

  Result<std::unique_ptr<Link>> JoinParent() {
    if (options_.rank == 0) return std::unique_ptr<Link>();
    auto link = std::make_unique<Link>();
    link->rank = TreeParent(options_.rank);
    MORI_ASSIGN_OR_RETURN(link->fd, ConnectAndProve(parent_, /*may_come_later=*/true));
    MORI_RETURN_IF_ERROR(SendFrame(link->fd.get(), Message(FrameType::kJoin, {}), deadline_));
    return link;
  }

  Result<std::vector<std::unique_ptr<Link>>> AwaitChildren() {
    std::vector<std::unique_ptr<Link>> children;
    std::set<int> expected;
    for (int i = 0; i < ChildCount(); ++i) expected.insert(FirstChild(options_.rank) + i);
    while (!expected.empty()) {
      MORI_ASSIGN_OR_RETURN(Acceptor::Event event, acceptor_->Wait({server_.get()}, deadline_));
      if (!event.readable.empty()) MORI_RETURN_IF_ERROR(CheckRendezvous());
      if (event.caller) {
        const auto rank = static_cast<int>(event.caller->first.sender);
        if (event.caller->first.type != FrameType::kJoin || expected.erase(rank) == 0)
          continue;  // not ours: dropped
        auto link = std::make_unique<Link>();
        link->rank = rank;
        link->fd = std::move(event.caller->fd);
        *link->parser.buffer() = std::move(event.caller->rest);
        children.push_back(std::move(link));
      } else if (deadline_.Expired()) {
        return Error(ErrorCode::kTimeout,
                     "rank {} did not connect to rank {} within {:g} s (MORI_BOOTSTRAP_TIMEOUT)",
                     *expected.begin(), options_.rank,
                     static_cast<double>(options_.budget.count()) / 1e3);
      }
    }
    return children;
  }

  /// Passes our failure on, so that all others learn of it, and prefers what the rendezvous knows
  /// already. A rank that is gone may only have been the first to hear who really failed: the
  /// rendezvous is about to tell us too.
  Status TellRendezvous(const Status& failure) {
    if (!rejection_.ok()) return rejection_;
    if (failure.code() == ErrorCode::kPeerLost)
      static_cast<void>(WaitFor(server_.get(), POLLIN, NewsLimit()));
    const Status news = CheckRendezvous();
    if (!news.ok()) return news;
    static_cast<void>(
        SendFrame(server_.get(), Message(FrameType::kAbort, EncodeStatus(failure)), NewsLimit()));
    return failure;
  }

  const Rendezvous& rendezvous_;
  const Options& options_;
  const Deadline deadline_;
  std::optional<Acceptor> acceptor_;
  UniqueFd server_;
  Status rejection_;  ///< the last word of the rendezvous, once it has said it
  Endpoint parent_;
};

Result<std::unique_ptr<SocketBootstrap>> SocketBootstrap::Connect(const Rendezvous& rendezvous,
                                                                  const Options& options) {
  return Joiner(rendezvous, options).Run();
}

SocketBootstrap::~SocketBootstrap() { Leave(); }

Status SocketBootstrap::Start(std::unique_ptr<Link> parent,
                              std::vector<std::unique_ptr<Link>> children) {
  parent_ = std::move(parent);
  children_ = std::move(children);
  wake_ = UniqueFd::KeptFromChildren([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_.valid()) return Status::FromErrno(errno, "make an event descriptor");
  if (size_ == 1) return Status();  // nobody to listen to
  return StartThread([this] { ReadLoop(); }, &reader_);
}

std::vector<SocketBootstrap::Link*> SocketBootstrap::Links() const {
  std::vector<Link*> links;
  if (parent_) links.push_back(parent_.get());
  for (const auto& child : children_) links.push_back(child.get());
  return links;
}

void SocketBootstrap::ReadLoop() {
  for (Link* link : Links()) ReadFrom(link);  // what came along with a child's first message
  while (!closing_.load(std::memory_order_acquire)) {
    std::vector<Link*> links = Links();
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(links, [](const Link* link) { return link->departed; });
    }
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    for (const Link* link : links) entries.push_back({link->fd.get(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;  // EINTR: no signal is ours
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (entries[i + 1].revents != 0) ReadFrom(links[i]);
    }
  }
}

void SocketBootstrap::ReadFrom(Link* link) {
  constexpr std::size_t kChunk = 64 << 10;
  const auto got = ReceiveSome(link->fd.get(), kChunk, link->parser.buffer());
  for (;;) {
    auto frame = link->parser.Next();
    if (!frame.ok()) return NoteLoss({link->rank, frame.status().message()}, link);
    if (!frame->has_value()) break;
    Handle(link, std::move(**frame));
  }
  if (got.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    if (link->departed) return;
  }
  NoteLoss({link->rank, "its connection closed"}, link);
}

void SocketBootstrap::Handle(Link* link, Frame frame) {
  switch (frame.type) {
    case FrameType::kGather:
    case FrameType::kTable: {
      const std::lock_guard lock(mutex_);
      link->inbox.push_back(std::move(frame));
      changed_.notify_all();
      return;
    }
    case FrameType::kLost: {
      ByteReader reader(frame.payload);
      const auto rank = reader.Int<std::int32_t>();
      std::string reason = reader.Text(kMaxReason);
      if (reader.AtEnd() && rank >= 0 && rank < size_) NoteLoss({rank, std::move(reason)}, link);
      return;
    }
    case FrameType::kBye: {
      const std::lock_guard lock(mutex_);
      link->departed = true;
      changed_.notify_all();
      return;
    }
    default: NoteLoss({link->rank, "it sent a message out of place"}, link);
  }
}

void SocketBootstrap::NoteLoss(Loss loss, const Link* heard_from) {
  const std::lock_guard observing(observer_mutex_);
  if (!lost_ranks_.insert(loss.rank).second) return;
  LogDebug("rank {} is lost: {}", loss.rank, loss.reason);
  if (observer_) observer_(loss);  // hears of it before a call fails with it
  {
    const std::lock_guard lock(mutex_);
    for (Link* link : Links()) {
      if (link->rank == loss.rank) link->departed = true;
    }
    losses_.push_back(loss);
    changed_.notify_all();
  }
  const Bytes news =
      ByteWriter().Int(static_cast<std::int32_t>(loss.rank)).Text(loss.reason).Take();
  for (Link* link : Links()) {
    if (link == heard_from || link->rank == loss.rank) continue;
    static_cast<void>(
        Send(link, {FrameType::kLost, static_cast<std::uint32_t>(rank_), 0, news}, NewsLimit()));
  }
}

Status SocketBootstrap::Send(Link* link, const Frame& frame, const Deadline& deadline) {
  const std::lock_guard lock(link->send_mutex);
  return SendFrame(link->fd.get(), frame, deadline);
}

Result<Frame> SocketBootstrap::Receive(Link* link, FrameType type, std::uint32_t sequence,
                                       const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !link->inbox.empty() || !losses_.empty() || link->departed; };
  bool in_time = true;
  if (deadline.end() == Deadline::Clock::time_point::max()) {
    changed_.wait(lock, ready);
  } else {
    in_time = changed_.wait_until(lock, deadline.end(), ready);
  }
  if (!link->inbox.empty()) {
    Frame frame = std::move(link->inbox.front());
    link->inbox.pop_front();
    if (frame.type == type && frame.sequence == sequence) return frame;
    return Error(ErrorCode::kInternal, "rank {} is at exchange {}, rank {} at {}", link->rank,
                 frame.sequence, rank_, sequence);
  }
  if (!in_time) {
    return Error(ErrorCode::kTimeout, "rank {} heard nothing from rank {} for {:.3g} s", rank_,
                 link->rank, deadline.ElapsedSeconds());
  }
  if (!losses_.empty()) return LossStatus();
  return Error(ErrorCode::kPeerLost, "rank {} has left", link->rank);
}

Result<std::vector<Bytes>> SocketBootstrap::AllGather(ByteView mine, const Deadline& deadline) {
  MORI_RETURN_IF_ERROR(Health());
  const std::uint32_t sequence = sequence_++;
  const auto self = static_cast<std::uint32_t>(rank_);
  Bytes gathered = ByteWriter().Int(self).Block(mine).Take();
  for (const auto& child : children_) {
    MORI_ASSIGN_OR_RETURN(const Frame frame,
                          Receive(child.get(), FrameType::kGather, sequence, deadline));
    gathered.insert(gathered.end(), frame.payload.begin(), frame.payload.end());
  }
  if (parent_) {
    // A parent that is gone shows when we wait for its table, with the reason.
    static_cast<void>(
        Send(parent_.get(), {FrameType::kGather, self, sequence, std::move(gathered)}, deadline));
    MORI_ASSIGN_OR_RETURN(Frame table,
                          Receive(parent_.get(), FrameType::kTable, sequence, deadline));
    gathered = std::move(table.payload);
  }
  for (const auto& child : children_) {
    // A child that is gone shows in the losses, which the next exchange returns.
    static_cast<void>(Send(child.get(), {FrameType::kTable, self, sequence, gathered}, deadline));
  }

  std::vector<Bytes> messages(static_cast<std::size_t>(size_));
  ByteReader reader(gathered);
  for (int i = 0; i < size_; ++i) {
    const auto rank = reader.Int<std::uint32_t>();
    const ByteView message = reader.Block();
    if (!reader.ok() || rank >= messages.size())
      return Error(ErrorCode::kInternal, "an exchange of {} ranks came back damaged", size_);
    messages[rank].assign(message.begin(), message.end());
  }
  return messages;
}

void SocketBootstrap::Abort(const Status& why) {
  NoteLoss({rank_, ("it gave up: " + why.message()).substr(0, kMaxReason)}, nullptr);
}

Status SocketBootstrap::LossStatus() const {
  const Loss& first = losses_.front();
  return Error(ErrorCode::kPeerLost, "rank {} is lost: {}", first.rank, first.reason);
}

Status SocketBootstrap::Health() const {
  const std::lock_guard lock(mutex_);
  return losses_.empty() ? Status() : LossStatus();
}

void SocketBootstrap::Observe(Observer observer) {
  const std::lock_guard observing(observer_mutex_);
  observer_ = std::move(observer);
  if (!observer_) return;
  std::vector<Loss> past;
  {
    const std::lock_guard lock(mutex_);
    past = losses_;
  }
  for (const Loss& loss : past) observer_(loss);
}

void SocketBootstrap::Close() {
  {
    // News that this rank knows goes out first: nobody listens to it after its good-bye.
    const std::lock_guard observing(observer_mutex_);
    for (Link* link : Links()) {
      static_cast<void>(
          Send(link, {FrameType::kBye, static_cast<std::uint32_t>(rank_), 0, {}}, NewsLimit()));
    }
  }
  Leave();
}

void SocketBootstrap::Leave() {
  closing_.store(true, std::memory_order_release);  // pairs with the acquire in ReadLoop
  if (wake_.valid()) ::eventfd_write(wake_.get(), 1);
  if (reader_.joinable()) reader_.join();
  parent_.reset();
  children_.clear();
}

}  // namespace mori::shmem
