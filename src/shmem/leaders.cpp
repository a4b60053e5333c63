#include "shmem/leaders.hpp"

#include <chrono>
#include <cstddef>

#include "base/fault_point.hpp"
#include "bootstrap/bootstrap.hpp"
#include "node/waiter.hpp"

namespace mori::shmem {
namespace {

constexpr int kMostRounds = 20;  // of as many nodes as there may be ranks
static_assert(kMaxRanks <= 1 << kMostRounds);

// In a word, below the number of the meeting.
constexpr std::uint64_t kHasProposal = 1;  ///< other than a barrier
constexpr std::uint64_t kDiffers = 2;
constexpr std::uint64_t kHasNews = 4;
constexpr int kFlagBits = 3;

/// A loss that the network has not brought about itself wakes nobody who sleeps there.
constexpr std::chrono::milliseconds kLongestSleep{20};

}  // namespace

/// A line for each note, so that writes to one do not disturb who looks at another.
struct Leaders::Slots {
  struct alignas(64) Slot {
    Note note{};
  };
  alignas(4096) Slot slots[2][kMostRounds];

  static std::uint64_t PlaceOf(std::uint64_t meeting, int round) {
    return (meeting % 2 * kMostRounds + static_cast<std::uint64_t>(round)) * sizeof(Slot);
  }
};

Leaders::Leaders(const Parts& parts)
    : parts_(parts), node_(parts.topology->NodeOf(parts.pe)), n_nodes_(parts.topology->n_nodes()) {}

Leaders::~Leaders() = default;

Result<std::unique_ptr<Leaders>> Leaders::Create(const Parts& parts) {
  std::unique_ptr<Leaders> leaders(new Leaders(parts));
  if (parts.topology->LeaderOf(leaders->node_) != parts.pe || leaders->n_nodes_ == 1)
    return leaders;
  leaders->slots_ = std::make_unique<Slots>();
  MORI_ASSIGN_OR_RETURN(leaders->registration_,
                        parts.network->Register(leaders->slots_.get(), sizeof(Slots)));
  return leaders;
}

RemotePlace Leaders::place() const {
  return registration_ == nullptr ? RemotePlace() : registration_->place();
}

void Leaders::SetPlaces(std::span<const RemotePlace> places) {
  places_.clear();
  for (int node = 0; node < n_nodes_; ++node)
    places_.push_back(places[static_cast<std::size_t>(parts_.topology->LeaderOf(node))]);
}

Status Leaders::Meet(const Proposal& proposal, Joint* joint, WaitWatch* watch) {
  static_assert(offsetof(Note, word) + sizeof(Note::word) == sizeof(Note), "the word comes last");
  const std::uint64_t meeting = ++meeting_;  // from 1, unlike what zeroed memory says
  const bool is_barrier = proposal.call == Proposal::Call::kBarrier;
  Note mine{static_cast<std::uint64_t>(proposal.call), proposal.first, proposal.second,
            proposal.third, 0};
  for (int round = 0; 1 << round < n_nodes_; ++round) {
    const int distance = 1 << round;
    const std::uint64_t place = Slots::PlaceOf(meeting, round);
    mine.word = meeting << kFlagBits | (is_barrier ? 0 : kHasProposal) |
                (joint->is_same ? 0 : kDiffers) | (joint->has_news ? kHasNews : 0);
    MORI_RETURN_IF_ERROR(Tell((node_ + distance) % n_nodes_, place, mine));
    FaultPoint("leaders: between telling and hearing");
    const Note& theirs = slots_->slots[meeting % 2][round].note;
    MORI_ASSIGN_OR_RETURN(const std::uint64_t word, Hear(theirs, watch));
    const bool is_theirs_a_barrier = (word & kHasProposal) == 0;
    const bool is_alike =
        is_barrier == is_theirs_a_barrier &&
        (is_barrier || (theirs.call == mine.call && theirs.first == mine.first &&
                        theirs.second == mine.second && theirs.third == mine.third));
    if (!is_alike || (word & kDiffers) != 0) joint->is_same = false;
    if ((word & kHasNews) != 0) joint->has_news = true;
  }
  return Status();
}

Status Leaders::Tell(int node, std::uint64_t place, const Note& note) {
  const int leader = parts_.topology->LeaderOf(node);
  const RemotePlace& slots = places_[static_cast<std::size_t>(node)];
  Channel& channel = parts_.network->channel();
  // Of a barrier the word alone travels.
  if ((note.word & kHasProposal) == 0) {
    return channel.Tell(leader, {slots.address + place + offsetof(Note, word), slots.key},
                        &note.word, sizeof note.word);
  }
  return channel.Tell(leader, {slots.address + place, slots.key}, &note.call, sizeof note);
}

Result<std::uint64_t> Leaders::Hear(const Note& note, WaitWatch* watch) const {
  Channel& channel = parts_.network->channel();
  // Who may not spin sleeps at once: the thread that serves others does the work, and each look
  // here would take the CPU from it.
  Waiter waiter(parts_.board->may_spin());
  for (;;) {
    const std::uint64_t arrivals = channel.Arrivals();
    // Acquire: what was told before the word, and all that its leader knew to be there.
    const std::uint64_t word = __atomic_load_n(&note.word, __ATOMIC_ACQUIRE);
    if (word >> kFlagBits == meeting_) return word;
    if (waiter.phase() == Waiter::Phase::kSpin) {
      channel.Progress();
      waiter.Pause();
      continue;
    }
    FaultPoint("leaders: before the look for an end");
    // What came before the end counts: look once more.
    const Status ended = CheckWait(watch);
    const std::uint64_t now = __atomic_load_n(&note.word, __ATOMIC_ACQUIRE);
    if (now >> kFlagBits == meeting_) return now;
    MORI_RETURN_IF_ERROR(ended);
    channel.AwaitArrival(arrivals, kLongestSleep);
  }
}

Status Leaders::CheckWait(WaitWatch* watch) const {
  if (const int lost = parts_.board->FirstLost(); lost >= 0)
    return Error(ErrorCode::kPeerLost, "PE {} is lost", lost);
  return watch == nullptr ? Status() : watch->Look();
}

}  // namespace mori::shmem
