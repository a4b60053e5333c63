// A port that only those who know a secret get through.
#pragma once

#include <chrono>
#include <list>
#include <optional>
#include <vector>

#include "base/unique_fd.hpp"
#include "bootstrap/address.hpp"
#include "bootstrap/frame.hpp"
#include "bootstrap/handshake.hpp"

namespace mori::shmem {

/// Listens, proves, and hands over connections whose other end knows the secret and has sent its
/// first message. Strangers are dropped without a word and without disturbing anyone: those who
/// send nothing after a time limit, and the oldest of them when there are very many. Used by one
/// thread.
class Acceptor {
 public:
  struct Caller {
    UniqueFd fd;
    Frame first;
    Bytes rest;  ///< received behind the first message already
  };

  /// Listens on one free port, the same for all `addresses`.
  static Result<Acceptor> Listen(const std::vector<IpAddress>& addresses,
                                 const RendezvousName& name, const Secret& secret);

  std::uint16_t port() const { return port_; }
  const std::vector<IpAddress>& addresses() const { return addresses_; }

  /// Closes the port, and nothing else: in a forked child, whose parent goes on with it.
  void CloseListeners() { listeners_.clear(); }
  /// Closes the port, and drops who has not come through.
  void Close() {
    listeners_.clear();
    strangers_.clear();
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
  /// A connection that has not proved itself yet.
  struct Stranger {
    UniqueFd fd;
    ListenerHandshake handshake;
    std::chrono::steady_clock::time_point drop_at;
    bool proved = false;
    FrameParser parser{kMaxFirstFrameBytes};
  };
  static constexpr std::size_t kMaxFirstFrameBytes = 64 << 10;
  static constexpr std::size_t kMaxStrangers = 1024;
  static constexpr std::chrono::seconds kPatience{10};

  Acceptor(std::vector<UniqueFd> listeners, std::vector<IpAddress> addresses, std::uint16_t port,
           const RendezvousName& name, const Secret& secret);

  Status AcceptAll(int listener);
  /// Reads on; true when the connection is to be kept waiting.
  bool Advance(Stranger* stranger, std::optional<Caller>* caller);
  Deadline NextWakeUp(const Deadline& deadline) const;
  void DropLate();

  std::vector<UniqueFd> listeners_;
  std::vector<IpAddress> addresses_;
  std::uint16_t port_;
  RendezvousName name_;
  Secret secret_;
  std::list<Stranger> strangers_;
};

}  // namespace mori::shmem
