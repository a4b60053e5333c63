#include "shmem/peer_watch.hpp"

#include <algorithm>

#include "base/deadline.hpp"
#include "base/log.hpp"

namespace mori::shmem {
namespace {

/// As many PEs as a line has room for.
constexpr std::size_t kMostNames = 8;
/// A mark of a loss may have come without its reason, which then travels through the bootstrap, or
/// never comes.
constexpr std::chrono::seconds kNewsDelay{2};
/// How often the board is looked at meanwhile: nobody is woken by it.
constexpr std::chrono::milliseconds kNextLook{10};

}  // namespace

void PeerWatch::NoteLoss(const Bootstrap::Loss& loss) {
  {
    const std::lock_guard lock(mutex_);
    reasons_.emplace(loss.rank, loss.reason);
  }
  changed_.notify_all();
  parts_.board->MarkLost(loss.rank, loss.reason);
}

std::string PeerWatch::ReasonFor(int pe) const {
  std::unique_lock lock(mutex_);
  const Deadline end = Deadline::After(kNewsDelay);
  while (!reasons_.contains(pe)) {
    if (auto told = parts_.board->ReasonOf(pe)) return reasons_.emplace(pe, *told).first->second;
    if (end.Expired()) break;
    changed_.wait_for(lock, kNextLook);
  }
  return reasons_.emplace(pe, "another PE saw its connection close").first->second;
}

Status PeerWatch::Lost(int pe) const {
  const std::string reason = ReasonFor(pe);
  if (pe == parts_.my_pe)
    return Error(ErrorCode::kPeerLost, "this PE is lost to the others: {}", reason);
  return Error(ErrorCode::kPeerLost, "{} is lost: {}", Names({pe}), reason);
}

Status PeerWatch::Health() const {
  const int lost = parts_.board->FirstLost();
  return lost < 0 ? Status() : Lost(lost);
}

std::vector<int> PeerWatch::Late() const {
  if (parts_.bootstrap != nullptr) return parts_.bootstrap->Missing();
  std::vector<int> pes;
  for (const int index : parts_.board->Missing())
    pes.push_back(parts_.node_pes[static_cast<std::size_t>(index)]);
  return pes;
}

std::vector<int> PeerWatch::LateOrLost() const {
  std::vector<int> pes = Late();
  if (const int lost = parts_.board->FirstLost(); lost >= 0) pes.push_back(lost);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [pe, reason] : reasons_) pes.push_back(pe);
  }
  std::ranges::sort(pes);
  pes.erase(std::unique(pes.begin(), pes.end()), pes.end());
  return pes;
}

std::string PeerWatch::Names(const std::vector<int>& pes) const {
  std::string text;
  for (std::size_t i = 0; i < std::min(pes.size(), kMostNames); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", parts_.names[static_cast<std::size_t>(pes[i])]);
  }
  if (pes.size() > kMostNames) text += fmt::format(" and {} more", pes.size() - kMostNames);
  return text.empty() ? "the others" : text;
}

std::string CallWatch::LateNames() {
  std::vector<int> late = messages_ != nullptr ? messages_->Missing() : peers_.Late();
  if (!late.empty()) late_ = std::move(late);
  return peers_.Names(late_);
}

Status CallWatch::Look() {
  switch (clock_.Look()) {
    case WaitClock::Due::kNothing: break;
    case WaitClock::Due::kLine:
      LogWarn("still waiting for {} in {}, {:.3g} s", LateNames(), call_, clock_.ElapsedSeconds());
      break;
    case WaitClock::Due::kTimeout:
      return Error(ErrorCode::kTimeout, "{} did not come within {:g} s ({})", LateNames(),
                   clock_.BudgetSeconds(), variable_);
  }
  return Status();
}

}  // namespace mori::shmem
