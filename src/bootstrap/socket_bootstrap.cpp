#include "bootstrap/socket_bootstrap.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.hpp"
#include "bootstrap/letter.hpp"
#include "bootstrap/mailbox.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/thread.hpp"

namespace mori::shmem {
namespace {

using std::chrono::milliseconds;

/// Longest text of a loss on its way to the others.
constexpr std::size_t kMaxReason = 4096;
/// How long rank 0 waits for all to say whether they have come, and who asks for its answer.
constexpr milliseconds kCensus{500};
constexpr milliseconds kCensusAnswer{1'500};
/// Ranks that a message about missing ones names.
constexpr std::size_t kMaxNamed = 1024;
/// The others' readers never pause; this only ends a wait for a stopped process.
Deadline NewsLimit() { return Deadline::After(std::chrono::seconds(2)); }

}  // namespace

SocketBootstrap::~SocketBootstrap() { Stop(); }

Status SocketBootstrap::Start(std::unique_ptr<Link> parent,
                              std::vector<std::unique_ptr<Link>> children) {
  parent_ = std::move(parent);
  children_ = std::move(children);
  if (parent_) place_.parent = parent_->rank;
  for (const auto& child : children_) place_.children.push_back(child->rank);
  wake_ = UniqueFd::KeptFromChildren([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_.valid()) return Status::FromErrno(errno, "make an event descriptor");
  if (size() == 1) return Status();  // nobody to listen to
  for (const Link* link : Links()) AskWithin(link->connection.fd(), silence_);
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
    for (Link* link : links) {
      const std::lock_guard lock(link->send_mutex);
      const bool sends = link->connection.has_queued();
      entries.push_back(
          {link->connection.fd(), static_cast<short>(POLLIN | (sends ? POLLOUT : 0)), 0});
    }
    const int ready = ::poll(entries.data(), entries.size(), NextWakeUp().PollTimeoutMs());
    for (std::size_t i = 0; i < links.size(); ++i) {
      const short events = ready > 0 ? entries[i + 1].revents : short{0};
      if ((events & POLLOUT) != 0) {
        const std::lock_guard lock(links[i]->send_mutex);
        static_cast<void>(links[i]->connection.Flush());  // a loss shows when we read
      }
      if ((events & ~POLLOUT) != 0) ReadFrom(links[i]);
      CheckSilence(links[i]);
    }
    eventfd_t wakes = 0;
    if (ready > 0 && entries[0].revents != 0) ::eventfd_read(wake_.get(), &wakes);
    EndCensus();
  }
}

void SocketBootstrap::Wake() const {
  if (wake_.valid()) ::eventfd_write(wake_.get(), 1);
}

Deadline SocketBootstrap::NextWakeUp() const {
  const std::lock_guard lock(mutex_);
  const Deadline look = Deadline::After(std::chrono::milliseconds(silence_) / 6);
  return census_ ? census_->end.AtMost(std::chrono::milliseconds(silence_) / 6) : look;
}

void SocketBootstrap::ReadFrom(Link* link) {
  const Status read = link->connection.ReadSome();
  for (;;) {
    auto frame = link->connection.Next();
    if (!frame.ok()) return DeclareLost(link, frame.status().message());
    if (!frame->has_value()) break;
    Handle(link, std::move(**frame));
  }
  if (read.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    if (link->departed) return;
  }
  if (CheckSilence(link)) return;  // the kernel was the first to give up
  const bool is_damaged = read.code() == ErrorCode::kMismatch;
  DeclareLost(link, is_damaged ? read.message() : "its connection closed");
}

bool SocketBootstrap::CheckSilence(Link* link) {
  const auto silent = SilentFor(link->connection.fd());
  if (silent < silence_) return false;
  {
    const std::lock_guard lock(mutex_);
    if (link->departed) return true;
  }
  DeclareLost(link, fmt::format("its host has not answered for {:.3g} s",
                                static_cast<double>(silent.count()) / 1e3));
  return true;
}

void SocketBootstrap::Handle(Link* link, Frame frame) {
  if (frame.sender != static_cast<std::uint32_t>(link->rank))
    return DeclareLost(link, "it sent a message in another rank's name");
  ByteReader reader(frame.payload);
  const bool from_parent = link == parent_.get();
  switch (frame.type) {
    case FrameType::kLetter:
      if (!Deliver(link, frame)) break;
      return;
    case FrameType::kLost: {
      const auto rank = reader.Int<std::int32_t>();
      std::string reason = reader.Text(kMaxReason);
      if (!reader.AtEnd() || rank < 0 || rank >= size()) break;
      return NoteLoss({rank, std::move(reason)}, link);
    }
    case FrameType::kBye: {
      {
        const std::lock_guard lock(mutex_);
        link->departed = true;
      }
      return mailbox()->NoteDeparture(link->rank);
    }
    case FrameType::kAsk: {
      if (from_parent) break;
      {
        const std::lock_guard lock(mutex_);
        link->has_asked = true;
      }
      if (parent_) return Send(parent_.get(), FrameType::kAsk, frame.sequence, {});
      return StartCensus(frame.sequence);
    }
    case FrameType::kCensus: {
      if (!from_parent) break;
      for (const auto& child : children_) Send(child.get(), frame.type, frame.sequence, {});
      const bool came = mailbox()->HasEntered(Channel{}, frame.sequence);
      const auto self = static_cast<std::int32_t>(rank());
      return Send(parent_.get(), FrameType::kPresence, frame.sequence,
                  ByteWriter().Int(self).Int(std::uint8_t{came}).Take());
    }
    case FrameType::kPresence: {
      const auto rank = reader.Int<std::int32_t>();
      const bool came = reader.Int<std::uint8_t>() != 0;
      if (from_parent || !reader.AtEnd() || rank < 0 || rank >= size()) break;
      if (parent_) return Send(parent_.get(), frame.type, frame.sequence, frame.payload);
      return NotePresence(frame.sequence, rank, came);
    }
    case FrameType::kMissing: {
      std::vector<int> missing;
      for (auto left = reader.Int<std::uint32_t>(); left > 0 && reader.ok(); --left)
        missing.push_back(reader.Int<std::int32_t>());
      if (!from_parent || !reader.AtEnd()) break;
      return PassOnMissing(frame.sequence, missing);
    }
    default: break;
  }
  DeclareLost(link, "it sent a message out of place");
}

void SocketBootstrap::DeclareLost(Link* link, std::string reason) {
  NoteLoss({link->rank, std::move(reason)}, link);
  // Not closed: others may be sending, and the descriptor is this link's until the end.
  ::shutdown(link->connection.fd(), SHUT_RDWR);
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
    mailbox()->NoteLoss(loss);
    answered_.notify_all();
  }
  const Bytes news =
      ByteWriter().Int(static_cast<std::int32_t>(loss.rank)).Text(loss.reason).Take();
  for (Link* link : Links()) {
    if (link != heard_from && link->rank != loss.rank) Send(link, FrameType::kLost, 0, news);
  }
}

void SocketBootstrap::Send(Link* link, FrameType type, std::uint32_t sequence, ByteView payload) {
  bool is_left = false;
  {
    const std::lock_guard lock(link->send_mutex);
    link->connection.Queue({type, static_cast<std::uint32_t>(rank()), sequence,
                            Bytes(payload.begin(), payload.end())});
    static_cast<void>(link->connection.Flush());
    is_left = link->connection.has_queued();
  }
  if (is_left) Wake();
}

SocketBootstrap::Link* SocketBootstrap::WayTo(int rank) const {
  // Up from there, until below this rank.
  for (int at = rank; at > this->rank(); at = TreeParent(at)) {
    for (const auto& child : children_) {
      if (child->rank == at) return child.get();
    }
  }
  return parent_.get();
}

void SocketBootstrap::Post(int to, const Channel& channel, Bytes message) {
  if (to == rank()) return Keep(to, channel, std::move(message));
  Send(WayTo(to), FrameType::kLetter, 0, EncodeLetter({rank(), to, channel, std::move(message)}));
}

bool SocketBootstrap::Deliver(Link* link, const Frame& frame) {
  auto letter = DecodeLetter(frame.payload, size());
  if (!letter.ok()) return false;
  if (letter->to == rank()) {
    Keep(letter->from, letter->channel, std::move(letter->message));
    return true;
  }
  Link* const next = WayTo(letter->to);
  if (next == nullptr || next == link) return false;  // it would go around for ever
  Send(next, FrameType::kLetter, 0, frame.payload);
  return true;
}

void SocketBootstrap::Keep(int from, const Channel& channel, Bytes message) {
  const std::size_t bytes = message.size();
  if (mailbox()->Put(from, channel, std::move(message))) return;
  Abort(Error(ErrorCode::kOutOfMemory,
              "messages wait that nobody takes, and {} bytes of rank {} are more than the {} bytes "
              "that there is room for",
              bytes, from, Mailbox::kMaxBytes));
}

std::optional<std::vector<int>> SocketBootstrap::FindMissing(const Round& round) {
  const std::uint32_t sequence = round.sequence;
  {
    const std::lock_guard lock(mutex_);
    if (missing_ && missing_->first == sequence) missing_.reset();  // of an earlier question
  }
  if (parent_) {
    Send(parent_.get(), FrameType::kAsk, sequence, {});
  } else {
    StartCensus(sequence);
  }
  std::unique_lock lock(mutex_);
  answered_.wait_for(lock, kCensusAnswer,
                     [&] { return (missing_ && missing_->first == sequence) || !losses_.empty(); });
  if (!missing_ || missing_->first != sequence) return std::nullopt;
  return missing_->second;
}

void SocketBootstrap::StartCensus(std::uint32_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    if (census_ && census_->sequence == sequence) return;
    census_ = Census{sequence, Deadline::After(kCensus), {}, 0};
    census_->came.resize(static_cast<std::size_t>(size()));
  }
  for (const auto& child : children_) Send(child.get(), FrameType::kCensus, sequence, {});
  NotePresence(sequence, rank(), mailbox()->HasEntered(Channel{}, sequence));
  Wake();  // for its end
}

void SocketBootstrap::NotePresence(std::uint32_t sequence, int rank, bool came) {
  {
    const std::lock_guard lock(mutex_);
    if (!census_ || census_->sequence != sequence) return;
    auto& known = census_->came[static_cast<std::size_t>(rank)];
    if (!known) ++census_->answers;
    known = came;
  }
  EndCensus();
}

void SocketBootstrap::EndCensus() {
  std::vector<int> missing;
  std::uint32_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!census_ || (census_->answers < size() && !census_->end.Expired())) return;
    const auto& came = census_->came;
    for (int rank = 0; rank < size(); ++rank) {
      const auto& answer = came[static_cast<std::size_t>(rank)];
      // What lies behind a rank that does not answer is not known, and not its fault.
      const bool is_heard =
          rank == 0 || came[static_cast<std::size_t>(TreeParent(rank))].has_value();
      if (answer ? !*answer : is_heard) missing.push_back(rank);
    }
    sequence = census_->sequence;
    census_.reset();
  }
  PassOnMissing(sequence, missing);
}

void SocketBootstrap::PassOnMissing(std::uint32_t sequence, const std::vector<int>& missing) {
  std::vector<Link*> asked;
  {
    const std::lock_guard lock(mutex_);
    missing_ = {sequence, missing};
    for (const auto& child : children_) {
      if (std::exchange(child->has_asked, false)) asked.push_back(child.get());
    }
    answered_.notify_all();
  }
  const std::size_t named = std::min(missing.size(), kMaxNamed);
  ByteWriter list;
  list.Int(static_cast<std::uint32_t>(named));
  for (std::size_t i = 0; i < named; ++i) list.Int(static_cast<std::int32_t>(missing[i]));
  for (Link* link : asked) Send(link, FrameType::kMissing, sequence, list.bytes());
}

void SocketBootstrap::Abort(const Status& why) {
  NoteLoss({rank(), ("it gave up: " + why.message()).substr(0, kMaxReason)}, nullptr);
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

void SocketBootstrap::Leave() {
  {
    // News that this rank knows goes out first: nobody listens to it after its good-bye.
    const std::lock_guard observing(observer_mutex_);
    for (Link* link : Links()) Send(link, FrameType::kBye, 0, {});
  }
  Stop();
}

void SocketBootstrap::AwaitDelivery() {
  const Deadline end = NewsLimit();
  for (Link* link : Links()) {
    const auto is_done = [&] {
      {
        const std::lock_guard lock(mutex_);
        if (link->departed) return true;
      }
      const std::lock_guard lock(link->send_mutex);
      return link->connection.IsDelivered();
    };
    while (!is_done() && !end.Expired()) std::this_thread::sleep_for(milliseconds(1));
  }
}

void SocketBootstrap::Stop() {
  // A connection that is closed with something unread in it is reset, and drops what the other
  // end's system does not have yet: our good-bye, or the news of a loss.
  if (reader_.joinable()) AwaitDelivery();
  closing_.store(true, std::memory_order_release);  // pairs with the acquire in ReadLoop
  Wake();
  if (reader_.joinable()) reader_.join();
  parent_.reset();
  children_.clear();
}

}  // namespace mori::shmem
