#include "bootstrap/acceptor.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/log.hpp"
#include "bootstrap/socket.hpp"

namespace mori::shmem {
namespace {

/// Most connections that are accepted before those that are there are heard again.
constexpr int kBatch = 64;
/// After an accept that failed.
constexpr std::chrono::milliseconds kPause{10};

}  // namespace

Acceptor::Acceptor(Bound bound, const RendezvousName& name, const Secret& secret,
                   const Limits& limits)
    : listeners_(std::move(bound.listeners)),
      addresses_(std::move(bound.addresses)),
      port_(bound.port),
      name_(name),
      secret_(secret),
      limits_(limits) {}

Acceptor::Bound Acceptor::BindAll(const std::vector<IpAddress>& addresses) {
  Bound bound;
  for (const auto& address : addresses) {
    if (bound.addresses.size() == kMaxAddresses) break;
    auto listener = ListenOn(address, bound.port);
    if (listener.ok() && bound.port == 0) {
      const auto port = PortOf(listener->get());
      if (port.ok()) {
        bound.port = *port;
      } else {
        listener = port.status();
      }
    }
    if (listener.ok()) {
      bound.listeners.push_back(std::move(*listener));
      bound.addresses.push_back(address);
    } else if (bound.first_failure.ok()) {
      bound.first_failure = listener.status();
    }
  }
  return bound;
}

Result<Acceptor> Acceptor::Listen(const std::vector<IpAddress>& addresses,
                                  const RendezvousName& name, const Secret& secret,
                                  const Limits& limits) {
  constexpr int kAttempts = 4;  // another program may hold the port on one of the other addresses
  Bound best;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Bound bound = BindAll(addresses);
    const bool all = bound.first_failure.ok();
    if (attempt == 0 || bound.addresses.size() > best.addresses.size()) best = std::move(bound);
    if (all) break;
  }
  if (best.addresses.empty()) {
    return addresses.empty() ? Error(ErrorCode::kSystem, "there is no address to listen on")
                             : best.first_failure;
  }
  if (!best.first_failure.ok()) LogDebug("skipped: {}", best.first_failure.message());
  return Acceptor(std::move(best), name, secret, limits);
}

Result<Acceptor::Event> Acceptor::Wait(const std::vector<int>& watched, const Deadline& deadline) {
  for (;;) {
    const short accepting = HasRoom() ? POLLIN : 0;
    std::vector<pollfd> entries;
    for (const auto& listener : listeners_)
      entries.push_back({accepting != 0 ? listener.get() : -1, accepting, 0});
    for (const int fd : watched) entries.push_back({fd, POLLIN, 0});
    for (const auto& proved : proved_) entries.push_back({proved.fd(), POLLIN, 0});
    for (const auto& stranger : strangers_) entries.push_back({stranger.fd.get(), POLLIN, 0});

    const int ready = ::poll(entries.data(), entries.size(), NextWakeUp(deadline).PollTimeoutMs());
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "wait for connections");

    Event event;
    if (ready > 0) {
      std::size_t index = listeners_.size();
      for (const int fd : watched) {
        if (entries[index++].revents != 0) event.readable.push_back(fd);
      }
      std::size_t next_stranger = index + proved_.size();
      for (auto it = proved_.begin(); it != proved_.end() && !event.caller; ++index) {
        const bool keep = entries[index].revents == 0 || Advance(&*it, &event.caller);
        it = keep ? std::next(it) : proved_.erase(it);
      }
      for (auto it = strangers_.begin(); it != strangers_.end(); ++next_stranger) {
        const bool keep = entries[next_stranger].revents == 0 || Advance(&*it);
        it = keep ? std::next(it) : strangers_.erase(it);
      }
      for (std::size_t i = 0; i < listeners_.size(); ++i) {
        if (entries[i].revents != 0) MORI_RETURN_IF_ERROR(AcceptBatch(listeners_[i].get()));
      }
    }
    DropLate();
    if (strangers_.size() >= limits_.strangers) MakeRoom();
    if (event.caller || !event.readable.empty() || deadline.Expired()) return event;
  }
}

bool Acceptor::HasRoom() const {
  return strangers_.size() < limits_.strangers && paused_until_ <= Clock::now();
}

void Acceptor::Pause() { paused_until_ = Clock::now() + kPause; }

Status Acceptor::AcceptBatch(int listener) {
  for (int i = 0; i < kBatch && HasRoom(); ++i) {
    IpAddress from;
    auto accepted = AcceptFrom(listener, &from);
    if (!accepted.ok()) {
      if (strangers_.empty() && proved_.empty()) return accepted.status();
      MakeRoom();
      Pause();
      return Status();
    }
    if (!accepted->valid()) {
      if (i == 0) Pause();  // there was one, which has failed
      return Status();
    }
    Stranger stranger{std::move(*accepted), from, ListenerHandshake(name_, secret_), Clock::now()};
    // A fresh connection has room for the challenge: this does not wait.
    if (SendAll(stranger.fd.get(), stranger.handshake.Challenge(), Deadline::After({})).ok()) {
      strangers_.push_back(std::move(stranger));
    }
  }
  return Status();
}

bool Acceptor::Advance(Stranger* stranger) {
  Bytes* answer = &stranger->answer;
  if (!ReceiveSome(stranger->fd.get(), kAnswerBytes - answer->size(), answer).ok()) return false;
  if (answer->size() < kAnswerBytes) return true;
  auto proof = stranger->handshake.Check(*answer);
  if (!proof.ok() || !SendAll(stranger->fd.get(), *proof, Deadline::After({})).ok()) return false;
  proved_.emplace_back(std::move(stranger->fd), stranger->handshake.Keys(*answer),
                       kMaxFirstFrameBytes);
  return false;
}

bool Acceptor::Advance(Connection* proved, std::optional<Caller>* caller) {
  // Who has sent its first message and is gone is a caller, too: what it said counts.
  const Status read = proved->ReadSome();
  auto frame = proved->Next();
  if (!frame.ok()) return false;
  if (!frame->has_value()) return read.ok();
  *caller = Caller{std::move(*proved), std::move(**frame)};
  return false;
}

Deadline Acceptor::NextWakeUp(const Deadline& deadline) const {
  const auto now = Clock::now();
  Deadline next = deadline;
  if (!strangers_.empty()) {
    const bool full = strangers_.size() >= limits_.strangers;
    const auto patience = full ? limits_.patience_when_full : limits_.patience;
    // Not at once again: one that is late may not be of those who make room.
    const auto left = strangers_.front().came_at + patience - now;
    next = next.AtMost(std::max<std::chrono::nanoseconds>(left, full ? kPause : kPause / 10));
  }
  return paused_until_ > now ? next.AtMost(paused_until_ - now) : next;
}

void Acceptor::DropLate() {
  const auto last = Clock::now() - limits_.patience;
  while (!strangers_.empty() && strangers_.front().came_at <= last) strangers_.pop_front();
}

void Acceptor::MakeRoom() {
  const auto last = Clock::now() - limits_.patience_when_full;
  const auto is_silent = [&](const Stranger& stranger) { return stranger.came_at <= last; };
  if (strangers_.empty()) return;
  std::map<std::array<std::uint8_t, 16>, int> from;
  for (const auto& stranger : strangers_) from[stranger.from.bytes] += is_silent(stranger) ? 1 : 0;
  const auto most = std::max_element(
      from.begin(), from.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  int dropped = 0;
  for (auto it = strangers_.end(); it != strangers_.begin() && dropped < kBatch;) {
    --it;
    if (!is_silent(*it) || it->from.bytes != most->first) continue;
    it = strangers_.erase(it);
    ++dropped;
  }
}

}  // namespace mori::shmem
