#include "node/abstract_socket.hpp"

#include <sodium.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/sodium.hpp"
#include "bootstrap/socket.hpp"

namespace mori::shmem {
namespace {

constexpr int kBacklog = 4096;

Result<UniqueFd> NewSocket() {
  auto fd = UniqueFd::KeptFromChildren(
      [] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd.valid()) return Status::FromErrno(errno, "open a socket");
  return fd;
}

sockaddr_un AddressOf(const std::string& name, socklen_t* length) {
  sockaddr_un address{};  // a leading zero byte makes it abstract
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

std::optional<ucred> PeerCredentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return std::nullopt;
  return credentials;
}

bool IsSameUser(int socket) {
  const auto credentials = PeerCredentials(socket);
  return credentials && credentials->uid == ::geteuid();
}

}  // namespace

Result<UniqueFd> ListenAbstract(const std::string& name) {
  MORI_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(name, &length);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return Status::FromErrno(errno, "listen on an abstract socket");
  }
  return fd;
}

Result<UniqueFd> ConnectAbstract(const std::string& name, const Deadline& deadline) {
  MORI_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  socklen_t length = 0;
  const sockaddr_un address = AddressOf(name, &length);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    const bool queue_is_full = errno == EAGAIN;
    if (!queue_is_full)
      return Status::FromErrno(errno, "connect to an abstract socket", ErrorCode::kPeerLost);
    if (deadline.Expired())
      return Error(ErrorCode::kTimeout, "no connection to an abstract socket in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!IsSameUser(fd.get())) return Error(ErrorCode::kMismatch, "another user listens there");
  return fd;
}

Result<UniqueFd> AcceptAbstract(int listening_fd) {
  auto fd = UniqueFd::KeptFromChildren(
      [&] { return ::accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (!fd.valid()) {
    if (IsShortage(errno)) return Status::FromErrno(errno, "accept a connection");
    return UniqueFd();
  }
  return IsSameUser(fd.get()) ? std::move(fd) : UniqueFd();
}

std::optional<pid_t> PeerProcess(int socket) {
  const auto credentials = PeerCredentials(socket);
  if (!credentials || credentials->pid <= 0) return std::nullopt;
  return credentials->pid;
}

std::string AbstractNameFor(std::string_view text) {
  InitSodium();
  std::array<std::uint8_t, 24> hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  char hex[2 * sizeof hash + 1];
  sodium_bin2hex(hex, sizeof hex, hash.data(), hash.size());
  return std::string("mori-shmem-") + hex;
}

}  // namespace mori::shmem
