// What ranks and the rendezvous tell each other.
#pragma once

#include <chrono>
#include <span>
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

/// Version of what ranks and rendezvous say to each other. It grows with each change of a message
/// below, and of the tree's frames.
inline constexpr std::uint32_t kProtocolVersion = 3;

/// A rank introduces itself. The first six fields come first on the wire in every version, and so
/// can be read of a rank that speaks another one.
struct Hello {
  std::uint32_t protocol = kProtocolVersion;
  int rank = 0;
  int size = 0;
  std::string version;  ///< of the library
  std::string host;
  std::uint32_t process_id = 0;
  std::string failure;                 ///< why this rank cannot take part; empty if it can
  std::chrono::milliseconds budget{};  ///< how long it waits for the others
  std::chrono::milliseconds waited{};  ///< of that, before it got here
  Endpoint endpoint;  ///< where its children in the tree find it; port 0 if it has none
  std::string node;   ///< equal for ranks of one node
};

Bytes EncodeHello(const Hello& hello);
/// Of another protocol version only the first six fields are read, whatever follows them.
/// @return kMismatch for bytes that are no hello.
Result<Hello> DecodeHello(ByteView bytes);

/// A rank's place in the tree.
struct Welcome {
  int parent_rank = -1;  ///< none for rank 0
  Endpoint parent;
  std::vector<int> children;  ///< ranks that will call
  /// To rank 0, of every rank: its node, numbered by their first ranks. Empty where there is one
  /// node.
  std::vector<std::uint32_t> node_of;
};
Bytes EncodeWelcome(const Welcome& welcome);
/// @return kMismatch for bytes that are no place in a world of `size`
Result<Welcome> DecodeWelcome(ByteView bytes, int size);

/// The nodes of all ranks on their way down the tree. Nothing for one node.
Bytes EncodeNodes(std::span<const std::uint32_t> node_of);
/// @return kMismatch for bytes that are no numbers of nodes of `size` ranks, in order of their
/// first
///   ranks
Result<std::vector<std::uint32_t>> DecodeNodes(ByteView bytes, int size);

/// A rank fails and says why.
struct Failure {
  Status status;
  /// The rank whose fault it may be, which the others may know better; -1 if it is this rank's own.
  int suspect = -1;
};
Bytes EncodeFailure(const Failure& failure);
/// Bytes that make no sense give a status of kMismatch without a suspect.
Failure DecodeFailure(ByteView bytes);

/// A status on its way to another rank. The same in every protocol version.
Bytes EncodeStatus(const Status& status);
/// Never a success; bytes that make no sense give kMismatch.
Status DecodeStatus(ByteView bytes);

}  // namespace mori::shmem
