// Seam: how the ranks of a world exchange small messages during set-up, and watch each other
// afterwards.
//
// Implementations: sockets found by a unique id (socket_bootstrap), threads of one process
// (in_process_bootstrap).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"

namespace mori::shmem {

/// Most ranks of a world. Larger sizes are taken for a mistake, before anything is made of them.
inline constexpr int kMaxRanks = 1 << 20;

/// "1, 2, 5", with an ellipsis behind the sixteenth.
std::string ListRanks(const std::vector<int>& ranks);

/// Why an exchange ended without `missing`: kTimeout.
Status RanksDidNotCome(const std::vector<int>& missing, int size, const Deadline& deadline);

/// One rank's end of the exchange. The collective calls come from one thread at a time, in the same
/// order on every rank. A call that failed leaves the exchange unusable: later ones fail too.
class Bootstrap {
 public:
  /// What the observer hears: a rank that died or left without `Close()`, or one that gave up.
  struct Loss {
    int rank;
    std::string reason;  ///< "its connection closed", or the text of its `Abort()`
  };
  using Observer = std::function<void(const Loss&)>;

  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Everyone's message, by rank. Collective. Messages may differ in size.
  /// @return kTimeout at the deadline, with the ranks that have not come, or as many of them as can
  ///   be found out; kPeerLost as soon as a rank is known to be lost or to have aborted.
  virtual Result<std::vector<Bytes>> AllGather(ByteView mine, const Deadline& deadline) = 0;

  /// Tells all ranks that this one gives up and why; their calls fail with that text. Local.
  virtual void Abort(const Status& why) = 0;

  /// The first loss known so far, as an error; success while all are there. Local, thread-safe,
  /// cheap.
  virtual Status Health() const = 0;

  /// Calls `observer` for each loss, past ones first, from any thread, until replaced (null: none).
  /// After this returns the former observer is not called any more.
  virtual void Observe(Observer observer) = 0;

  /// Leaves in order: the others do not take it for a loss. Local. The object is unusable
  /// afterwards.
  virtual void Close() = 0;
};

}  // namespace mori::shmem
