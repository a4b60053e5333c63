// Descriptors between the PEs of one node, by SCM_RIGHTS over private abstract sockets: no names in
// the file system, nothing left behind by a killed job, no ptrace-class calls.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "bootstrap/bootstrap.hpp"

namespace mori::shmem {

/// An abstract socket that one PE listens on, and the token that callers must know.
class FdListener {
 public:
  using Token = std::array<std::uint8_t, 32>;

  /// Listens under a fresh random name.
  static Result<FdListener> Open();
  int fd() const { return fd_.get(); }
  const Token& token() const { return token_; }

  /// Name of the abstract socket that goes with `token`, without the leading zero byte.
  static std::string NameFor(const Token& token);

 private:
  UniqueFd fd_;
  Token token_{};
};

/// Connections between the first PE of a node and its others. Collective calls: all PEs of the
/// node, one thread each.
class FdExchange {
 public:
  /// What a PE is called in messages.
  using Names = std::function<std::string(int place)>;
  static constexpr std::chrono::milliseconds kPatience{10'000};

  /// Connects. `index` of `count` is this PE's place among its node's PEs; the PE of index 0
  /// listens on `listener`, the others call by its `token`. Watches `bootstrap` for lost ranks
  /// while waiting.
  /// All who have called are heard together: one that is slow, or a stranger of the same user that
  /// says nothing, holds nobody up. Who says nothing for `patience` is hung up on, and a PE that
  /// this happens to calls again until the deadline.
  /// @return kTimeout, kPeerLost; kSystem when the socket is not reachable although the node is the
  ///   same (other network namespace).
  static Result<std::unique_ptr<FdExchange>> Connect(Bootstrap* bootstrap, int index, int count,
                                                     FdListener listener,
                                                     const FdListener::Token& first_token,
                                                     const Deadline& deadline,
                                                     std::chrono::milliseconds patience = kPatience,
                                                     Names names = {});

  /// What a user sets the deadlines to come with; a literal. At first MORI_BOOTSTRAP_TIMEOUT.
  void SetVariable(const char* variable) { variable_ = variable; }

  /// Everyone's descriptors, `each` of every PE: first those of index 0, in order, and so on.
  /// `mine` stay the caller's; none at all: this PE has none to give, which fails for all.
  /// @return kSystem where this PE could not take them, kMismatch where another one failed: the PEs
  ///   are in step then, and the next call may succeed; kPeerLost, kTimeout, after which they are
  ///   not
  Result<std::vector<UniqueFd>> AllGather(std::span<const int> mine, std::size_t each,
                                          const Deadline& deadline);
  /// One of every PE; -1 for none to give.
  Result<std::vector<UniqueFd>> AllGather(int mine, const Deadline& deadline) {
    return AllGather(std::span(&mine, mine < 0 ? 0 : 1), 1, deadline);
  }

  /// The descriptor that index 0 passes; others pass -1.
  Result<UniqueFd> Broadcast(int mine, const Deadline& deadline);

 private:
  FdExchange(Bootstrap* bootstrap, int index, int count, Names names);

  Status CallFirst(const FdListener::Token& token, const Deadline& deadline);
  /// Says who calls and waits for the answer.
  Status Introduce(int socket, const FdListener::Token& token, const Deadline& deadline) const;
  Status AcceptOthers(const FdListener& listener, std::chrono::milliseconds patience,
                      const Deadline& deadline);
  Status NotInTime(const Deadline& deadline) const;
  std::string NameOf(int place) const;
  /// That of the PE at the other end of a socket.
  int PlaceAt(int socket) const;
  /// Those that `AcceptOthers()` waits for.
  std::string MissingNames() const;
  Status Wait(int fd, short events, const Deadline& deadline) const;
  /// The loss that broke a connection, once its news is here; `broken` if none comes soon.
  Status Cause(Status broken) const;
  Status SendFds(int socket, std::span<const int> fds, const Deadline& deadline) const;
  /// Says that there are no descriptors this time.
  Status SendNone(int socket, const Deadline& deadline) const;
  Status SendMessage(int socket, std::span<const int> fds, const Deadline& deadline) const;
  Status GatherAtFirst(std::span<UniqueFd> all, std::size_t each, const Deadline& deadline) const;
  Result<std::vector<UniqueFd>> ReceiveFds(int socket, std::size_t count,
                                           const Deadline& deadline) const;

  Bootstrap* bootstrap_;
  int index_;
  int count_;
  Names names_;
  const char* variable_ = "MORI_BOOTSTRAP_TIMEOUT";
  bool may_spin_;                  ///< a CPU for every PE of the node
  std::vector<UniqueFd> sockets_;  ///< of index 0: by index, own place empty; of others: one
};

}  // namespace mori::shmem
