// A network over the plain memory of one process: it keeps what the seam of remote memory promises,
// and no more. For tests of whoever uses that seam.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/remote.hpp"

namespace mori::shmem::testing {

/// What was asked of a channel, in the order in which the network heard of it.
struct Posted {
  enum class Kind { kPut, kGet, kPutSignal, kPost, kTell, kFetch, kFence, kQuiet };
  Kind kind = Kind::kPut;
  int from = 0;
  int to = -1;  ///< -1: all, of a fence or quiet
  RemotePlace place;
  std::uint64_t bytes = 0;
};

class MemoryNetwork {
 public:
  struct Options {
    int n_pes = 2;
    unsigned seed = 1;
    /// A thread carries operations out, later, in pieces, and in any order that the seam allows.
    /// Without, each is done when its call returns.
    bool reorders = true;
    /// Without, `Fence()` does nothing: for tests that have to notice.
    bool keeps_fences = true;
  };

  explicit MemoryNetwork(const Options& options);
  ~MemoryNetwork();
  MemoryNetwork(const MemoryNetwork&) = delete;

  /// The transport of PE `parts.self`. May outlive this object; each PE joins once at a time.
  std::unique_ptr<RemoteTransport> Join(RemoteParts parts);

  /// PE `pe` is gone: what is under way to it fails, and the others are told `why`.
  void Lose(int pe, const std::string& why);
  /// While held, nothing is carried out but what comes of `Lose()`.
  void Hold();
  void Release();

  std::vector<Posted> TakePosts();

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace mori::shmem::testing
