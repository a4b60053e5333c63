#include "agent_link.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace mori::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
/// So much is kept of what is no message: its end is nearest to the cause.
constexpr std::size_t kMaxWordBytes = 2000;

}  // namespace

AgentLink::AgentLink(shmem::UniqueFd to_agent, shmem::UniqueFd from_agent, shmem::UniqueFd errors)
    : to_agent_(std::move(to_agent)),
      from_agent_(std::move(from_agent)),
      errors_(std::move(errors)) {}

void AgentLink::Send(MessageType type, shmem::ByteView payload) {
  if (!to_agent_.valid()) return;
  unsent_ += EncodeMessage(type, payload);
  Write();
}

void AgentLink::Write() {
  while (to_agent_.valid() && !unsent_.empty()) {
    const ssize_t done = write(to_agent_.get(), unsent_.data(), unsent_.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) return;
    if (done < 0) {
      to_agent_.Reset();  // its end is seen elsewhere
      unsent_.clear();
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(done));
  }
}

void AgentLink::FillPolls(std::span<pollfd> polls) const {
  polls[0] = {unsent_.empty() ? -1 : to_agent_.get(), POLLOUT, 0};
  polls[1] = {from_agent_.get(), POLLIN, 0};
  polls[2] = {errors_.get(), POLLIN, 0};
}

void AgentLink::Transfer(std::span<const pollfd> polls) {
  if (polls[0].revents != 0) Write();
  if (polls[1].revents != 0) Read(from_agent_);
  if (polls[2].revents != 0) Read(errors_);
}

bool AgentLink::Read(shmem::UniqueFd& fd) {
  if (!fd.valid()) return false;
  std::array<char, kReadBytes> buffer;
  const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    fd.Reset();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
  if (&fd == &from_agent_) {
    TakeOutput(bytes);
  } else {
    TakeWords(bytes);
  }
  return true;
}

void AgentLink::TakeOutput(std::string_view bytes) {
  if (has_greeted_) return reader_.Add(bytes);
  before_greeting_ += bytes;
  const std::size_t found = before_greeting_.find(kAgentGreeting);
  if (found != std::string::npos) {
    has_greeted_ = true;
    TakeWords(std::string_view(before_greeting_).substr(0, found));
    reader_.Add(std::string_view(before_greeting_).substr(found + kAgentGreeting.size()));
    before_greeting_.clear();
    return;
  }
  if (before_greeting_.size() < kReadBytes) return;
  const std::size_t kept = kAgentGreeting.size() - 1;
  TakeWords(std::string_view(before_greeting_).substr(0, before_greeting_.size() - kept));
  before_greeting_.erase(0, before_greeting_.size() - kept);
}

void AgentLink::TakeWords(std::string_view bytes) {
  words_ += bytes;
  if (words_.size() > kMaxWordBytes) words_.erase(0, words_.size() - kMaxWordBytes);
}

void AgentLink::ReadOut() {
  for (shmem::UniqueFd* fd : {&from_agent_, &errors_}) {
    while (Read(*fd)) {
    }
    fd->Reset();
  }
  TakeWords(std::exchange(before_greeting_, {}));
  to_agent_.Reset();
}

shmem::Result<std::optional<Message>> AgentLink::Next() { return reader_.Next(); }

std::string AgentLink::Words() const {
  std::string line;
  for (std::string_view rest = words_; !rest.empty();) {
    const std::size_t end = rest.find_first_of("\r\n");
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (part.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (!line.empty()) line += "; ";
    line += part;
  }
  return line;
}

}  // namespace mori::launcher
