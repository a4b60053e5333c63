#include "bootstrap/socket_bootstrap.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "bootstrap/letter.hpp"
#include "bootstrap/mailbox.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "bootstrap/socket.hpp"

namespace mori::shmem {
namespace {

using std::chrono::milliseconds;

/// Longest text of a loss on its way to the others.
constexpr std::size_t kMaxReason = 4096;
/// Why a rank is lost that does not keep to the protocol.
constexpr const char* kOutOfPlace = "it sent a message out of place";
/// How long rank 0 waits for all to say whether they have come, and who asks for its answer.
constexpr milliseconds kCensus{500};
constexpr milliseconds kCensusAnswer{1'500};
/// Questions of a rank that wait for their answers, at most.
constexpr std::size_t kMaxQuestions = 1024;
/// How often connections are read where the system does not say which of them have something.
constexpr milliseconds kBlindLook{5};
/// The others' readers never pause; this only ends a wait for a stopped process.
Deadline NewsLimit() { return Deadline::After(std::chrono::seconds(2)); }

/// A bit for each.
Bytes EncodeMarks(const std::vector<bool>& marks) {
  Bytes bytes((marks.size() + 7) / 8);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i]) bytes[i / 8] |= static_cast<std::uint8_t>(1u << (i % 8));
  }
  return bytes;
}

/// All that is left, if it is as many as that.
std::optional<std::vector<bool>> ReadMarks(ByteReader* reader, int count) {
  std::vector<bool> marks(static_cast<std::size_t>(count));
  const ByteView bytes = reader->Raw((marks.size() + 7) / 8);
  if (!reader->AtEnd()) return std::nullopt;
  for (std::size_t i = 0; i < marks.size(); ++i) marks[i] = (bytes[i / 8] >> (i % 8) & 1) != 0;
  return marks;
}

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

Status SocketBootstrap::LearnShape(const std::vector<std::uint32_t>& node_of,
                                   const WaitLimit& limit) {
  const auto the_one = [](ByteView a, ByteView b) {
    const ByteView all = a.empty() ? b : a;
    return Bytes(all.begin(), all.end());
  };
  if (rank() == 0) SetTree(node_of.empty() ? Tree(size()) : Tree(node_of));
  const Bytes mine = EncodeNodes(node_of);  // of other ranks than 0: nothing
  MORI_ASSIGN_OR_RETURN(const Bytes all, Combine(mine, the_one, limit));
  MORI_ASSIGN_OR_RETURN(const auto nodes, DecodeNodes(all, size()));
  Tree tree = nodes.empty() ? Tree(size()) : Tree(nodes);
  if (tree.Parent(rank()) != place_.parent || tree.Children(rank()) != place_.children)
    return Error(ErrorCode::kInternal, "rank {} has another place in the tree than it was told",
                 rank());
  SetTree(std::move(tree));
  return Status();
}

void SocketBootstrap::SetTree(Tree tree) {
  std::vector<Link*> astray;
  {
    const std::lock_guard lock(mutex_);
    tree_ = std::move(tree);
    // The lock keeps what came first before what comes now.
    for (const auto& [from, frame] : std::exchange(waiting_, {})) {
      const auto letter = DecodeLetter(frame.payload, size());
      if (!letter.ok() || !PassOn(from, frame, letter->to)) astray.push_back(from);
    }
  }
  for (Link* link : astray) DeclareLost(link, kOutOfPlace);
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
    // Short of memory, say, or beyond a limit that was lowered: nobody may be left unheard for it,
    // and no connection blocks.
    const bool is_blind = ready < 0 && errno != EINTR;
    if (is_blind) std::this_thread::sleep_for(kBlindLook);
    for (std::size_t i = 0; i < links.size(); ++i) {
      short events = ready > 0 ? entries[i + 1].revents : short{0};
      if (is_blind) events = entries[i + 1].events;
      if ((events & POLLOUT) != 0) {
        const std::lock_guard lock(links[i]->send_mutex);
        static_cast<void>(links[i]->connection.Flush());  // a loss shows when we read
      }
      if ((events & ~POLLOUT) != 0) ReadFrom(links[i]);
      CheckSilence(links[i]);
    }
    eventfd_t wakes = 0;
    if (ready > 0 && entries[0].revents != 0) ::eventfd_read(wake_.get(), &wakes);
    EndCensuses();
  }
}

void SocketBootstrap::Wake() const {
  if (wake_.valid()) ::eventfd_write(wake_.get(), 1);
}

Deadline SocketBootstrap::NextWakeUp() const {
  const std::lock_guard lock(mutex_);
  Deadline next = Deadline::After(std::chrono::milliseconds(silence_) / 6);
  for (const auto& [question, census] : censuses_)
    next = next.AtMost(census.end.end() - Deadline::Clock::now());
  return next;
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
      if (!Deliver(link, std::move(frame))) break;
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
      const auto question = ReadQuestion(frame, &reader);
      if (from_parent || !question || !reader.AtEnd()) break;
      {
        const std::lock_guard lock(mutex_);
        if (askers_.size() < kMaxQuestions) askers_[*question].insert(link);
      }
      if (parent_) return Ask(parent_.get(), FrameType::kAsk, *question);
      return StartCensus(*question);
    }
    case FrameType::kCensus: {
      const auto question = ReadQuestion(frame, &reader);
      if (!from_parent || !question || !reader.AtEnd()) break;
      for (const auto& child : children_) Ask(child.get(), frame.type, *question);
      const bool came = mailbox()->HasEntered(question->first, question->second);
      const auto self = static_cast<std::int32_t>(rank());
      return Ask(parent_.get(), FrameType::kPresence, *question,
                 ByteWriter().Int(self).Int(std::uint8_t{came}).bytes());
    }
    case FrameType::kPresence: {
      const auto question = ReadQuestion(frame, &reader);
      const auto rank = reader.Int<std::int32_t>();
      const bool came = reader.Int<std::uint8_t>() != 0;
      if (from_parent || !question || !reader.AtEnd() || rank < 0 || rank >= size()) break;
      if (parent_) return Send(parent_.get(), frame.type, frame.sequence, frame.payload);
      return NotePresence(*question, rank, came);
    }
    case FrameType::kMissing: {
      const auto question = ReadQuestion(frame, &reader);
      const auto marks = ReadMarks(&reader, size());
      if (!from_parent || !question || !marks) break;
      return PassOnMissing(*question, *marks);
    }
    default: break;
  }
  DeclareLost(link, kOutOfPlace);
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
  // The others first: a call that fails here may end this process, and who sees it gone is to know
  // already whose fault that was.
  const Bytes news =
      ByteWriter().Int(static_cast<std::int32_t>(loss.rank)).Text(loss.reason).Take();
  for (Link* link : Links()) {
    // The lost one too: it may be there, and not know that it is lost to others.
    if (link != heard_from) Send(link, FrameType::kLost, 0, news);
  }
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

std::optional<int> SocketBootstrap::ChildTowards(int rank) const {
  const std::lock_guard lock(mutex_);
  return tree_ ? tree_->ChildTowards(this->rank(), rank) : std::nullopt;
}

SocketBootstrap::Link* SocketBootstrap::WayTo(int rank) const {
  if (parent_ && parent_->rank == rank) return parent_.get();
  const auto at = [this](int child) {
    const auto found = std::ranges::find(children_, child, &Link::rank);
    return found == children_.end() ? nullptr : found->get();
  };
  if (Link* const child = at(rank)) return child;
  const auto below = tree_ ? tree_->ChildTowards(this->rank(), rank) : std::nullopt;
  return below ? at(*below) : parent_.get();
}

void SocketBootstrap::Post(int to, const Channel& channel, Bytes message) {
  if (to == rank()) return Keep(to, channel, std::move(message));
  Link* next = nullptr;
  {
    const std::lock_guard lock(mutex_);
    next = WayTo(to);
  }
  Send(next, FrameType::kLetter, 0, EncodeLetter({rank(), to, channel, std::move(message)}));
}

bool SocketBootstrap::Deliver(Link* link, Frame frame) {
  auto letter = DecodeLetter(frame.payload, size());
  if (!letter.ok()) return false;
  if (letter->to == rank()) {
    Keep(letter->from, letter->channel, std::move(letter->message));
    return true;
  }
  const std::lock_guard lock(mutex_);
  if (tree_) return PassOn(link, frame, letter->to);
  waiting_.emplace_back(link, std::move(frame));
  FaultPoint("bootstrap: a letter waits for the tree");
  return true;
}

bool SocketBootstrap::PassOn(const Link* from, const Frame& frame, int to) {
  Link* const next = WayTo(to);
  if (next == nullptr || next == from) return false;  // it would go around for ever
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

std::optional<SocketBootstrap::Question> SocketBootstrap::ReadQuestion(const Frame& frame,
                                                                       ByteReader* reader) {
  Channel channel;
  channel.use = reader->Int<Channel::Use>();
  channel.tag = reader->Int<std::uint64_t>();
  using Use = Channel::Use;
  const bool is_call =
      channel.use == Use::kAll || channel.use == Use::kGroup || channel.use == Use::kElsewhere;
  if (!reader->ok() || !is_call) return std::nullopt;
  return Question(channel, frame.sequence);
}

void SocketBootstrap::Ask(Link* link, FrameType type, const Question& question, ByteView more) {
  const auto& [channel, sequence] = question;
  Send(link, type, sequence, ByteWriter().Int(channel.use).Int(channel.tag).Raw(more).bytes());
}

std::optional<std::vector<int>> SocketBootstrap::FindMissing(const Round& round) {
  const Question question(round.channel, round.sequence);
  std::shared_ptr<std::optional<Marks>> answer;
  {
    const std::lock_guard lock(mutex_);
    auto& asked = asked_[question];
    if (asked == nullptr) asked = std::make_shared<std::optional<Marks>>();
    answer = asked;
  }
  if (parent_) {
    Ask(parent_.get(), FrameType::kAsk, question);
  } else {
    StartCensus(question);
  }
  std::unique_lock lock(mutex_);
  answered_.wait_for(lock, kCensusAnswer, [&] { return *answer || !losses_.empty(); });
  const auto asked = asked_.find(question);
  if (asked != asked_.end() && asked->second == answer) asked_.erase(asked);
  if (!*answer) return std::nullopt;
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if ((**answer)[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  return missing;
}

void SocketBootstrap::StartCensus(const Question& question) {
  {
    const std::lock_guard lock(mutex_);
    const auto [census, is_new] =
        censuses_.emplace(question, Census{Deadline::After(kCensus), {}, 0});
    if (!is_new) return;
    census->second.came.resize(static_cast<std::size_t>(size()));
  }
  for (const auto& child : children_) Ask(child.get(), FrameType::kCensus, question);
  NotePresence(question, rank(), mailbox()->HasEntered(question.first, question.second));
  Wake();  // for its end
}

void SocketBootstrap::NotePresence(const Question& question, int rank, bool came) {
  {
    const std::lock_guard lock(mutex_);
    const auto census = censuses_.find(question);
    if (census == censuses_.end()) return;
    auto& known = census->second.came[static_cast<std::size_t>(rank)];
    if (!known) ++census->second.answers;
    known = came;
  }
  EndCensuses();
}

void SocketBootstrap::EndCensuses() {
  std::vector<std::pair<Question, Marks>> results;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(censuses_, [&](const auto& entry) {
      const auto& [question, census] = entry;
      if (census.answers < size() && !census.end.Expired()) return false;
      results.emplace_back(question, MissingIn(census));
      return true;
    });
  }
  for (const auto& [question, missing] : results) PassOnMissing(question, missing);
}

SocketBootstrap::Marks SocketBootstrap::MissingIn(const Census& census) const {
  Marks missing(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    const auto& answer = census.came[static_cast<std::size_t>(rank)];
    // What lies behind a rank that does not answer is not known, and not its fault.
    const std::optional<int> parent = tree_ ? tree_->Parent(rank) : std::nullopt;
    const bool is_heard = !parent || census.came[static_cast<std::size_t>(*parent)].has_value();
    missing[static_cast<std::size_t>(rank)] = answer ? !*answer : is_heard;
  }
  return missing;
}

void SocketBootstrap::PassOnMissing(const Question& question, const Marks& missing) {
  std::set<Link*> askers;
  {
    const std::lock_guard lock(mutex_);
    if (const auto asked = asked_.find(question); asked != asked_.end()) {
      *asked->second = missing;
      asked_.erase(asked);
    }
    if (auto node = askers_.extract(question)) askers = std::move(node.mapped());
    answered_.notify_all();
  }
  const Bytes marks = EncodeMarks(missing);
  for (Link* link : askers) Ask(link, FrameType::kMissing, question, marks);
}

void SocketBootstrap::Abort(const Status& why) {
  NoteLoss({rank(), ("it gave up: " + why.message()).substr(0, kMaxReason)}, nullptr);
}

void SocketBootstrap::Accuse(int rank, const std::string& reason) {
  if (rank < 0 || rank >= size()) return;
  NoteLoss({rank, reason.substr(0, kMaxReason)}, nullptr);
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
