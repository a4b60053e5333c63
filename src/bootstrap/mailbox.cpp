#include "bootstrap/mailbox.hpp"

#include <algorithm>

namespace mori::shmem {
namespace {

/// How often a watch is asked.
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

bool Mailbox::Put(int from, const Channel& channel, Bytes message) {
  {
    const std::lock_guard lock(mutex_);
    if (message.size() > max_bytes_ - bytes_) return false;
    bytes_ += message.size();
    boxes_[{from, channel}].push_back(std::move(message));
  }
  changed_.notify_all();
  return true;
}

Result<std::optional<Bytes>> Mailbox::Take(int from, const Channel& channel,
                                           const WaitLimit& limit) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto box = boxes_.find({from, channel});
    if (box != boxes_.end()) {
      Bytes message = std::move(box->second.front());
      box->second.pop_front();
      if (box->second.empty()) boxes_.erase(box);
      bytes_ -= message.size();
      return std::optional<Bytes>(std::move(message));
    }
    if (!losses_.empty()) return LossStatus();
    if (left_.contains(from)) return Error(ErrorCode::kPeerLost, "rank {} has left", from);
    if (limit.deadline.Expired()) return std::optional<Bytes>();
    const Deadline next = limit.watch ? limit.deadline.AtMost(kLook) : limit.deadline;
    if (next.end() == Deadline::Clock::time_point::max()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, next.end()) == std::cv_status::timeout && limit.watch) {
      lock.unlock();
      MORI_RETURN_IF_ERROR(limit.watch->Look());
      lock.lock();
    }
  }
}

void Mailbox::NoteLoss(const Bootstrap::Loss& loss) {
  {
    const std::lock_guard lock(mutex_);
    losses_.push_back(loss);
  }
  changed_.notify_all();
}

void Mailbox::NoteDeparture(int rank) {
  {
    const std::lock_guard lock(mutex_);
    left_.insert(rank);
  }
  changed_.notify_all();
}

bool Mailbox::HasLeft(int rank) const {
  const std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

Status Mailbox::LossStatus() const {
  const Bootstrap::Loss& first = losses_.front();
  return Error(ErrorCode::kPeerLost, "rank {} is lost: {}", first.rank, first.reason);
}

Status Mailbox::Health() const {
  const std::lock_guard lock(mutex_);
  return losses_.empty() ? Status() : LossStatus();
}

int Mailbox::FirstLost() const {
  const std::lock_guard lock(mutex_);
  return losses_.empty() ? -1 : losses_.front().rank;
}

std::uint32_t Mailbox::Enter(const Channel& channel) {
  const std::lock_guard lock(mutex_);
  return entered_[channel]++;
}

bool Mailbox::HasEntered(const Channel& channel, std::uint32_t sequence) const {
  const std::lock_guard lock(mutex_);
  const auto entered = entered_.find(channel);
  if (entered == entered_.end()) return false;
  return static_cast<std::int32_t>(entered->second - sequence) > 0;  // they may wrap around
}

void Mailbox::StartWaiting(const Round* round) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(round);
}

void Mailbox::EndWaiting(const Round* round) {
  const std::lock_guard lock(mutex_);
  std::erase(waiting_, round);
}

std::vector<Mailbox::Round> Mailbox::Waiting() const {
  const std::lock_guard lock(mutex_);
  std::vector<Round> rounds;
  for (const Round* round : waiting_) rounds.push_back(*round);
  return rounds;
}

}  // namespace mori::shmem
