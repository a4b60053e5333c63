#include "node/fd_exchange.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <list>
#include <thread>

#include "base/log.hpp"
#include "base/machine.hpp"
#include "base/sodium.hpp"
#include "base/wait_watch.hpp"
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

/// Connections that may wait to introduce themselves, besides those of the PEs.
constexpr std::size_t kStrangers = 64;
constexpr std::chrono::milliseconds kCallAgain{10};

/// Index and token: how a PE introduces itself to the first of its node, which answers with one
/// byte.
struct Introduction {
  std::uint32_t index;
  FdListener::Token token;
};
static_assert(sizeof(Introduction) == 36);
constexpr std::uint8_t kWelcome = 1;

/// Who has called and not said yet who it is.
struct Caller {
  UniqueFd fd;
  std::chrono::steady_clock::time_point came_at;
  Bytes said;
};

/// Reads on. @return whether to wait for more; kMismatch if it will be no introduction
Result<bool> HearOut(Caller* caller) {
  const auto got =
      ReceiveSome(caller->fd.get(), sizeof(Introduction) - caller->said.size(), &caller->said);
  MORI_RETURN_IF_ERROR(got.status());
  return caller->said.size() < sizeof(Introduction);
}

/// The index of a caller that knows the token; 0 for a stranger.
std::uint32_t IndexOf(const Bytes& said, const FdListener::Token& token) {
  Introduction introduction{};
  std::memcpy(&introduction, said.data(), sizeof introduction);
  const bool knows = sodium_memcmp(introduction.token.data(), token.data(), token.size()) == 0;
  return knows ? introduction.index : 0;
}

UniqueFd Duplicate(int fd) {
  return UniqueFd::KeptFromChildren([fd] { return ::fcntl(fd, F_DUPFD_CLOEXEC, 0); });
}

/// Those that came along with a message.
std::size_t DescriptorsOf(const msghdr& message, std::array<int, kFdsPerMessage>& fds) {
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  const bool has_any =
      header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS;
  if (!has_any) return 0;
  const std::size_t count =
      std::min((header->cmsg_len - CMSG_LEN(0)) / sizeof(int), kFdsPerMessage);
  std::memcpy(fds.data(), CMSG_DATA(header), count * sizeof(int));
  return count;
}

WaitClock ClockUntil(const Deadline& deadline) {
  return WaitClock(
      std::chrono::ceil<std::chrono::milliseconds>(deadline.end() - Deadline::Clock::now()));
}

}  // namespace

Result<FdListener> FdListener::Open() {
  InitSodium();
  FdListener listener;
  randombytes_buf(listener.token_.data(), listener.token_.size());
  MORI_ASSIGN_OR_RETURN(listener.fd_, ListenAbstract(NameFor(listener.token_)));
  return listener;
}

std::string FdListener::NameFor(const Token& token) {
  return AbstractNameFor({reinterpret_cast<const char*>(token.data()), token.size()});
}

FdExchange::FdExchange(Bootstrap* bootstrap, int index, int count, Names names)
    : bootstrap_(bootstrap),
      index_(index),
      count_(count),
      names_(std::move(names)),
      may_spin_(count <= UsableCpuCount()) {}

Result<std::unique_ptr<FdExchange>> FdExchange::Connect(Bootstrap* bootstrap, int index, int count,
                                                        FdListener listener,
                                                        const FdListener::Token& first_token,
                                                        const Deadline& deadline,
                                                        std::chrono::milliseconds patience,
                                                        Names names) {
  std::unique_ptr<FdExchange> exchange(new FdExchange(bootstrap, index, count, std::move(names)));
  if (count == 1) return exchange;
  MORI_RETURN_IF_ERROR(index == 0 ? exchange->AcceptOthers(listener, patience, deadline)
                                  : exchange->CallFirst(first_token, deadline));
  return exchange;
}

Status FdExchange::CallFirst(const FdListener::Token& token, const Deadline& deadline) {
  for (;;) {
    auto connected = ConnectAbstract(FdListener::NameFor(token), deadline);
    if (!connected.ok()) {
      return Cause(Error(
          ErrorCode::kSystem,
          "PE {} of this node does not reach the node's first PE: {} (PEs in different network "
          "namespaces, as in separate containers, and PEs of different users need different "
          "MORI_NODE_ID values)",
          index_, connected.status().message()));
    }
    const Status introduced = Introduce(connected->get(), token, deadline);
    if (introduced.ok()) {
      sockets_.push_back(std::move(*connected));
      return Status();
    }
    // Hung up on: it took us for a stranger because we were slow, or it is gone, which the next
    // call shows.
    MORI_RETURN_IF_ERROR(bootstrap_->Health());
    if (introduced.code() != ErrorCode::kPeerLost) return introduced;
    if (deadline.Expired()) return NotInTime(deadline);
    std::this_thread::sleep_for(kCallAgain);
  }
}

Status FdExchange::Introduce(int socket, const FdListener::Token& token,
                             const Deadline& deadline) const {
  const Introduction introduction{static_cast<std::uint32_t>(index_), token};
  MORI_RETURN_IF_ERROR(
      SendAll(socket, {reinterpret_cast<const std::uint8_t*>(&introduction), sizeof introduction},
              deadline));
  Bytes answer;
  while (answer.empty()) {
    MORI_RETURN_IF_ERROR(Wait(socket, POLLIN, deadline));
    MORI_RETURN_IF_ERROR(ReceiveSome(socket, 1, &answer).status());
  }
  return answer[0] == kWelcome
             ? Status()
             : Error(ErrorCode::kMismatch, "the node's first PE said {}", answer[0]);
}

Status FdExchange::AcceptOthers(const FdListener& listener, std::chrono::milliseconds patience,
                                const Deadline& deadline) {
  sockets_.resize(static_cast<std::size_t>(count_));
  std::list<Caller> callers;  // the oldest first
  WaitClock clock = ClockUntil(deadline);
  for (int missing = count_ - 1; missing > 0;) {
    MORI_RETURN_IF_ERROR(bootstrap_->Health());
    const bool has_room = callers.size() < static_cast<std::size_t>(missing) + kStrangers;
    std::vector<pollfd> entries{{has_room ? listener.fd() : -1, POLLIN, 0}};
    for (const Caller& caller : callers) entries.push_back({caller.fd.get(), POLLIN, 0});
    const int ready =
        ::poll(entries.data(), entries.size(), deadline.AtMost(kHealthCheck).PollTimeoutMs());
    if (ready < 0 && errno != EINTR)
      return Status::FromErrno(errno, "wait for the PEs of this node");

    std::size_t entry = 1;
    const auto last = std::chrono::steady_clock::now() - patience;
    for (auto it = callers.begin(); it != callers.end(); ++entry) {
      const bool speaks = ready > 0 && entries[entry].revents != 0;
      if (!speaks && it->came_at > last) {
        ++it;
        continue;
      }
      const Result<bool> more = speaks ? HearOut(&*it) : false;
      if (more.ok() && *more) {
        ++it;
        continue;
      }
      const std::uint32_t index = speaks && more.ok() ? IndexOf(it->said, listener.token()) : 0;
      if (index > 0 && index < sockets_.size() && !sockets_[index].valid() &&
          SendAll(it->fd.get(), {&kWelcome, 1}, Deadline::After({})).ok()) {
        sockets_[index] = std::move(it->fd);
        --missing;
      }
      it = callers.erase(it);
    }
    // Looked at each time: strangers that keep calling must not outlast it.
    if (missing > 0 && deadline.Expired()) return NotInTime(deadline);
    if (clock.Look() == WaitClock::Due::kLine && missing > 0)
      LogWarn("still waiting for {} in init, {:.3g} s", MissingNames(), clock.ElapsedSeconds());
    if (ready <= 0 || entries[0].revents == 0) continue;
    auto accepted = AcceptAbstract(listener.fd());
    if (accepted.ok() && accepted->valid()) {
      callers.push_back({std::move(*accepted), std::chrono::steady_clock::now(), {}});
    } else if (!accepted.ok()) {
      if (callers.empty()) return accepted.status();
      callers.pop_back();  // out of descriptors: it may call again
    }
  }
  return Status();
}

Status FdExchange::NotInTime(const Deadline& deadline) const {
  return Error(ErrorCode::kTimeout,
               "the PEs of this node did not exchange their memory in {:.3g} s ({})",
               deadline.ElapsedSeconds(), variable_);
}

std::string FdExchange::NameOf(int place) const {
  return names_ ? names_(place) : fmt::format("PE {} of this node", place);
}

int FdExchange::PlaceAt(int socket) const {
  if (index_ != 0) return 0;
  const auto is_it = [socket](const UniqueFd& one) { return one.get() == socket; };
  return static_cast<int>(std::ranges::find_if(sockets_, is_it) - sockets_.begin());
}

std::string FdExchange::MissingNames() const {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> names;
  for (std::size_t place = 1; place < sockets_.size(); ++place) {
    if (!sockets_[place].valid()) names.push_back(NameOf(static_cast<int>(place)));
  }
  const std::size_t more = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - more);
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

Status FdExchange::Wait(int fd, short events, const Deadline& deadline) const {
  for (WaitClock clock = ClockUntil(deadline);;) {
    MORI_RETURN_IF_ERROR(bootstrap_->Health());
    const Status ready = WaitFor(fd, events, deadline.AtMost(kHealthCheck));
    if (ready.ok() || ready.code() != ErrorCode::kTimeout) return ready;
    if (deadline.Expired()) {
      return Error(ErrorCode::kTimeout, "{} did not exchange its memory in {:.3g} s ({})",
                   NameOf(PlaceAt(fd)), deadline.ElapsedSeconds(), variable_);
    }
    if (clock.Look() == WaitClock::Due::kLine) {
      LogWarn("still waiting for {} in an exchange of memory, {:.3g} s", NameOf(PlaceAt(fd)),
              clock.ElapsedSeconds());
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
    ssize_t got = -1;
    const auto receive = [&](std::array<int, kFdsPerMessage>& fds) {
      got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
      return got > 0 ? DescriptorsOf(message, fds) : std::size_t{0};
    };
    std::vector<UniqueFd> arrived = UniqueFd::AllKeptFromChildren<kFdsPerMessage>(receive);
    // A peer with a CPU of its own answers sooner than a sleeper wakes.
    for (int tries = may_spin_ ? kSpins : 0; got < 0 && errno == EAGAIN && tries > 0; --tries)
      arrived = UniqueFd::AllKeptFromChildren<kFdsPerMessage>(receive);
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
    std::ranges::move(arrived, std::back_inserter(received));
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
    all[i] = Duplicate(mine[i]);
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
  UniqueFd copy = Duplicate(mine);
  if (!copy.valid()) return Status::FromErrno(errno, "duplicate a descriptor");
  for (std::size_t i = 1; i < sockets_.size(); ++i) {
    MORI_RETURN_IF_ERROR(SendFds(sockets_[i].get(), std::span(&mine, 1), deadline));
  }
  return copy;
}

}  // namespace mori::shmem
