#include "node/board.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>

#include "base/fault_point.hpp"
#include "base/round_up.hpp"

namespace mori::shmem {
namespace {

/// Two lines: the next one is prefetched along.
constexpr std::size_t kLine = 128;
/// In the counter of arrivals: see there.
constexpr std::uint64_t kOneProposal = std::uint64_t{1} << 32;
constexpr std::uint64_t kOneWithNews = std::uint64_t{1} << 48;

void FutexWait(std::atomic<std::uint32_t>* word, std::uint32_t expected,
               std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{seconds.count(), (limit - seconds).count()};
  const long woken = ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAIT,
                               expected, &time, nullptr, 0);
  const bool has_slept = woken == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT;
  if (!has_slept) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // not a busy wait
}
void FutexWakeAll(std::atomic<std::uint32_t>* word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAKE, INT32_MAX, nullptr,
            nullptr, 0);
}

}  // namespace

/// Zeroed memory is its first state. All PEs are of one library version, so its layout is private
/// to this file.
struct Board::Shared {
  /// PEs that have arrived, in the low half; above it 16 bits for how many of them propose
  /// something else than a barrier, and 16 for how many have news.
  alignas(kLine) std::atomic<std::uint64_t> arrived;
  /// Completed agreements. Waiters sleep on it.
  alignas(kLine) std::atomic<std::uint32_t> epoch;
  /// Written before `epoch` moves, read after: 0, or 1 + index of the PE that disagrees.
  std::atomic<std::uint32_t> verdict;
  /// Likewise: 0, or 1 if a PE had news.
  std::atomic<std::uint32_t> news;
  /// 0, or 1 + the PE that was lost first. In the line of the epoch, since waiters look at both.
  std::atomic<std::uint32_t> first_lost;
  alignas(kLine) std::atomic<std::uint32_t> sleepers;
  /// Of a node among several: 1 + the last epoch to which all its PEs have come. Index 0 sleeps on
  /// it; behind it, whether that sleeps.
  alignas(kLine) std::atomic<std::uint32_t> gathered;
  std::atomic<std::uint32_t> speaker_sleeps;
};

/// What PEs wait for: `opened` becomes 1 + the epoch, and it is where they sleep.
struct Board::Gate {
  std::atomic<std::uint32_t>* opened;
  std::atomic<std::uint32_t>* sleepers;
};

/// A PE's proposals: of this epoch and the next, since a fast PE may be one call ahead of a slow
/// reader.
struct alignas(kLine) Board::Slot {
  Proposal proposals[2];
  /// 1 + the last epoch whose end this PE sleeps for, or slept for. Written when it falls asleep,
  /// so that who comes in time pays nothing; read by who wants to know who has not come.
  std::atomic<std::uint32_t> sleeps_for;
};

/// Why a PE is lost, told by the PE whose note it is: once, and never changed.
struct alignas(kLine) Board::Note {
  /// 0, or 1 + the PE of the world that is lost. Written last.
  std::atomic<std::uint32_t> about;
  std::uint32_t length;
  char text[kMostReasonBytes];
};

Result<std::unique_ptr<Board>> Board::Create(DeviceRuntime* runtime, FdExchange* exchange,
                                             int index, int count, bool may_spin,
                                             const Deadline& deadline) {
  const std::uint64_t bytes = RoundUp(BytesFor(count), runtime->GranularityBytes());
  UniqueFd made;
  if (index == 0) {
    MORI_ASSIGN_OR_RETURN(auto memory, runtime->Allocate(bytes, HeapType::kNormal));
    MORI_ASSIGN_OR_RETURN(made, memory->Export());
  }
  MORI_ASSIGN_OR_RETURN(UniqueFd shared, exchange->Broadcast(made.get(), deadline));
  MORI_ASSIGN_OR_RETURN(auto memory, runtime->Import(std::move(shared), bytes));
  MORI_ASSIGN_OR_RETURN(auto range, runtime->Reserve(bytes, runtime->GranularityBytes()));
  MORI_RETURN_IF_ERROR(range->Map(0, *memory));
  return Attach(std::move(range), index, count, may_spin);
}

std::unique_ptr<Board> Board::Attach(std::shared_ptr<AddressRange> range, int index, int count,
                                     bool may_spin) {
  return std::unique_ptr<Board>(new Board(std::move(range), index, count, may_spin));
}

std::uint64_t Board::BytesFor(int count) {
  return sizeof(Shared) + static_cast<std::uint64_t>(count) * (sizeof(Slot) + sizeof(Note));
}

Board::Board(std::shared_ptr<AddressRange> range, int index, int count, bool may_spin)
    : range_(std::move(range)),
      shared_(std::launder(reinterpret_cast<Shared*>(range_->base()))),
      index_(index),
      count_(count),
      may_spin_(may_spin) {}

Board::Slot* Board::slot(int index) const {
  return std::launder(reinterpret_cast<Slot*>(range_->base() + sizeof(Shared))) + index;
}

/// Behind all slots, so that these stay on few pages.
Board::Note* Board::note(int index) const {
  return std::launder(reinterpret_cast<Note*>(slot(count_))) + index;
}

Status Board::Agree(const Proposal& proposal, std::optional<Dispute>* dispute, bool* news,
                    WaitWatch* watch) {
  if (FirstLost() >= 0) return LostStatus();
  const std::uint32_t epoch = epoch_++;
  const std::uint64_t arrived = Arrive(epoch, proposal, news != nullptr && *news);
  if (AreAllHere(arrived)) {
    const std::uint32_t verdict = TakeVerdict(epoch, arrived);
    shared_->news.store(arrived >= kOneWithNews ? 1 : 0, std::memory_order_relaxed);
    shared_->verdict.store(verdict, std::memory_order_relaxed);
    Open(released(), epoch);
  } else {
    MORI_RETURN_IF_ERROR(Await(released(), epoch, watch));
  }

  if (news != nullptr) *news = shared_->news.load(std::memory_order_relaxed) != 0;
  dispute->reset();
  if (const std::uint32_t verdict = shared_->verdict.load(std::memory_order_relaxed);
      verdict != 0) {
    const int differing = static_cast<int>(verdict) - 1;
    *dispute =
        Dispute{differing, slot(0)->proposals[epoch % 2], slot(differing)->proposals[epoch % 2]};
  }
  return Status();
}

Status Board::Join(const Proposal& proposal, Joint* joint, WaitWatch* watch) {
  if (FirstLost() >= 0) return LostStatus();
  const std::uint32_t epoch = epoch_++;
  std::uint64_t arrived = Arrive(epoch, proposal, joint->has_news);
  const bool is_last = AreAllHere(arrived);
  if (index_ != 0) {
    if (is_last) Open(gathered(), epoch);
    MORI_RETURN_IF_ERROR(Await(released(), epoch, watch));
    joint->is_same = shared_->verdict.load(std::memory_order_relaxed) == 0;
    joint->has_news = shared_->news.load(std::memory_order_relaxed) != 0;
    return Status();
  }
  if (!is_last) {
    MORI_RETURN_IF_ERROR(Await(gathered(), epoch, watch));
    arrived = shared_->arrived.load(std::memory_order_acquire);
  }
  joint->is_same = TakeVerdict(epoch, arrived) == 0;
  joint->has_news = arrived >= kOneWithNews;
  return Status();
}

void Board::Announce(const Joint& joint) {
  shared_->verdict.store(joint.is_same ? 0 : 1, std::memory_order_relaxed);
  shared_->news.store(joint.has_news ? 1 : 0, std::memory_order_relaxed);
  Open(released(), epoch_ - 1);
}

std::uint64_t Board::Arrive(std::uint32_t epoch, const Proposal& proposal, bool has_news) {
  const bool is_barrier = proposal.call == Proposal::Call::kBarrier;
  // Barrier after barrier, the slot says so already: with more PEs than CPUs, each page that a PE
  // touches costs a miss after every switch.
  if (!is_barrier || !slot_is_barrier_[epoch % 2]) slot(index_)->proposals[epoch % 2] = proposal;
  slot_is_barrier_[epoch % 2] = is_barrier;

  // Acquire and release: the last to arrive sees what all wrote before they arrived, its release of
  // a gate passes it on.
  const std::uint64_t one =
      1 + (is_barrier ? 0 : kOneProposal) + (has_news ? kOneWithNews : std::uint64_t{0});
  return shared_->arrived.fetch_add(one, std::memory_order_acq_rel) + one;
}

bool Board::AreAllHere(std::uint64_t arrived) const {
  return static_cast<std::uint32_t>(arrived) == static_cast<std::uint32_t>(count_);
}

std::uint32_t Board::TakeVerdict(std::uint32_t epoch, std::uint64_t arrived) {
  shared_->arrived.store(
      0, std::memory_order_relaxed);  // ordered before the next arrivals by the epoch's release
  const bool all_barriers = (arrived & (kOneWithNews - kOneProposal)) == 0;
  return all_barriers ? 0 : Judge(epoch);
}

std::uint32_t Board::Judge(std::uint32_t epoch) const {
  const Proposal& first = slot(0)->proposals[epoch % 2];
  for (int i = 1; i < count_; ++i) {
    if (slot(i)->proposals[epoch % 2] != first) return static_cast<std::uint32_t>(i) + 1;
  }
  return 0;
}

Board::Gate Board::released() const { return {&shared_->epoch, &shared_->sleepers}; }
Board::Gate Board::gathered() const { return {&shared_->gathered, &shared_->speaker_sleeps}; }

void Board::Open(const Gate& gate, std::uint32_t epoch) {
  // Sequentially consistent against the sleepers in Sleep: either we see the sleeper, or it sees
  // the gate open.
  gate.opened->store(epoch + 1, std::memory_order_seq_cst);
  if (gate.sleepers->load(std::memory_order_seq_cst) != 0) FutexWakeAll(gate.opened);
}

bool Board::IsOpen(const Gate& gate, std::uint32_t epoch) {
  return gate.opened->load(std::memory_order_acquire) == epoch + 1;
}

Status Board::Await(const Gate& gate, std::uint32_t epoch, WaitWatch* watch) {
  Waiter waiter(may_spin_);
  while (!IsOpen(gate, epoch)) {
    if (waiter.phase() == Waiter::Phase::kSpin) {
      if (beside_) beside_();
      waiter.Pause();
      continue;
    }
    FaultPoint("board: before the look for a loss");
    if (FirstLost() >= 0) {
      // Lost after it had come, perhaps: then the gate opened before the mark was made, and is seen
      // open now.
      return IsOpen(gate, epoch) ? Status() : LostStatus();
    }
    if (waiter.phase() == Waiter::Phase::kYield) {
      waiter.Pause();
    } else {
      MORI_RETURN_IF_ERROR(Sleep(gate, epoch, watch));
    }
  }
  return Status();
}

Status Board::Sleep(const Gate& gate, std::uint32_t epoch, WaitWatch* watch) {
  // Release: whoever finds that this PE came here finds what it had written, too.
  slot(index_)->sleeps_for.store(epoch + 1, std::memory_order_release);
  if (watch != nullptr) {
    const Status ended = watch->Look();
    if (!ended.ok()) return IsOpen(gate, epoch) ? Status() : ended;
  }
  gate.sleepers->fetch_add(1, std::memory_order_seq_cst);
  if (const std::uint32_t seen = gate.opened->load(std::memory_order_seq_cst); seen != epoch + 1) {
    FaultPoint("board: asleep");
    FutexWait(gate.opened, seen, longest_sleep_);
  }
  gate.sleepers->fetch_sub(1, std::memory_order_relaxed);
  return Status();
}

std::vector<int> Board::Missing() const {
  const std::uint32_t now = shared_->epoch.load(std::memory_order_acquire) + 1;
  std::vector<int> missing;
  if (slot(index_)->sleeps_for.load(std::memory_order_relaxed) != now) return missing;
  for (int i = 0; i < count_; ++i) {
    if (slot(i)->sleeps_for.load(std::memory_order_acquire) != now) missing.push_back(i);
  }
  return missing;
}

void Board::TellReason(int pe, std::string_view reason) {
  Note& mine = *note(index_);
  const int first = FirstLost();
  // Relaxed: only threads of this PE write it, and they hold `marking_`.
  const bool is_free = mine.about.load(std::memory_order_relaxed) == 0;
  // One note is enough: a PE that is lost later is no PE's first.
  if (reason.empty() || !is_free || (first >= 0 && first != pe)) return;
  mine.length = static_cast<std::uint32_t>(reason.copy(mine.text, sizeof(mine.text)));
  FaultPoint("board: a reason is written");
  // Release: who finds the note's PE finds the text.
  mine.about.store(static_cast<std::uint32_t>(pe) + 1, std::memory_order_release);
}

void Board::MarkLost(int pe, std::string_view reason) {
  {
    const std::lock_guard lock(marking_);
    TellReason(pe, reason);
    FaultPoint("board: before the mark of a loss");
    std::uint32_t none = 0;
    // Release: who sees the mark finds the note.
    shared_->first_lost.compare_exchange_strong(none, static_cast<std::uint32_t>(pe) + 1,
                                                std::memory_order_acq_rel);
  }
  FutexWakeAll(&shared_->epoch);
  FutexWakeAll(&shared_->gathered);
}

int Board::FirstLost() const {
  return static_cast<int>(shared_->first_lost.load(std::memory_order_acquire)) - 1;
}

std::optional<std::string> Board::ReasonOf(int pe) const {
  for (int i = 0; i < count_; ++i) {
    const Note& one = *note(i);
    if (one.about.load(std::memory_order_acquire) != static_cast<std::uint32_t>(pe) + 1) continue;
    return std::string(one.text, std::min<std::size_t>(one.length, sizeof(one.text)));
  }
  return std::nullopt;
}

std::shared_ptr<const std::uint32_t> Board::first_lost_word() const {
  static_assert(sizeof(shared_->first_lost) == sizeof(std::uint32_t));
  return {range_, reinterpret_cast<const std::uint32_t*>(&shared_->first_lost)};
}

Status Board::LostStatus() const {
  return Error(ErrorCode::kPeerLost, "PE {} is lost", FirstLost());
}

}  // namespace mori::shmem
