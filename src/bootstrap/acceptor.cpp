#include "bootstrap/acceptor.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "bootstrap/socket.hpp"

namespace mori::shmem {
namespace {

/// One listener per address, all on the port that the first was given; nothing if that port is
/// taken on another address.
Result<std::vector<UniqueFd>> ListenOnAll(const std::vector<IpAddress>& addresses,
                                          std::uint16_t* port) {
  std::vector<UniqueFd> listeners;
  *port = 0;
  for (const auto& address : addresses) {
    MORI_ASSIGN_OR_RETURN(UniqueFd listener, ListenOn(address, *port));
    if (*port == 0) {
      MORI_ASSIGN_OR_RETURN(*port, PortOf(listener.get()));
    }
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

}  // namespace

Acceptor::Acceptor(std::vector<UniqueFd> listeners, std::vector<IpAddress> addresses,
                   std::uint16_t port, const RendezvousName& name, const Secret& secret)
    : listeners_(std::move(listeners)),
      addresses_(std::move(addresses)),
      port_(port),
      name_(name),
      secret_(secret) {}

Result<Acceptor> Acceptor::Listen(const std::vector<IpAddress>& addresses,
                                  const RendezvousName& name, const Secret& secret) {
  constexpr int kAttempts = 16;  // another program may hold the port on one of the other addresses
  for (int attempt = 1;; ++attempt) {
    std::uint16_t port = 0;
    auto listeners = ListenOnAll(addresses, &port);
    if (listeners.ok()) return Acceptor(std::move(*listeners), addresses, port, name, secret);
    if (attempt == kAttempts) return listeners.status();
  }
}

Result<Acceptor::Event> Acceptor::Wait(const std::vector<int>& watched, const Deadline& deadline) {
  for (;;) {
    std::vector<pollfd> entries;
    for (const auto& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    for (const int fd : watched) entries.push_back({fd, POLLIN, 0});
    for (const auto& stranger : strangers_) entries.push_back({stranger.fd.get(), POLLIN, 0});

    const int ready = ::poll(entries.data(), entries.size(), NextWakeUp(deadline).PollTimeoutMs());
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "wait for connections");

    Event event;
    if (ready > 0) {
      std::size_t index = listeners_.size();
      for (const int fd : watched) {
        if (entries[index++].revents != 0) event.readable.push_back(fd);
      }
      for (auto it = strangers_.begin(); it != strangers_.end() && !event.caller; ++index) {
        const bool keep = entries[index].revents == 0 || Advance(&*it, &event.caller);
        it = keep ? std::next(it) : strangers_.erase(it);
      }
      for (std::size_t i = 0; i < listeners_.size(); ++i) {
        if (entries[i].revents != 0) MORI_RETURN_IF_ERROR(AcceptAll(listeners_[i].get()));
      }
    }
    DropLate();
    if (event.caller || !event.readable.empty() || deadline.Expired()) return event;
  }
}

Status Acceptor::AcceptAll(int listener) {
  for (;;) {
    auto accepted = AcceptFrom(listener);
    if (!accepted.ok()) {
      if (strangers_.empty()) return accepted.status();
      strangers_.pop_front();  // out of descriptors: make room for who may be one of ours
      continue;
    }
    UniqueFd fd = std::move(*accepted);
    if (!fd.valid()) return Status();
    if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
    Stranger stranger{std::move(fd), ListenerHandshake(name_, secret_),
                      std::chrono::steady_clock::now() + kPatience};
    // A fresh connection has room for the challenge: this does not wait.
    if (SendAll(stranger.fd.get(), stranger.handshake.Challenge(), Deadline::After({})).ok()) {
      strangers_.push_back(std::move(stranger));
    }
  }
}

bool Acceptor::Advance(Stranger* stranger, std::optional<Caller>* caller) {
  Bytes* buffer = stranger->parser.buffer();
  const std::size_t wanted = stranger->proved ? kMaxFirstFrameBytes : kAnswerBytes - buffer->size();
  if (!ReceiveSome(stranger->fd.get(), wanted, buffer).ok()) return false;
  if (!stranger->proved) {
    if (buffer->size() < kAnswerBytes) return true;
    auto proof = stranger->handshake.Check(*buffer);
    if (!proof.ok() || !SendAll(stranger->fd.get(), *proof, Deadline::After({})).ok()) return false;
    buffer->clear();
    stranger->proved = true;
    return true;
  }
  auto frame = stranger->parser.Next();
  if (!frame.ok()) return false;
  if (!frame->has_value()) return true;
  *caller = Caller{std::move(stranger->fd), std::move(**frame), std::move(*buffer)};
  return false;
}

Deadline Acceptor::NextWakeUp(const Deadline& deadline) const {
  if (strangers_.empty()) return deadline;
  return deadline.AtMost(strangers_.front().drop_at - std::chrono::steady_clock::now());
}

void Acceptor::DropLate() {
  const auto now = std::chrono::steady_clock::now();
  while (!strangers_.empty() && strangers_.front().drop_at <= now) strangers_.pop_front();
}

}  // namespace mori::shmem
