#include "bootstrap/in_process_bootstrap.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace mori::shmem {

/// Where the ranks meet. Each calls with its own number; thread-safe.
class InProcessBootstrap::Hub {
 public:
  explicit Hub(int size) : seats_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(seats_.size()); }

  Result<std::vector<Bytes>> Exchange(int rank, ByteView message, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    if (!losses_.empty()) return FirstLoss();
    const std::uint64_t round = completed_;  // needs us, so it is ours
    seat(rank).message.emplace(message.begin(), message.end());
    if (FindMissing() == nullptr) CompleteRound();
    changed_.wait_until(lock, deadline.end(), [&] {
      return completed_ != round || !losses_.empty() || FindLeaver() != nullptr;
    });
    if (completed_ != round) return table_;  // until the next is complete, which needs us again
    if (!losses_.empty()) return FirstLoss();
    if (const Seat* leaver = FindLeaver()) {
      return Error(ErrorCode::kPeerLost, "rank {} has left", RankOf(leaver));
    }
    std::vector<int> missing;
    for (const Seat& seat : seats_) {
      if (!seat.message) missing.push_back(RankOf(&seat));
    }
    return RanksDidNotCome(missing, size(), deadline);
  }

  void Lose(int rank, std::string reason) {
    const std::lock_guard observing(observer_mutex_);
    {
      const std::lock_guard lock(mutex_);
      if (seat(rank).closed || std::exchange(seat(rank).lost, true)) return;
    }
    const Loss loss{rank, std::move(reason)};
    for (const Seat& seat : seats_) {
      if (seat.observer) seat.observer(loss);  // hears of it before a call fails with it
    }
    const std::lock_guard lock(mutex_);
    losses_.push_back(loss);
    changed_.notify_all();
  }

  void Close(int rank) {
    const std::lock_guard lock(mutex_);
    seat(rank).closed = true;
    changed_.notify_all();
  }

  Status Health() const {
    const std::lock_guard lock(mutex_);
    return losses_.empty() ? Status() : FirstLoss();
  }

  void Observe(int rank, Observer observer) {
    const std::lock_guard observing(observer_mutex_);
    seat(rank).observer = std::move(observer);
    if (!seat(rank).observer) return;
    for (const Loss& loss : losses_) seat(rank).observer(loss);
  }

 private:
  struct Seat {
    std::optional<Bytes> message;  ///< of the round that is not complete yet
    bool closed = false;
    bool lost = false;
    Observer observer;
  };

  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  int RankOf(const Seat* seat) const { return static_cast<int>(seat - seats_.data()); }

  template <typename Predicate>
  const Seat* Find(Predicate predicate) const {
    const auto found = std::find_if(seats_.begin(), seats_.end(), predicate);
    return found == seats_.end() ? nullptr : &*found;
  }
  const Seat* FindMissing() const {
    return Find([](const Seat& seat) { return !seat.message; });
  }
  /// One who will not come to this round.
  const Seat* FindLeaver() const {
    return Find([](const Seat& seat) { return !seat.message && seat.closed; });
  }

  void CompleteRound() {
    table_.clear();
    for (Seat& seat : seats_) table_.push_back(*std::exchange(seat.message, std::nullopt));
    ++completed_;
    changed_.notify_all();
  }

  Status FirstLoss() const {
    return Error(ErrorCode::kPeerLost, "rank {} is lost: {}", losses_.front().rank,
                 losses_.front().reason);
  }

  std::mutex observer_mutex_;  ///< held while an observer runs; taken before `mutex_`
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> seats_;
  std::vector<Bytes> table_;  ///< of the last complete round
  std::uint64_t completed_ = 0;
  std::vector<Loss> losses_;  ///< added to under both mutexes
};

std::vector<std::unique_ptr<Bootstrap>> InProcessBootstrap::MakeAll(int size) {
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Bootstrap>> ends;
  for (int rank = 0; rank < size; ++rank) ends.emplace_back(new InProcessBootstrap(hub, rank));
  return ends;
}

InProcessBootstrap::InProcessBootstrap(std::shared_ptr<Hub> hub, int rank)
    : hub_(std::move(hub)), rank_(rank) {}

InProcessBootstrap::~InProcessBootstrap() {
  Observe(nullptr);
  hub_->Lose(rank_, "it left without closing");
}

int InProcessBootstrap::size() const { return hub_->size(); }

Result<std::vector<Bytes>> InProcessBootstrap::AllGather(ByteView mine, const Deadline& deadline) {
  MORI_RETURN_IF_ERROR(failed_);
  auto all = hub_->Exchange(rank_, mine, deadline);
  failed_ = all.status();
  return all;
}

void InProcessBootstrap::Abort(const Status& why) {
  hub_->Lose(rank_, fmt::format("it gave up: {}", why.message()));
}

Status InProcessBootstrap::Health() const { return hub_->Health(); }

void InProcessBootstrap::Observe(Observer observer) { hub_->Observe(rank_, std::move(observer)); }

void InProcessBootstrap::Close() {
  Observe(nullptr);
  hub_->Close(rank_);
}

}  // namespace mori::shmem
