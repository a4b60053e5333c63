#include "bootstrap/in_process_bootstrap.hpp"

#include <mutex>

#include "bootstrap/mailbox.hpp"

namespace mori::shmem {

/// Where the ranks meet. Each calls with its own number; thread-safe.
class InProcessBootstrap::Hub {
 public:
  explicit Hub(int size) : seats_(static_cast<std::size_t>(size)) {}

  /// Before the ranks begin.
  void Register(int rank, std::shared_ptr<Mailbox> mailbox) {
    seat(rank).mailbox = std::move(mailbox);
  }

  Mailbox& mailbox(int rank) { return *seat(rank).mailbox; }

  std::vector<int> FindMissing(const Round& round) {
    std::vector<int> missing;
    for (int rank = 0; rank < static_cast<int>(seats_.size()); ++rank) {
      if (!mailbox(rank).HasEntered(round.channel, round.sequence)) missing.push_back(rank);
    }
    return missing;
  }

  void Lose(int rank, std::string reason) {
    const std::lock_guard observing(observer_mutex_);
    if (seat(rank).is_gone) return;
    seat(rank).is_gone = true;
    const Loss loss{rank, std::move(reason)};
    for (const Seat& seat : seats_) {
      if (seat.observer) seat.observer(loss);  // hears of it before a call fails with it
    }
    losses_.push_back(loss);
    for (const Seat& seat : seats_) seat.mailbox->NoteLoss(loss);
  }

  void Leave(int rank) {
    const std::lock_guard observing(observer_mutex_);
    seat(rank).is_gone = true;
    for (const Seat& seat : seats_) seat.mailbox->NoteDeparture(rank);
  }

  void Observe(int rank, Observer observer) {
    const std::lock_guard observing(observer_mutex_);
    seat(rank).observer = std::move(observer);
    if (!seat(rank).observer) return;
    for (const Loss& loss : losses_) seat(rank).observer(loss);
  }

 private:
  struct Seat {
    std::shared_ptr<Mailbox> mailbox;
    bool is_gone = false;  ///< has left, or is lost
    Observer observer;
  };

  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }

  std::mutex observer_mutex_;  ///< held while an observer runs
  std::vector<Seat> seats_;
  std::vector<Loss> losses_;
};

std::vector<std::unique_ptr<Bootstrap>> InProcessBootstrap::MakeAll(int size) {
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Bootstrap>> ends;
  for (int rank = 0; rank < size; ++rank)
    ends.emplace_back(new InProcessBootstrap(hub, rank, size));
  return ends;
}

InProcessBootstrap::InProcessBootstrap(std::shared_ptr<Hub> hub, int rank, int size)
    : Bootstrap(rank, size), hub_(std::move(hub)) {
  const Tree tree(size);
  place_ = {tree.Parent(rank), tree.Children(rank)};
  hub_->Register(rank, mailbox());
}

InProcessBootstrap::~InProcessBootstrap() {
  Observe(nullptr);
  hub_->Lose(rank(), "it left without a word");
}

void InProcessBootstrap::Post(int to, const Channel& channel, Bytes message) {
  if (hub_->mailbox(to).Put(rank(), channel, std::move(message))) return;
  hub_->Lose(to, "it gave up: messages wait there that nobody takes");
}

std::optional<std::vector<int>> InProcessBootstrap::FindMissing(const Round& round) {
  return hub_->FindMissing(round);
}

void InProcessBootstrap::Abort(const Status& why) {
  hub_->Lose(rank(), fmt::format("it gave up: {}", why.message()));
}

void InProcessBootstrap::Accuse(int rank, const std::string& reason) {
  if (rank >= 0 && rank < size()) hub_->Lose(rank, reason);
}

void InProcessBootstrap::Observe(Observer observer) { hub_->Observe(rank(), std::move(observer)); }

void InProcessBootstrap::Leave() {
  Observe(nullptr);
  hub_->Leave(rank());
}

}  // namespace mori::shmem
