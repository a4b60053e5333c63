// The thread of a channel that serves others, and looks after peers that are stuck or silent.
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "transport/ofi/channel.hpp"

namespace mori::shmem::ofi {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// How long the server rests while threads that wait do its work: twice as long each time, since
/// every end of a rest takes the CPU of such a thread for a while. What others want of this PE once
/// these threads do something else waits for the end of a rest, so for no longer than they had
/// waited before.
constexpr std::chrono::nanoseconds kShortestRest = 50us;
constexpr std::chrono::nanoseconds kLongestRest = 500us;
/// While the network takes nothing it is asked again and again.
constexpr int kStuckPollMs = 1;
/// A PE that there was a connection to, and that takes nothing for so long, is gone: a connection
/// that stands takes what is sent in such amounts, also while the PE is stopped.
constexpr auto kReconnectLimit = 2s;
constexpr auto kProbeEvery = 100ms;
/// How often in a row the server finds nothing before it waits: writes and reads of others go on
/// within a look, without a sign of it. Where it has a CPU, it looks for so long, too: it takes
/// what comes faster than others send it, and to be woken for each part costs more than the part.
constexpr int kLooks = 8;
constexpr auto kLooking = 150us;
/// The longest that it serves without a look at anything else.
constexpr auto kServing = 10ms;

}  // namespace

void OfiChannel::WakeServer() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
}

bool OfiChannel::OthersServe(std::uint64_t* spins) const {
  const std::uint64_t now = spins_.load(std::memory_order_relaxed);
  return std::exchange(*spins, now) != now || spinning_.load(std::memory_order_relaxed) > 0;
}

void OfiChannel::Serve() {
  ::prctl(PR_SET_TIMERSLACK, 1000UL);  // of this thread, in ns: its rests are short
  auto probe_at = Clock::now();
  std::uint64_t spins = 0;
  auto rest = kShortestRest;
  while (!is_stopped_) {
    LookAfterStuck();
    if (const auto now = Clock::now(); now >= probe_at) {
      probe_at = now + kProbeEvery;
      ProbeSilent();
      if (has_connected_.exchange(false)) endpoint_->connections().CloseOnExec();
    }
    TellLosses();
    if (OthersServe(&spins)) {
      std::this_thread::sleep_for(rest);
      rest = std::min(2 * rest, kLongestRest);
      continue;
    }
    rest = kShortestRest;
    if (!ServeWhatComes()) continue;
    pollfd waits[] = {{endpoint_->wait_descriptor(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    const int ready = ::poll(waits, 2, stuck_ > 0 ? kStuckPollMs : 100);
    if (ready < 0) std::this_thread::sleep_for(kShortestRest);  // goes on without
    std::uint64_t ignored = 0;
    if (waits[1].revents != 0) (void)!::read(stop_.get(), &ignored, sizeof ignored);
  }
}

bool OfiChannel::ServeWhatComes() {
  const auto looking = remote_.may_spin ? std::chrono::nanoseconds(kLooking) : 0ns;
  auto now = Clock::now();
  auto until = now + looking;
  const auto end = now + kServing;
  for (int empty = 0; now < end && spinning_.load(std::memory_order_relaxed) == 0;) {
    const std::lock_guard progress(progress_mutex_);
    now = Clock::now();
    if (Drain()) {
      empty = 0;
      until = now + looking;
    } else if (++empty >= kLooks && now >= until) {
      return endpoint_->MayWait();
    }
  }
  return false;
}

void OfiChannel::LookAfterStuck() {
  if (stuck_ == 0) return;
  bool is_new = false;
  for (const auto& each : peers_) {
    const Lock lock(each->mutex);
    if (!each->is_stuck) continue;
    const auto since = Clock::now() - each->stuck_since.value_or(Clock::now());
    const auto limit = each->has_taken ? kReconnectLimit : connect_limit_;
    if (since > limit && each->sent.empty() && each->transfers == 0) {
      Lose(*each, fmt::format("it has taken nothing for {} s", limit / 1s));
      is_new = true;
      continue;
    }
    if (each->full.empty()) {  // a write or a read: its caller tries again
      NoteUnstuck(*each);
      is_new = true;
    } else {
      SendFull(*each);
      is_new = is_new || !each->is_stuck;
    }
  }
  if (is_new) WakeWaiting();
}

void OfiChannel::ProbeSilent() {
  const auto silent_since = Clock::now() - kProbeEvery;
  for (const auto& each : peers_) {
    const Lock lock(each->mutex);
    const bool is_awaited = each->applied < each->effect || !each->operations.empty();
    if (!is_awaited || each->is_lost || each->sent_at > silent_since) continue;
    if (each->open == nullptr && each->full.empty() && each->sent.empty()) OpenMessage(*each);
    Send(*each, /*is_urgent=*/true);
  }
}

void OfiChannel::TellLosses() {
  if (!has_losses_.load(std::memory_order_acquire)) return;
  std::vector<std::pair<int, std::string>> losses;
  {
    const std::lock_guard lock(losses_mutex_);
    losses.swap(losses_);
    has_losses_ = false;
  }
  for (const auto& [pe, why] : losses) {
    if (remote_.on_loss) remote_.on_loss(pe, why);
  }
  WakeWaiting();
}

}  // namespace mori::shmem::ofi
