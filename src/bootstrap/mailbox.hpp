// What has come for one rank, who is lost, and which calls the rank has come to.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "bootstrap/bootstrap.hpp"

namespace mori::shmem {

/// Messages in the order of their arrival, apart by sender and channel. Thread-safe.
class Mailbox {
 public:
  using Channel = Bootstrap::Channel;
  using Round = Bootstrap::Round;

  /// Most bytes that wait to be taken: two of the largest messages.
  static constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

  explicit Mailbox(std::size_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  /// @return false if there is no room
  bool Put(int from, const Channel& channel, Bytes message);
  /// The next message, once it is here.
  /// @return nothing at the deadline; kPeerLost if a rank is lost or `from` has left; what ended
  ///   the wait by the watch
  Result<std::optional<Bytes>> Take(int from, const Channel& channel, const WaitLimit& limit);

  /// Fails all that waits, and later calls.
  void NoteLoss(const Bootstrap::Loss& loss);
  /// `rank` left in order: what it sent before can still be taken.
  void NoteDeparture(int rank);
  bool HasLeft(int rank) const;
  /// The first loss, as an error.
  Status Health() const;
  /// The rank lost first; -1 if none is.
  int FirstLost() const;

  /// The rank comes to its next call on `channel`. @return how many it came to before
  std::uint32_t Enter(const Channel& channel);
  bool HasEntered(const Channel& channel, std::uint32_t sequence) const;
  /// The rank waits for others in a call, or does not any more.
  void StartWaiting(const Round* round);
  void EndWaiting(const Round* round);
  std::vector<Round> Waiting() const;

 private:
  Status LossStatus() const;  ///< needs `mutex_`

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, Channel>, std::deque<Bytes>> boxes_;  ///< none of them empty
  std::size_t bytes_ = 0;                                       ///< in them
  std::vector<Bootstrap::Loss> losses_;
  std::set<int> left_;
  std::map<Channel, std::uint32_t> entered_;
  std::vector<const Round*> waiting_;
};

}  // namespace mori::shmem
