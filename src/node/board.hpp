// What the PEs of one node share besides their heaps: a barrier, the agreement of collective calls,
// and who is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "node/fd_exchange.hpp"
#include "node/waiter.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

/// What a PE proposes in a collective call: all PEs must propose the same.
struct Proposal {
  enum class Call : std::uint32_t {
    kBarrier = 0,
    kMalloc = 1,
    kFree = 2,
    kOutcome = 3,
    kFinalize = 4
  };
  Call call = Call::kBarrier;
  std::uint64_t first = 0;   ///< malloc: bytes; free: offset; outcome: whether it went well
  std::uint64_t second = 0;  ///< malloc: alignment
  std::uint64_t third = 0;   ///< malloc: flags
  bool operator==(const Proposal&) const = default;
};

/// What the PEs of a node propose, as one.
struct Joint {
  bool is_same = true;  ///< all propose the same
  bool has_news = false;
};

/// One PE's view of its node's board. The collective calls come from one thread of the PE at a
/// time.
class Board {
 public:
  /// The longest reason of a loss.
  static constexpr std::size_t kMostReasonBytes = 1016;

  /// Outcome of an agreement that failed.
  struct Dispute {
    int index;       ///< PE of the node, by index, that differs from index 0
    Proposal first;  ///< of index 0
    Proposal differing;
  };

  /// Made by index 0, mapped by all. Collective over the node.
  /// @param may_spin  whether a waiting thread may: there is a CPU for every PE of the machine
  static Result<std::unique_ptr<Board>> Create(DeviceRuntime* runtime, FdExchange* exchange,
                                               int index, int count, bool may_spin,
                                               const Deadline& deadline);

  /// A board in memory that is mapped already, zeroed before its first use.
  static std::unique_ptr<Board> Attach(std::shared_ptr<AddressRange> range, int index, int count,
                                       bool may_spin);
  /// Memory that a board of `count` PEs needs.
  static std::uint64_t BytesFor(int count);

  /// Returns once all PEs of the node have called it with a proposal. Whatever they wrote before is
  /// visible to all after. Collective. The board is of no use any more after an error.
  /// @param news  whether this PE has news, on return whether any has; null: none, and not asked
  /// @param watch  looks after the wait once it sleeps; null: nobody
  /// @return kPeerLost when a PE was marked lost, or what `watch` ended the wait with; success
  /// otherwise, with `dispute` saying whether all proposed the same.
  Status Agree(const Proposal& proposal, std::optional<Dispute>* dispute, bool* news = nullptr,
               WaitWatch* watch = nullptr);

  /// The same for a node among several, whose index 0 speaks for it. For that one it returns once
  /// all PEs of the node have come, with what they propose as one; it asks the other nodes, and
  /// then calls `Announce()`. For the others it returns with what was announced. Not on the same
  /// board as `Agree()`.
  /// @param joint  `has_news` says on entry whether this PE has
  /// @return as `Agree()`
  Status Join(const Proposal& proposal, Joint* joint, WaitWatch* watch = nullptr);
  /// Of index 0, once after each `Join()` that went well.
  void Announce(const Joint& joint);

  /// Called beside each look of a wait that spins. Before the first wait.
  void set_beside(std::function<void()> call) { beside_ = std::move(call); }

  /// Agreement on a barrier, on the fast path.
  Status Barrier(std::optional<Dispute>* dispute) { return Agree(Proposal{}, dispute); }

  /// Tells all PEs of the node that PE `pe` of the world is lost, and why. Thread-safe. Nobody
  /// waits for a caller that dies in the middle.
  /// @param reason  cut to `kMostReasonBytes`; empty: not known here
  void MarkLost(int pe, std::string_view reason = {});
  /// The PE marked lost first; -1 while none is. Thread-safe, one load.
  int FirstLost() const;
  /// Why PE `pe` of the world is lost, as a PE of the node has told with its mark. Whoever sees the
  /// mark finds the reason, if it came with one. Thread-safe.
  std::optional<std::string> ReasonOf(int pe) const;
  /// The word behind it: 0, or 1 + that PE. For kernels to look at. Its memory stays as long as the
  /// pointer, though the board ends.
  std::shared_ptr<const std::uint32_t> first_lost_word() const;

  /// PEs of the node, by index, that have not come to the agreement in which this PE sleeps; none
  /// while it sleeps in none. A PE that came a moment ago may be among them. Thread-safe.
  std::vector<int> Missing() const;

  bool may_spin() const { return may_spin_; }
  /// For tests: how long a PE sleeps at most when nobody wakes it.
  void set_longest_sleep(std::chrono::nanoseconds time) { longest_sleep_ = time; }

 private:
  struct Shared;
  struct Gate;
  struct Slot;
  struct Note;

  Board(std::shared_ptr<AddressRange> range, int index, int count, bool may_spin);

  Slot* slot(int index) const;
  Note* note(int index) const;
  void TellReason(int pe, std::string_view reason);
  /// Puts down what this PE proposes. @return all that has arrived, with it
  std::uint64_t Arrive(std::uint32_t epoch, const Proposal& proposal, bool has_news);
  bool AreAllHere(std::uint64_t arrived) const;
  /// What they propose, by the last to arrive, who makes room for the next.
  std::uint32_t TakeVerdict(std::uint32_t epoch, std::uint64_t arrived);
  std::uint32_t Judge(std::uint32_t epoch) const;
  Gate released() const;  ///< that ends a meeting
  Gate gathered() const;  ///< of index 0, by the last to come
  static void Open(const Gate& gate, std::uint32_t epoch);
  static bool IsOpen(const Gate& gate, std::uint32_t epoch);
  Status Await(const Gate& gate, std::uint32_t epoch, WaitWatch* watch);
  Status Sleep(const Gate& gate, std::uint32_t epoch, WaitWatch* watch);
  Status LostStatus() const;

  std::shared_ptr<AddressRange> range_;
  Shared* shared_;
  int index_;
  int count_;
  bool may_spin_;
  /// Should a wake-up go missing with its sender, a sleeping PE looks at the mark of losses anyway.
  std::chrono::nanoseconds longest_sleep_ = std::chrono::milliseconds(100);
  std::function<void()> beside_;
  std::uint32_t epoch_ = 0;
  bool slot_is_barrier_[2] = {true, true};  ///< what our slot holds, by parity of the epoch
  std::mutex marking_;                      ///< of the threads of this PE that tell a loss
};

}  // namespace mori::shmem
