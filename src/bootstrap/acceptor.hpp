// A port that only those who know a secret get through.
#pragma once

#include <chrono>
#include <list>
#include <optional>
#include <vector>

#include "base/unique_fd.hpp"
#include "bootstrap/address.hpp"
#include "bootstrap/connection.hpp"
#include "bootstrap/handshake.hpp"

namespace mori::shmem {

/// Listens, proves, and hands over connections whose other end knows the secret and has sent its
/// first message. Strangers are dropped without a word and without disturbing anyone. Used by one
/// thread.
///
/// What a flood of strangers cannot do: answers are read before more connections are accepted, and
/// those in batches, so who was accepted is always heard. While there is no room nothing is
/// accepted, and the rest waits in the kernel's queue: nobody is dropped for who comes behind. Room
/// is made by dropping who has been silent for a while, of the address that most of them came from,
/// the newest first. Who was dropped may come again. Who knows the secret is no stranger: it takes
/// nobody's room, and is waited for as long as this acceptor is used.
class Acceptor {
 public:
  /// How many connections may be waiting to prove themselves, and how long.
  struct Limits {
    std::size_t strangers = 1024;
    std::chrono::milliseconds patience{10'000};  ///< for who says nothing
    std::chrono::milliseconds patience_when_full{1'000};
  };

  struct Caller {
    Connection connection;  ///< may hold more that was received already
    Frame first;
  };

  /// Listens on one free port, the same on the first `kMaxAddresses` of `addresses` that can be
  /// bound. Others are skipped: an IPv6 address may not be usable yet, or its family be denied.
  /// @return kSystem if none can be bound, with the reason of the first
  static Result<Acceptor> Listen(const std::vector<IpAddress>& addresses,
                                 const RendezvousName& name, const Secret& secret,
                                 const Limits& limits);
  static Result<Acceptor> Listen(const std::vector<IpAddress>& addresses,
                                 const RendezvousName& name, const Secret& secret) {
    return Listen(addresses, name, secret, Limits{});
  }

  std::uint16_t port() const { return port_; }
  /// Those that were bound.
  const std::vector<IpAddress>& addresses() const { return addresses_; }

  /// Those that a first call shows on, for poll(2).
  std::vector<int> listeners() const {
    std::vector<int> fds;
    for (const auto& listener : listeners_) fds.push_back(listener.get());
    return fds;
  }

  /// Closes the port, and drops who has not come through.
  void Close() {
    listeners_.clear();
    strangers_.clear();
    proved_.clear();
  }

  /// What ended a wait.
  struct Event {
    std::optional<Caller> caller;
    std::vector<int> readable;  ///< those of `watched` with something to read, or closed
  };
  /// Waits for a caller, for one of the `watched` descriptors, or for the deadline (then the event
  /// is empty).
  Result<Event> Wait(const std::vector<int>& watched, const Deadline& deadline);

 private:
  using Clock = std::chrono::steady_clock;

  /// A connection that has not proved itself yet.
  struct Stranger {
    UniqueFd fd;
    IpAddress from;
    ListenerHandshake handshake;
    Clock::time_point came_at;
    Bytes answer{};
  };
  static constexpr std::size_t kMaxFirstFrameBytes = 64 << 10;

  /// Listeners on one port.
  struct Bound {
    std::vector<UniqueFd> listeners;
    std::vector<IpAddress> addresses;
    std::uint16_t port = 0;
    Status first_failure;
  };
  static Bound BindAll(const std::vector<IpAddress>& addresses);

  Acceptor(Bound bound, const RendezvousName& name, const Secret& secret, const Limits& limits);

  bool HasRoom() const;
  Status AcceptBatch(int listener);
  /// Puts off the next accept a little: it would fail again.
  void Pause();
  /// Reads on; true when the stranger is to be kept waiting.
  bool Advance(Stranger* stranger);
  /// The same of one that has proved itself.
  static bool Advance(Connection* proved, std::optional<Caller>* caller);
  Deadline NextWakeUp(const Deadline& deadline) const;
  void DropLate();
  /// Drops a batch of those who have been silent for a while.
  void MakeRoom();

  std::vector<UniqueFd> listeners_;
  std::vector<IpAddress> addresses_;
  std::uint16_t port_;
  RendezvousName name_;
  Secret secret_;
  Limits limits_;
  std::list<Stranger> strangers_;  ///< the oldest first
  std::list<Connection> proved_;   ///< whose first message is not there yet
  Clock::time_point paused_until_{};
};

}  // namespace mori::shmem
