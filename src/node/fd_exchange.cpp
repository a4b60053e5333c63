#include "node/fd_exchange.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/machine.hpp"
#include "bootstrap/socket.hpp"
#include "node/abstract_socket.hpp"

namespace mori::shmem {
namespace {

/// The kernel takes at most 253 descriptors a message.
constexpr std::size_t kFdsPerMessage = 250;
constexpr std::chrono::milliseconds kHealthCheck{50};
/// Looks at a socket before sleeping on it: a hundred microseconds or so.
constexpr int kSpins = 300;
/// A lost PE's sockets close together, but the news of it takes another way.
constexpr std::chrono::milliseconds kNewsDelay{2'000};

/// Index and token: how a PE introduces itself to the first of its node.
struct Introduction {
  std::uint32_t index;
  FdListener::Token token;
};
static_assert(sizeof(Introduction) == 36);

}  // namespace

Result<FdListener> FdListener::Open() {
  FdListener listener;
  randombytes_buf(listener.token_.data(), listener.token_.size());
  MORI_ASSIGN_OR_RETURN(listener.fd_, ListenAbstract(NameFor(listener.token_)));
  return listener;
}

std::string FdListener::NameFor(const Token& token) {
  return AbstractNameFor({reinterpret_cast<const char*>(token.data()), token.size()});
}

FdExchange::FdExchange(Bootstrap* bootstrap, int index, int count)
    : bootstrap_(bootstrap), index_(index), count_(count), may_spin_(count <= UsableCpuCount()) {}

Result<std::unique_ptr<FdExchange>> FdExchange::Connect(Bootstrap* bootstrap, int index, int count,
                                                        FdListener listener,
                                                        const FdListener::Token& first_token,
                                                        const Deadline& deadline) {
  std::unique_ptr<FdExchange> exchange(new FdExchange(bootstrap, index, count));
  if (count == 1) return exchange;
  MORI_RETURN_IF_ERROR(index == 0 ? exchange->AcceptOthers(listener, deadline)
                                  : exchange->CallFirst(first_token, deadline));
  return exchange;
}

Status FdExchange::CallFirst(const FdListener::Token& token, const Deadline& deadline) {
  auto connected = ConnectAbstract(FdListener::NameFor(token), deadline);
  if (!connected.ok()) {
    return Cause(
        Error(ErrorCode::kSystem,
              "PE {} of this node does not reach the node's first PE: {} (PEs in different network "
              "namespaces, as in "
              "separate containers, and PEs of different users need different MORI_NODE_ID values)",
              index_, connected.status().message()));
  }
  const Introduction introduction{static_cast<std::uint32_t>(index_), token};
  MORI_RETURN_IF_ERROR(SendAll(
      connected->get(), {reinterpret_cast<const std::uint8_t*>(&introduction), sizeof introduction},
      deadline));
  sockets_.push_back(std::move(*connected));
  return Status();
}

Status FdExchange::AcceptOthers(const FdListener& listener, const Deadline& deadline) {
  sockets_.resize(static_cast<std::size_t>(count_));
  for (int missing = count_ - 1; missing > 0;) {
    MORI_RETURN_IF_ERROR(Wait(listener.fd(), POLLIN, deadline));
    MORI_ASSIGN_OR_RETURN(UniqueFd fd, AcceptAbstract(listener.fd()));
    if (!fd.valid()) continue;
    // Ours introduce themselves before anything else; a stranger of the same user may hold us up a
    // second, no more.
    Introduction introduction{};
    const std::span bytes(reinterpret_cast<std::uint8_t*>(&introduction), sizeof introduction);
    if (!ReceiveAll(fd.get(), bytes, deadline.AtMost(std::chrono::seconds(1))).ok() ||
        sodium_memcmp(introduction.token.data(), listener.token().data(),
                      listener.token().size()) != 0 ||
        introduction.index == 0 || introduction.index >= sockets_.size() ||
        sockets_[introduction.index].valid()) {
      continue;
    }
    sockets_[introduction.index] = std::move(fd);
    --missing;
  }
  return Status();
}

Status FdExchange::Wait(int fd, short events, const Deadline& deadline) const {
  for (;;) {
    MORI_RETURN_IF_ERROR(bootstrap_->Health());
    const Status ready = WaitFor(fd, events, deadline.AtMost(kHealthCheck));
    if (ready.ok() || ready.code() != ErrorCode::kTimeout) return ready;
    if (deadline.Expired()) {
      return Error(
          ErrorCode::kTimeout,
          "the PEs of this node did not exchange their memory in {:.3g} s (MORI_BOOTSTRAP_TIMEOUT)",
          deadline.ElapsedSeconds());
    }
  }
}

Status FdExchange::Cause(Status broken) const {
  const Deadline end = Deadline::After(kNewsDelay);
  while (!end.Expired()) {
    MORI_RETURN_IF_ERROR(bootstrap_->Health());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return broken;
}

Status FdExchange::SendFds(int socket, std::span<const int> fds, const Deadline& deadline) const {
  for (std::size_t done = 0; done < fds.size(); done += kFdsPerMessage) {
    const std::size_t batch = std::min(kFdsPerMessage, fds.size() - done);
    MORI_RETURN_IF_ERROR(SendMessage(socket, fds.subspan(done, batch), deadline));
  }
  return Status();
}

Status FdExchange::SendNone(int socket, const Deadline& deadline) const {
  return SendMessage(socket, {}, deadline);
}

/// One byte, their number, and the descriptors.
Status FdExchange::SendMessage(int socket, std::span<const int> fds,
                               const Deadline& deadline) const {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))] = {};
  std::uint8_t count = static_cast<std::uint8_t>(fds.size());
  iovec data{&count, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
    if (errno == EAGAIN) {
      MORI_RETURN_IF_ERROR(Wait(socket, POLLOUT, deadline));
    } else if (errno == ETOOMANYREFS && !deadline.Expired()) {
      // The kernel bounds how many descriptors of a user are under way by the limit of open files:
      // the others are about to take theirs.
      MORI_RETURN_IF_ERROR(bootstrap_->Health());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (errno != EINTR) {
      return Cause(
          Status::FromErrno(errno, "send descriptors to a PE of this node", ErrorCode::kPeerLost));
    }
  }
  return Status();
}

Result<std::vector<UniqueFd>> FdExchange::ReceiveFds(int socket, std::size_t count,
                                                     const Deadline& deadline) const {
  std::vector<UniqueFd> received;
  for (std::size_t announced_so_far = 0; announced_so_far < count;) {
    alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))] = {};
    std::uint8_t announced = 0;
    iovec data{&announced, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    // A peer with a CPU of its own answers sooner than a sleeper wakes.
    for (int tries = may_spin_ ? kSpins : 0; got < 0 && errno == EAGAIN && tries > 0; --tries) {
      got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    }
    if (got < 0 && errno == EAGAIN) {
      MORI_RETURN_IF_ERROR(Wait(socket, POLLIN, deadline));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Cause(Status::FromErrno(errno, "receive descriptors", ErrorCode::kPeerLost));
    if (got == 0) {
      return Cause(Error(ErrorCode::kPeerLost,
                         "a PE of this node closed its connection while memory was exchanged"));
    }
    if (announced == 0) {
      return Error(ErrorCode::kMismatch, "another PE of this node could not share its memory");
    }
    announced_so_far += announced;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      const std::size_t arrived = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < arrived; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
        received.emplace_back(fd);
      }
    }
  }
  if (received.size() != count) {
    return Error(ErrorCode::kSystem,
                 "only {} of {} descriptors of this node's heaps came through: the limit of open "
                 "files of this process (ulimit -n) is too low for {} PEs",
                 received.size(), count, count_);
  }
  return received;
}

Result<std::vector<UniqueFd>> FdExchange::AllGather(std::span<const int> mine, std::size_t each,
                                                    const Deadline& deadline) {
  const std::size_t total = static_cast<std::size_t>(count_) * each;
  if (index_ != 0) {
    MORI_RETURN_IF_ERROR(mine.empty() ? SendNone(sockets_[0].get(), deadline)
                                      : SendFds(sockets_[0].get(), mine, deadline));
    return ReceiveFds(sockets_[0].get(), total, deadline);
  }
  Status outcome;
  if (mine.empty()) outcome = Error(ErrorCode::kSystem, "this PE could not share its memory");
  std::vector<UniqueFd> all(total);
  for (std::size_t i = 0; i < mine.size() && outcome.ok(); ++i) {
    all[i].Reset(::fcntl(mine[i], F_DUPFD_CLOEXEC, 0));
    if (!all[i].valid()) outcome = Status::FromErrno(errno, "duplicate a descriptor");
  }
  const Status gathered = GatherAtFirst(all, each, deadline);
  if (gathered.code() == ErrorCode::kPeerLost || gathered.code() == ErrorCode::kTimeout)
    return gathered;
  if (outcome.ok()) outcome = gathered;
  std::vector<int> raw;
  for (const auto& fd : all) raw.push_back(fd.get());
  for (std::size_t i = 1; i < static_cast<std::size_t>(count_); ++i) {
    MORI_RETURN_IF_ERROR(outcome.ok() ? SendFds(sockets_[i].get(), raw, deadline)
                                      : SendNone(sockets_[i].get(), deadline));
  }
  MORI_RETURN_IF_ERROR(outcome);
  return all;
}

/// Hears all, also after one that had nothing.
Status FdExchange::GatherAtFirst(std::span<UniqueFd> all, std::size_t each,
                                 const Deadline& deadline) const {
  Status outcome;
  for (std::size_t i = 1; i < static_cast<std::size_t>(count_); ++i) {
    auto theirs = ReceiveFds(sockets_[i].get(), each, deadline);
    if (theirs.ok()) {
      std::ranges::move(*theirs, all.begin() + static_cast<std::ptrdiff_t>(i * each));
    } else if (theirs.status().code() == ErrorCode::kPeerLost ||
               theirs.status().code() == ErrorCode::kTimeout) {
      return theirs.status();
    } else if (outcome.ok()) {
      outcome = theirs.status();
    }
  }
  return outcome;
}

Result<UniqueFd> FdExchange::Broadcast(int mine, const Deadline& deadline) {
  if (index_ != 0) {
    MORI_ASSIGN_OR_RETURN(auto received, ReceiveFds(sockets_[0].get(), 1, deadline));
    return std::move(received[0]);
  }
  UniqueFd copy(::fcntl(mine, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return Status::FromErrno(errno, "duplicate a descriptor");
  for (std::size_t i = 1; i < sockets_.size(); ++i) {
    MORI_RETURN_IF_ERROR(SendFds(sockets_[i].get(), std::span(&mine, 1), deadline));
  }
  return copy;
}

}  // namespace mori::shmem
