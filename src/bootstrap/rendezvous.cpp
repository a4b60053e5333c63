#include "bootstrap/rendezvous.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <unordered_map>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/tree.hpp"

namespace mori::shmem {
namespace {

/// How long the other ranks may still come to be told of a failure.
constexpr std::chrono::minutes kLinger{5};
/// How long a failed init is held up so that they can, when the rendezvous would end with this
/// process.
constexpr std::chrono::milliseconds kLastWord{1'000};
/// How often a wait that lasts looks whether it has something to say.
constexpr std::chrono::milliseconds kBetweenLines{250};
/// How long a rank's complaint of another waits for what the other's own connection says.
constexpr std::chrono::milliseconds kNewsDelay{2'000};
/// Messages of the rendezvous are far smaller than a socket's buffer: sending them does not wait.
Deadline SendLimit() { return Deadline::After(std::chrono::seconds(5)); }

std::string Describe(const Hello& hello) {
  return fmt::format("rank {} (host {}, process {})", hello.rank, hello.host, hello.process_id);
}

std::string Seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::Start(
    const std::vector<IpAddress>& addresses, std::chrono::milliseconds lifetime) {
  MORI_ASSIGN_OR_RETURN(auto server, Open(addresses, lifetime));
  MORI_RETURN_IF_ERROR(server->Begin());
  return server;
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::Open(
    const std::vector<IpAddress>& addresses, std::chrono::milliseconds lifetime) {
  Rendezvous rendezvous = NewRendezvous();
  MORI_ASSIGN_OR_RETURN(Acceptor acceptor,
                        Acceptor::Listen(addresses, rendezvous.name, rendezvous.secret));
  rendezvous.port = acceptor.port();
  rendezvous.addresses = acceptor.addresses();
  auto wake = UniqueFd::KeptFromChildren([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake.valid()) return Status::FromErrno(errno, "make an event descriptor");
  auto speakers = UniqueFd::KeptFromChildren([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  if (!speakers.valid()) return Status::FromErrno(errno, "make a descriptor that waits for ranks");
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(
      std::move(acceptor), rendezvous, std::move(wake), std::move(speakers), lifetime));
}

RendezvousServer::RendezvousServer(Acceptor acceptor, const Rendezvous& rendezvous, UniqueFd wake,
                                   UniqueFd speakers, std::chrono::milliseconds lifetime)
    : acceptor_(std::move(acceptor)),
      id_(EncodeUniqueId(rendezvous)),
      wake_(std::move(wake)),
      speakers_(std::move(speakers)),
      unused_until_(Deadline::After(lifetime)) {}

Status RendezvousServer::Begin() {
  if (has_begun() || finished()) return Status();
  return StartThread([this] { Serve(); }, &thread_);
}

bool RendezvousServer::Claim() {
  // Acquire and release: who finds it taken sees what was done before; nothing else hangs on it.
  Use none = Use::kNone;
  if (!use_.compare_exchange_strong(none, Use::kClaimed, std::memory_order_acq_rel)) return false;
  stopping_.store(true, std::memory_order_release);  // pairs with the acquire in Serve's loops
  if (has_begun()) {
    ::eventfd_write(wake_.get(), 1);
  } else {
    acceptor_.Close();
    finished_.store(true, std::memory_order_release);
  }
  return true;
}

Status RendezvousServer::GiveUp(const Status& why, int others) {
  {
    const std::lock_guard lock(finished_mutex_);
    given_up_ = why;
    others_ = others;
  }
  ::eventfd_write(wake_.get(), 1);
  return Begin();
}

Status RendezvousServer::WhyGivenUp() {
  const std::lock_guard lock(finished_mutex_);
  if (given_up_.ok()) return Status();
  eventfd_t wakes = 0;
  ::eventfd_read(wake_.get(), &wakes);  // nothing new: latecomers are waited for by it
  size_ = std::max(size_, others_);
  return given_up_;
}

RendezvousServer::~RendezvousServer() {
  stopping_.store(true, std::memory_order_release);  // pairs with the acquire in Serve's loops
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void RendezvousServer::Serve() {
  if (const Status status = MeetAndWelcome(); !status.ok()) {
    TellAll(status);
    AwaitHangUp();
    TellLatecomers(status);
  }
  arrived_.clear();
  acceptor_.Close();  // who comes now is refused, instead of waiting for an answer
  const std::lock_guard lock(finished_mutex_);
  finished_.store(true, std::memory_order_release);
  finished_changed_.notify_all();
}

void RendezvousServer::AwaitLastWord(std::chrono::milliseconds limit) {
  FaultPoint("rendezvous: the last word is awaited");
  std::unique_lock lock(finished_mutex_);
  finished_changed_.wait_for(lock, limit, [this] { return finished(); });
}

Status RendezvousServer::MeetAndWelcome() {
  while (!AllConnected()) {
    const Deadline next = size_ > 0 ? NextGiveUp().AtMost(kBetweenLines) : NextGiveUp();
    MORI_ASSIGN_OR_RETURN(Acceptor::Event event,
                          acceptor_.Wait({wake_.get(), speakers_.get()}, next));
    SayWhoIsLate();
    if (stopping_.load(std::memory_order_acquire)) {
      return Error(ErrorCode::kPeerLost, "the process that made the unique id is ending");
    }
    // The caller first: should one of the others be lost, it is to be told too.
    if (event.caller) MORI_RETURN_IF_ERROR(Admit(std::move(*event.caller)));
    MORI_RETURN_IF_ERROR(WhyGivenUp());
    MORI_RETURN_IF_ERROR(HearThem());
    if (!NextGiveUp().Expired()) continue;
    if (suspicion_) return suspicion_->told;
    if (size_ > 0) return MissingRanks();
    return Error(ErrorCode::kTimeout,
                 "no rank used this unique id for {:.3g} s, and it has ended: make a new one",
                 unused_until_.ElapsedSeconds());
  }
  return Status();
}

Status RendezvousServer::Admit(Acceptor::Caller caller) {
  auto decoded = DecodeHello(caller.first.payload);
  if (caller.first.type != FrameType::kHello || !decoded.ok() ||
      static_cast<std::uint32_t>(decoded->rank) != caller.first.sender)
    return Status();  // no rank of ours: dropped
  Use use = Use::kNone;
  if (!use_.compare_exchange_strong(use, Use::kByRanks, std::memory_order_acq_rel) &&
      use == Use::kClaimed)
    return Status();  // about to stop
  Hello hello = std::move(*decoded);
  const Status check = CheckHello(hello);
  first_give_up_ = first_give_up_.AtMost(
      std::min(hello.budget - hello.waited, std::chrono::milliseconds(kLinger) * 288));
  const int key = arrived_.contains(hello.rank)
                      ? -1
                      : hello.rank;  // a second one of a rank must hear of it too
  if (size_ == 0) {
    size_ = hello.size;
    budget_ = hello.budget;
  }
  budget_ = std::min(budget_, hello.budget);
  const auto [entry, added] =
      arrived_.insert_or_assign(key, Arrived{std::move(caller.connection), std::move(hello)});
  MORI_RETURN_IF_ERROR(check);
  Arrived& arrived = entry->second;
  MORI_RETURN_IF_ERROR(HearOut(&arrived));
  if (!arrived.failed) MORI_RETURN_IF_ERROR(Listen(key, arrived));
  return static_cast<int>(arrived_.size()) == size_ ? WelcomeAll() : Status();
}

Status RendezvousServer::CheckHello(const Hello& hello) const {
  if (hello.protocol != kProtocolVersion) {
    return Error(ErrorCode::kMismatch,
                 "{} has version {} of the library, which speaks version {} of the bootstrap's "
                 "protocol; the process that made the unique id has version {}, which speaks {}",
                 Describe(hello), hello.version, hello.protocol, MORI_SHMEM_VERSION,
                 kProtocolVersion);
  }
  if (!hello.failure.empty()) {
    return Error(ErrorCode::kPeerLost, "{} failed during init: {}", Describe(hello), hello.failure);
  }
  if (hello.size < 1 || hello.size > kMaxRanks || hello.rank < 0 || hello.rank >= hello.size) {
    return Error(ErrorCode::kInvalidArgument, "{} is out of range for {} ranks", Describe(hello),
                 hello.size);
  }
  if (arrived_.empty()) return Status();
  const auto& [first_rank, first] = *arrived_.begin();
  if (hello.size != first.hello.size) {
    return Error(ErrorCode::kMismatch, "{} says that there are {} ranks, {} says {}",
                 Describe(hello), hello.size, Describe(first.hello), first.hello.size);
  }
  if (const auto same = arrived_.find(hello.rank); same != arrived_.end()) {
    return Error(ErrorCode::kMismatch,
                 "rank {} was used twice: by process {} on host {} and by process {} on host {}",
                 hello.rank, same->second.hello.process_id, same->second.hello.host,
                 hello.process_id, hello.host);
  }
  if (hello.version != first.hello.version) {
    return Error(ErrorCode::kMismatch, "{} has version {} of the library, {} has version {}",
                 Describe(hello), hello.version, Describe(first.hello), first.hello.version);
  }
  return Status();
}

Status RendezvousServer::Listen(int rank, const Arrived& arrived) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(rank);
  if (::epoll_ctl(speakers_.get(), EPOLL_CTL_ADD, arrived.connection.fd(), &event) == 0)
    return Status();
  return Status::FromErrno(errno, fmt::format("wait for what rank {} says", rank));
}

Status RendezvousServer::HearThem() {
  constexpr int kAtATime = 256;
  epoll_event events[kAtATime];
  const int ready = ::epoll_wait(speakers_.get(), events, kAtATime, 0);
  if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "wait for what ranks say");
  for (int i = 0; i < ready; ++i)
    MORI_RETURN_IF_ERROR(HearFrom(static_cast<int>(events[i].data.u32)));
  return Status();
}

Status RendezvousServer::HearFrom(int rank) {
  const auto found = arrived_.find(rank);
  if (found == arrived_.end()) return Status();
  Arrived& arrived = found->second;
  const Status read = arrived.connection.ReadSome();
  MORI_RETURN_IF_ERROR(HearOut(&arrived));
  if ((arrived.connected || arrived.failed) &&
      ::epoll_ctl(speakers_.get(), EPOLL_CTL_DEL, arrived.connection.fd(), nullptr) != 0)
    return Status::FromErrno(errno, fmt::format("wait for rank {} no longer", rank));
  if (read.ok() || arrived.connected || arrived.failed) return Status();
  Status lost = Error(ErrorCode::kPeerLost, "{} was lost during init: {}", Describe(arrived.hello),
                      read.message());
  arrived_.erase(found);
  ++gone_;
  return lost;
}

Status RendezvousServer::HearOut(Arrived* arrived) {
  while (!arrived->connected && !arrived->failed) {
    auto frame = arrived->connection.Next();
    if (frame.ok() && !frame->has_value()) return Status();
    if (frame.ok() && (*frame)->type == FrameType::kBye && welcomed_) {
      arrived->connected = true;
      ++connected_;
    } else if (frame.ok() && (*frame)->type == FrameType::kAbort) {
      arrived->failed = true;
      return Weigh(*arrived, DecodeFailure((*frame)->payload));
    } else {
      return Error(ErrorCode::kPeerLost, "{} was lost during init: {}", Describe(arrived->hello),
                   frame.ok() ? "it sent something unexpected" : frame.status().message());
    }
  }
  return Status();
}

Status RendezvousServer::Weigh(const Arrived& arrived, const Failure& failure) {
  Status told = Error(ErrorCode::kPeerLost, "{} failed during init: {}", Describe(arrived.hello),
                      failure.status.message());
  if (suspicion_ && suspicion_->suspect == arrived.hello.rank) {
    if (failure.suspect < 0) return told;
    suspicion_->suspect = failure.suspect;  // which is nearer to the cause
  }
  const auto suspect = arrived_.find(failure.suspect);
  // A suspect that is in the tree already says nothing more here. Who complains first is nearest to
  // the cause.
  const bool may_show = suspect != arrived_.end() && !suspect->second.connected;
  if (!suspicion_)
    suspicion_ = Suspicion{std::move(told), failure.suspect, Deadline::After(kNewsDelay)};
  return may_show ? Status() : suspicion_->told;
}

Status RendezvousServer::WelcomeAll() {
  const std::vector<std::uint32_t> node_of = NumberNodes();
  const Tree tree(node_of);
  for (auto& [rank, arrived] : arrived_) {
    Welcome welcome;
    if (const auto parent = tree.Parent(rank)) {
      welcome.parent_rank = *parent;
      welcome.parent = arrived_.at(*parent).hello.endpoint;
    }
    welcome.children = tree.Children(rank);
    if (rank == 0 && tree.nodes() > 1) welcome.node_of = node_of;
    const Status sent =
        arrived.connection.Send({FrameType::kWelcome, 0, 0, EncodeWelcome(welcome)}, SendLimit());
    if (!sent.ok()) {
      return Error(ErrorCode::kPeerLost, "{} was lost during init: {}", Describe(arrived.hello),
                   sent.message());
    }
  }
  welcomed_ = true;
  return Status();
}

std::vector<std::uint32_t> RendezvousServer::NumberNodes() const {
  std::unordered_map<std::string_view, std::uint32_t> numbers;
  std::vector<std::uint32_t> node_of;
  for (const auto& [rank, arrived] : arrived_) {
    const auto next = static_cast<std::uint32_t>(numbers.size());
    node_of.push_back(numbers.emplace(arrived.hello.node, next).first->second);
  }
  return node_of;
}

std::vector<int> RendezvousServer::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!arrived_.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

void RendezvousServer::SayWhoIsLate() {
  if (size_ == 0 || welcomed_) return;  // later, those say it who wait in the tree
  if (!clock_) clock_.emplace(budget_);
  if (clock_->Look() != WaitClock::Due::kLine) return;
  const std::vector<int> missing = Missing();
  LogWarn("still waiting for {} of {} ranks to come to init, {:.3g} s: rank{} {}", missing.size(),
          size_, clock_->ElapsedSeconds(), missing.size() == 1 ? "" : "s", ListRanks(missing));
}

Status RendezvousServer::MissingRanks() const {
  const std::vector<int> missing = Missing();
  return Error(ErrorCode::kTimeout,
               "{} of {} ranks did not come within {} (MORI_BOOTSTRAP_TIMEOUT): missing rank{} {}",
               missing.size(), size_, Seconds(budget_), missing.size() == 1 ? "" : "s",
               ListRanks(missing));
}

Deadline RendezvousServer::NextGiveUp() const {
  if (suspicion_) return suspicion_->until;
  if (welcomed_) return Deadline::Never();
  if (size_ == 0) return unused_until_;
  return first_give_up_;
}

void RendezvousServer::TellAll(const Status& failure) {
  LogDebug("rendezvous failed: {}", failure.message());
  for (auto& [rank, arrived] : arrived_) {
    if (arrived.connected) continue;
    static_cast<void>(
        arrived.connection.Send({FrameType::kReject, 0, 0, EncodeStatus(failure)}, SendLimit()));
  }
}

/// Closing at once would drop what we have said, should there be something that we have not read.
void RendezvousServer::AwaitHangUp() {
  const Deadline end = Deadline::After(kLastWord / 2);
  for (auto& [rank, arrived] : arrived_) {
    const int fd = arrived.connection.fd();
    ::shutdown(fd, SHUT_WR);
    Bytes unread;
    while (WaitFor(fd, POLLIN, end).ok() && ReceiveSome(fd, 4096, &unread).ok()) unread.clear();
  }
}

void RendezvousServer::TellLatecomers(const Status& failure) {
  const Deadline end = Deadline::After(kLinger);
  std::size_t told = arrived_.size() + gone_;
  while (!stopping_.load(std::memory_order_acquire) && !end.Expired() &&
         told < static_cast<std::size_t>(std::max(size_, 1))) {
    auto event = acceptor_.Wait({wake_.get()}, end);
    if (!event.ok()) return;
    if (!event->caller) continue;
    static_cast<void>(event->caller->connection.Send(
        {FrameType::kReject, 0, 0, EncodeStatus(failure)}, SendLimit()));
    ++told;
  }
}

bool RendezvousServer::AllConnected() const {
  return welcomed_ && !suspicion_ && connected_ == size_;
}

RendezvousService& RendezvousService::Instance() {
  static auto* const service =
      new RendezvousService;  // never destroyed: threads may run until the very end
  return *service;
}

Result<UniqueId> RendezvousService::Open(const Config& config) {
  const auto addresses = SelectOwnAddresses(config.socket_ifname);
  if (!addresses.ok()) {
    // A variable that matches nothing is a mistake. A machine without network can have one PE.
    if (addresses.status().code() == ErrorCode::kInvalidConfig) return addresses.status();
    return OpenAlone(addresses.status());
  }
  MORI_ASSIGN_OR_RETURN(std::shared_ptr<RendezvousServer> server,
                        RendezvousServer::Open(*addresses));
  const UniqueId id = server->id();
  Reap();
  const std::lock_guard lock(mutex_);
  MORI_RETURN_IF_ERROR(StartDoorman());
  servers_.push_back(std::move(server));
  ::eventfd_write(doorbell_.get(), 1);
  return id;
}

UniqueId RendezvousService::OpenAlone(Status why) {
  LogDebug("a unique id for a world of one: {}", why.message());
  const Rendezvous rendezvous = NewRendezvous();
  const std::lock_guard lock(mutex_);
  alone_.push_back({rendezvous.name, std::move(why)});
  return EncodeUniqueId(rendezvous);
}

std::shared_ptr<RendezvousServer> RendezvousService::Find(const RendezvousName& name) {
  for (const auto& server : servers_) {
    const auto served = DecodeUniqueId(server->id());
    if (served.ok() && served->name == name) return server;
  }
  return nullptr;
}

Status RendezvousService::Claim(const RendezvousName& name) {
  const std::lock_guard lock(mutex_);
  for (Alone& alone : alone_) {
    if (alone.name == name && !std::exchange(alone.is_claimed, true)) return Status();
  }
  const auto server = Find(name);
  if (server != nullptr && server->Claim()) {
    ::eventfd_write(doorbell_.get(), 1);  // a listener that is waited at stays bound
    return Status();
  }
  return Error(ErrorCode::kPeerLost, "this unique id is not this process's, or used already");
}

Status RendezvousService::WhyAlone(const RendezvousName& name) {
  const std::lock_guard lock(mutex_);
  for (const Alone& alone : alone_) {
    if (alone.name == name) return alone.why;
  }
  return Error(ErrorCode::kSystem, "it had no network address when it made the id");
}

Status RendezvousService::StartDoorman() {
  if (doorbell_.valid()) return Status();
  auto bell = UniqueFd::KeptFromChildren([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!bell.valid()) return Status::FromErrno(errno, "make an event descriptor");
  std::thread doorman;
  MORI_RETURN_IF_ERROR(StartThread([this] { AwaitFirstCalls(); }, &doorman));
  doorman.detach();  // as long as the process
  doorbell_ = std::move(bell);
  return Status();
}

std::vector<RendezvousService::Waiting> RendezvousService::FindWaiting() {
  std::vector<Waiting> waiting;
  const std::lock_guard lock(mutex_);
  for (auto& server : servers_) {
    if (server->has_begun() || server->finished()) continue;
    if (server->unused_until().Expired()) {
      static_cast<void>(server->Claim());  // by nobody
    } else {
      waiting.push_back({server, server->listeners()});
    }
  }
  return waiting;
}

void RendezvousService::AwaitFirstCalls() {
  // After a failure: the call that could not be served still waits and would wake us at once.
  constexpr std::chrono::seconds kAgain{1};
  int bell = -1;
  bool has_warned = false;
  for (;;) {
    if (bell < 0) {
      const std::lock_guard lock(mutex_);  // whoever started us holds it until the bell is there
      bell = doorbell_.get();
    }
    const std::vector<Waiting> waiting = FindWaiting();
    std::vector<pollfd> entries{{bell, POLLIN, 0}};
    std::vector<RendezvousServer*> owners{nullptr};
    Deadline next = Deadline::Never();
    for (const auto& [server, listeners] : waiting) {
      next = next.AtMost(server->unused_until().end() - Deadline::Clock::now());
      for (const int fd : listeners) {
        entries.push_back({fd, POLLIN, 0});
        owners.push_back(server.get());
      }
    }
    const int ready = ::poll(entries.data(), entries.size(), next.PollTimeoutMs());
    bool has_failed = ready < 0 && errno != EINTR;
    if (has_failed && !std::exchange(has_warned, true))
      LogWarn("first calls for unique ids are not heard: {}",
              Status::FromErrno(errno, "wait for them").message());
    if (ready > 0) {
      eventfd_t rings = 0;
      if (entries[0].revents != 0) ::eventfd_read(bell, &rings);
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 1; i < entries.size(); ++i) {
        if (entries[i].revents != 0 && !owners[i]->Begin().ok()) has_failed = true;
      }
    }
    if (has_failed) std::this_thread::sleep_for(kAgain);  // without the lock: others need it
  }
}

void RendezvousService::GiveUp(const UniqueId& id, const Status& why, int others) {
  const auto rendezvous = DecodeUniqueId(id);
  std::shared_ptr<RendezvousServer> found;
  if (rendezvous.ok()) {
    const std::lock_guard lock(mutex_);
    found = Find(rendezvous->name);
    if (found == nullptr || !found->GiveUp(why, others).ok()) return;
    ::eventfd_write(doorbell_.get(), 1);  // its first call is waited for no longer
  }
  if (found != nullptr) found->AwaitLastWord(kLastWord);  // without the lock: a fork needs it
}

void RendezvousService::AwaitLastWord(const RendezvousName& name) {
  std::shared_ptr<RendezvousServer> found;
  {
    const std::lock_guard lock(mutex_);
    found = Find(name);
    if (found != nullptr && !found->has_begun()) found = nullptr;  // nobody has come to be told
  }
  if (found != nullptr) found->AwaitLastWord(kLastWord);  // without the lock: a fork needs it
}

void RendezvousService::Reap() {
  std::vector<std::shared_ptr<RendezvousServer>> finished;  // their threads end without the lock
  const std::lock_guard lock(mutex_);
  const auto first = std::partition(servers_.begin(), servers_.end(),
                                    [](const auto& server) { return !server->finished(); });
  finished.assign(std::move_iterator(first), std::move_iterator(servers_.end()));
  servers_.erase(first, servers_.end());
}

void RendezvousService::AfterForkInChild() {
  abandoned_->insert(abandoned_->end(), servers_.begin(), servers_.end());
  servers_.clear();
  alone_.clear();
  doorbell_ = UniqueFd();  // whose thread is not here: the next id starts one
  mutex_.unlock();
}

}  // namespace mori::shmem
