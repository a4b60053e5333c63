// The 128 bytes of a unique id, and what they say.
//
//   0  magic "MORI"          24  secret, 32 bytes
//   4  format version        56  number of addresses, then three zeros
//   5  zero                  60  three addresses of 20 bytes (bootstrap/address.hpp)
//   6  port, little-endian  120  checksum of the 120 bytes before, 8 bytes of BLAKE2b
//   8  name, 16 bytes
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "bootstrap/address.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

inline constexpr std::uint8_t kUniqueIdVersion = 1;

/// Public name of one rendezvous: tells ids apart without giving the secret away.
using RendezvousName = std::array<std::uint8_t, 16>;
/// Who knows it may join.
using Secret = std::array<std::uint8_t, 32>;

struct Rendezvous {
  RendezvousName name;
  Secret secret;
  std::uint16_t port = 0;
  /// 1 to kMaxAddresses, best first. None, and no port, for a process that nobody can call: it can
  /// be a world of one.
  std::vector<IpAddress> addresses;
};

/// Fresh random name and secret.
Rendezvous NewRendezvous();

UniqueId EncodeUniqueId(const Rendezvous& rendezvous);

/// @return kInvalidArgument for bytes that are no unique id, of another format version, or damaged;
/// each is said.
Result<Rendezvous> DecodeUniqueId(const UniqueId& id);

/// The same as 256 hexadecimal digits, for environment variables.
std::string UniqueIdToHex(const UniqueId& id);
/// @return kInvalidArgument for anything but 256 hexadecimal digits.
Result<UniqueId> UniqueIdFromHex(std::string_view hex);

}  // namespace mori::shmem
