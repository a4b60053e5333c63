// What ranks and the rendezvous tell each other.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bootstrap/address.hpp"
#include "bootstrap/frame.hpp"

namespace mori::shmem {

/// A port on several addresses.
struct Endpoint {
  std::uint16_t port = 0;
  std::vector<IpAddress> addresses;
};

/// A rank introduces itself.
struct Hello {
  int rank = 0;
  int size = 0;
  std::string version;  ///< of the library
  std::string host;
  std::uint32_t process_id = 0;
  std::string failure;                 ///< why this rank cannot take part; empty if it can
  std::chrono::milliseconds budget{};  ///< how long it waits for the others
  Endpoint endpoint;  ///< where its children in the tree find it; port 0 if it has none
};

Bytes EncodeHello(const Hello& hello);
/// @return kMismatch for bytes that are no hello.
Result<Hello> DecodeHello(ByteView bytes);

Bytes EncodeEndpoint(const Endpoint& endpoint);
Result<Endpoint> DecodeEndpoint(ByteView bytes);

/// A status on its way to another rank.
Bytes EncodeStatus(const Status& status);
/// Never a success; bytes that make no sense give kMismatch.
Status DecodeStatus(ByteView bytes);

}  // namespace mori::shmem
