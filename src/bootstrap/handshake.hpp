// Mutual proof of a shared secret, before a byte of a connection is trusted.
//
//   listener to caller: magic, version, listener's random  (36 bytes)
//   caller to listener: name, caller's random, its proof   (80 bytes)
//   listener to caller: its proof                          (32 bytes)
//
// What follows is sealed (sealed_stream.hpp) by keys made of the secret and both randoms.
//
// A proof is a keyed BLAKE2b over both randoms and the side's word, so that nothing heard before,
// or sent back, passes.
#pragma once

#include <array>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "bootstrap/sealed_stream.hpp"
#include "bootstrap/unique_id.hpp"

namespace mori::shmem {

using Random = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;

inline constexpr std::size_t kChallengeBytes = 36;
inline constexpr std::size_t kAnswerBytes = 80;

/// Listener's side, as pure steps.
class ListenerHandshake {
 public:
  ListenerHandshake(const RendezvousName& name, const Secret& secret);
  Bytes Challenge() const;
  /// Checks the caller's answer and makes the listener's proof.
  /// @return kMismatch for a stranger.
  Result<Bytes> Check(ByteView answer) const;
  /// The keys for what follows, of an answer that `Check()` was content with.
  StreamKeys Keys(ByteView answer) const;

 private:
  RendezvousName name_;
  Secret secret_;
  Random random_;
};

/// Caller's side on a fresh connection.
/// @return the keys for what follows; kMismatch if the listener does not know the secret, or is of
///   another version; kTimeout, kPeerLost.
Result<StreamKeys> ProveToListener(int fd, const RendezvousName& name, const Secret& secret,
                                   const Deadline& deadline);

}  // namespace mori::shmem
