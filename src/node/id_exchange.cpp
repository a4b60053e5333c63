#include "node/id_exchange.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/log.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "bootstrap/socket.hpp"
#include "node/abstract_socket.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kMaxReply = 8192;
/// How long rank 0 still tells those who come that sizes differ.
constexpr std::chrono::seconds kLastWord{5};
constexpr std::uint32_t kMagic = 0x6d6f7269;
/// What a caller says: the magic number, its rank, and how many ranks there are.
constexpr std::size_t kCallBytes = 3 * sizeof(std::uint32_t);

/// The first byte of a reply says what follows.
enum class Reply : std::uint8_t { kFailure, kId, kComeAgain };

Bytes EncodeReply(const Result<UniqueId>& id) {
  ByteWriter writer;
  writer.Int(static_cast<std::uint8_t>(id.ok() ? Reply::kId : Reply::kFailure));
  return id.ok() ? writer.Raw(id->bytes).Take() : writer.Raw(EncodeStatus(id.status())).Take();
}

/// Empty: to come again.
Result<std::optional<UniqueId>> DecodeReply(ByteView reply) {
  ByteReader reader(reply);
  switch (static_cast<Reply>(reader.Int<std::uint8_t>())) {
    case Reply::kFailure: return DecodeStatus(reader.Raw(reader.remaining()));
    case Reply::kComeAgain: return std::optional<UniqueId>();
    case Reply::kId: break;
    default: return Error(ErrorCode::kMismatch, "what rank 0 sent is no answer");
  }
  const ByteView bytes = reader.Raw(UniqueId::kBytes);
  if (!reader.AtEnd()) return Error(ErrorCode::kMismatch, "what rank 0 sent is no unique id");
  UniqueId id;
  std::ranges::copy(bytes, id.bytes);
  return std::optional(id);
}

/// A reply is far smaller than a socket's buffer, and the first thing in it: this does not wait.
Status SendReply(int caller, const Bytes& reply) {
  return SendAll(caller, reply, Deadline::After(std::chrono::seconds(0)));
}

void TellToComeAgain(int caller) {
  // Who does not hear it has hung up.
  static_cast<void>(SendReply(caller, {static_cast<std::uint8_t>(Reply::kComeAgain)}));
}

void ShortPause() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

}  // namespace

Result<UniqueId> IdExchange::Run(const std::function<Result<UniqueId>()>& make) const {
  if (rank_ != 0) return Fetch();
  const Result<UniqueId> id = make();
  if (size_ > 1) MORI_RETURN_IF_ERROR(Serve(id));
  return id;
}

// All callers are heard together, so that one that is slow, or says nothing, holds up nobody.
Status IdExchange::Serve(const Result<UniqueId>& id) const {
  MORI_ASSIGN_OR_RETURN(const UniqueFd listener, ListenAbstract(AbstractNameFor(meeting_)));
  News news{EncodeReply(id)};
  std::vector<Caller> callers;
  NextLine line = FirstLine();
  Deadline end = deadline_;
  while (news.arrived.size() + 1 < static_cast<std::size_t>(size_)) {
    Deadline::Clock::time_point wake_at = std::min(end.end(), line.due.end());
    std::vector<pollfd> polls{{listener.get(), POLLIN, 0}};
    for (const Caller& caller : callers) {
      polls.push_back({caller.fd.get(), POLLIN, 0});
      wake_at = std::min(wake_at, caller.patience.end());
    }
    const Deadline wake = Deadline::After(wake_at - Deadline::Clock::now());
    if (::poll(polls.data(), polls.size(), wake.PollTimeoutMs()) < 0 && errno != EINTR)
      return Status::FromErrno(errno, "wait for ranks");
    for (std::size_t i = callers.size(); i-- > 0;) {  // from the end, as some go
      bool stays = true;
      if (polls[i + 1].revents != 0) {
        const bool had_differed = !news.differs.ok();
        stays = Hear(callers[i], &news);
        if (!had_differed && !news.differs.ok()) end = deadline_.AtMost(kLastWord);
      } else if (callers[i].patience.Expired()) {
        TellToComeAgain(callers[i].fd.get());
        stays = false;
      }
      if (!stays) callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polls[0].revents != 0) MORI_RETURN_IF_ERROR(Admit(listener.get(), &callers));
    if (end.Expired()) return news.differs.ok() ? Late(Missing(news.arrived)) : news.differs;
    SayWhenDue(&line, [&] { return Missing(news.arrived); });
  }
  return news.differs;
}

Status IdExchange::Admit(int listener, std::vector<Caller>* callers) const {
  auto caller = AcceptAbstract(listener);
  const bool no_room = callers->size() == options_.max_callers || !caller.ok();
  if (no_room && !callers->empty()) {  // the first has been silent for longest
    TellToComeAgain(callers->front().fd.get());
    callers->erase(callers->begin());
  } else if (!caller.ok()) {
    return caller.status();
  }
  if (caller.ok() && caller->valid())
    callers->push_back({std::move(*caller), Deadline::After(options_.patience)});
  return Status();
}

bool IdExchange::Hear(Caller& caller, News* news) const {
  const auto got = ReceiveSome(caller.fd.get(), kCallBytes - caller.said.size(), &caller.said);
  if (!got.ok()) return false;  // it hung up
  if (caller.said.size() < kCallBytes) return true;
  ByteReader call(caller.said);
  const bool is_ours = call.Int<std::uint32_t>() == kMagic;
  const auto rank = call.Int<std::uint32_t>(), size = call.Int<std::uint32_t>();
  if (!is_ours) return false;
  const bool differs = size != static_cast<std::uint32_t>(size_) || rank == 0 || rank >= size;
  if (differs && news->differs.ok()) {
    news->differs =
        Error(ErrorCode::kMismatch, "rank {} says that there are {} ranks, rank 0 says {}", rank,
              size, size_);
    news->reply = EncodeReply(news->differs);
  }
  if (SendReply(caller.fd.get(), news->reply).ok()) news->arrived.insert(static_cast<int>(rank));
  return false;
}

Result<UniqueId> IdExchange::Fetch() const {
  const std::string rank_zero = fmt::format("rank 0 of {}", size_);
  for (NextLine line = FirstLine();; ShortPause()) {
    const auto server = ConnectAbstract(AbstractNameFor(meeting_), deadline_);
    if (server.ok()) {
      MORI_ASSIGN_OR_RETURN(const auto id, AskFor(server->get(), &line));
      if (id) return *id;
    } else if (server.status().code() != ErrorCode::kPeerLost) {
      return server.status().code() == ErrorCode::kTimeout ? Late(rank_zero) : server.status();
    }
    if (deadline_.Expired()) return Late(rank_zero);
    SayWhenDue(&line, [&] { return rank_zero; });
  }
}

Result<std::optional<UniqueId>> IdExchange::AskFor(int server, NextLine* line) const {
  const std::string rank_zero = fmt::format("rank 0 of {}", size_);
  Bytes reply;
  const Bytes call = ByteWriter()
                         .Int(kMagic)
                         .Int(static_cast<std::uint32_t>(rank_))
                         .Int(static_cast<std::uint32_t>(size_))
                         .Take();
  Status status = SendAll(server, call, deadline_);
  if (status.code() == ErrorCode::kPeerLost) status = Status();  // it may have said why
  while (status.ok() && reply.size() <= kMaxReply) {  // until rank 0 closes: then all is here
    const Deadline wake =
        Deadline::After(std::min(deadline_.end(), line->due.end()) - Deadline::Clock::now());
    status = WaitFor(server, POLLIN, wake);
    if (status.code() == ErrorCode::kTimeout && !deadline_.Expired()) {
      SayWhenDue(line, [&] { return rank_zero; });
      status = Status();
    } else if (status.ok()) {
      status = ReceiveSome(server, kMaxReply, &reply).status();
    }
  }
  if (status.code() == ErrorCode::kTimeout) return Late(rank_zero);
  if (reply.empty())
    return Error(ErrorCode::kPeerLost, "rank 0 was lost while it made the unique id");
  return DecodeReply(reply);
}

IdExchange::NextLine IdExchange::FirstLine() const {
  return {Deadline::After(options_.first_line), options_.first_line};
}

void IdExchange::SayWhenDue(NextLine* line, const std::function<std::string()>& who) const {
  if (!line->due.Expired()) return;
  LogWarn("rank {} still waits for {} to come to init on this machine, since {:.3g} s{}{}", rank_,
          who(), deadline_.ElapsedSeconds(), options_.hint.empty() ? "" : "; ", options_.hint);
  line->pause *= 2;
  line->due = Deadline::After(line->pause);
}

std::string IdExchange::Missing(const std::set<int>& arrived) const {
  int first = 1;
  while (arrived.contains(first)) ++first;
  return fmt::format("{} of {} ranks, among them rank {},",
                     static_cast<std::size_t>(size_) - 1 - arrived.size(), size_, first);
}

Status IdExchange::Late(std::string_view who) const {
  return Error(ErrorCode::kTimeout,
               "{} did not come to init within {:.3g} s (MORI_BOOTSTRAP_TIMEOUT){}{}", who,
               deadline_.ElapsedSeconds(), options_.hint.empty() ? "" : "; ", options_.hint);
}

}  // namespace mori::shmem
