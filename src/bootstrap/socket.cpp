#include "bootstrap/socket.hpp"

#include <linux/tcp.h>  // glibc's own lacks the newer members of tcp_info
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace mori::shmem {
namespace {

constexpr int kBacklog = 4096;  // the kernel lowers it to its own limit

Result<UniqueFd> NewSocket(int family) {
  auto fd = UniqueFd::KeptFromChildren(
      [&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd.valid()) return Status::FromErrno(errno, "open a socket");
  return fd;
}

void SetOption(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

Status OtherEndIsGone(int error) {
  if (error == 0) return Error(ErrorCode::kPeerLost, "the connection was closed");
  if (error == ETIMEDOUT) {
    return Error(ErrorCode::kPeerLost, "its host has not answered for {} s", kSilence.count());
  }
  return Status::FromErrno(error, "the connection broke", ErrorCode::kPeerLost);
}

/// What every connection has. Slower without, or later to notice, and nothing worse.
void Prepare(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  AskWithin(fd, kSilence);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

}  // namespace

void AskWithin(int fd, std::chrono::seconds silence) {
  constexpr int kTimes = 5;
  const int every = std::max(1, static_cast<int>(silence.count()) / (kTimes + 1));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kTimes);
}

bool IsFull(std::uint32_t not_acknowledged, std::uint32_t not_sent, int unanswered) {
  constexpr int kEnough = 3;
  return not_acknowledged == 0 && not_sent > 0 && unanswered < kEnough;
}

std::chrono::milliseconds SilentFor(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  if (IsFull(info.tcpi_unacked, info.tcpi_notsent_bytes, info.tcpi_probes)) return {};
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

Result<UniqueFd> ListenOn(const IpAddress& address, std::uint16_t port) {
  MORI_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address.family));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  socklen_t length = 0;
  const sockaddr_storage name = address.ToSockaddr(port, &length);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return Status::FromErrno(errno, fmt::format("listen on {} port {}", address.ToString(), port));
  }
  return fd;
}

Result<std::uint16_t> PortOf(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    return Status::FromErrno(errno, "ask a socket for its port");
  }
  const in_port_t port = name.ss_family == AF_INET
                             ? reinterpret_cast<const sockaddr_in*>(&name)->sin_port
                             : reinterpret_cast<const sockaddr_in6*>(&name)->sin6_port;
  return static_cast<std::uint16_t>(ntohs(port));
}

Result<UniqueFd> ConnectTo(const IpAddress& address, std::uint16_t port, const Deadline& deadline) {
  MORI_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address.family));
  Prepare(fd.get());
  const std::string what = fmt::format("connect to {} port {}", address.ToString(), port);
  socklen_t length = 0;
  const sockaddr_storage name = address.ToSockaddr(port, &length);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR)
      return Status::FromErrno(errno, what, ErrorCode::kPeerLost);
    MORI_RETURN_IF_ERROR(WaitFor(fd.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Status::FromErrno(error, what, ErrorCode::kPeerLost);
  }
  return fd;
}

Result<UniqueFd> AcceptFrom(int listening_fd, IpAddress* from) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  auto fd = UniqueFd::KeptFromChildren([&] {
    return ::accept4(listening_fd, reinterpret_cast<sockaddr*>(&name), &length,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
  });
  if (!fd.valid()) {
    if (IsShortage(errno)) return Status::FromErrno(errno, "accept a connection");
    return UniqueFd();  // none waits, or the one that did has failed: accept(2) says so of it
  }
  Prepare(fd.get());
  if (from != nullptr) *from = IpAddress::Of(name);
  return fd;
}

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Status WaitFor(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, deadline.PollTimeoutMs());
    if (ready > 0) return Status();
    if (ready == 0 && deadline.Expired()) return Error(ErrorCode::kTimeout, "time is up");
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "wait for a connection");
  }
}

Result<std::size_t> SendSome(int fd, ByteView bytes) {
  for (;;) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (WouldBlock(errno)) return std::size_t{0};
    if (errno != EINTR) return OtherEndIsGone(errno);
  }
}

Status SendAll(int fd, ByteView bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    MORI_ASSIGN_OR_RETURN(const std::size_t sent, SendSome(fd, bytes));
    bytes = bytes.subspan(sent);
    if (sent == 0) MORI_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
  }
  return Status();
}

Status ReceiveAll(int fd, std::span<std::uint8_t> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return OtherEndIsGone(0);
    } else if (WouldBlock(errno)) {
      MORI_RETURN_IF_ERROR(WaitFor(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return OtherEndIsGone(errno);
    }
  }
  return Status();
}

Result<std::size_t> ReceiveSome(int fd, std::size_t max_bytes, Bytes* buffer) {
  const std::size_t before = buffer->size();
  buffer->resize(before + max_bytes);
  ssize_t got = 0;
  do {
    got = ::recv(fd, buffer->data() + before, max_bytes, 0);
  } while (got < 0 && errno == EINTR);
  const int error = errno;
  buffer->resize(before + static_cast<std::size_t>(got > 0 ? got : 0));
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && WouldBlock(error)) return std::size_t{0};
  return OtherEndIsGone(got == 0 ? 0 : error);
}

}  // namespace mori::shmem
