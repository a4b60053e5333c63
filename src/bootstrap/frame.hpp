// Framed messages, and their bytes.
#pragma once

#include <optional>

#include "base/bytes.hpp"
#include "base/status.hpp"

namespace mori::shmem {

enum class FrameType : std::uint16_t {
  kHello = 1,      ///< rank to rendezvous: who I am
  kWelcome = 2,    ///< rendezvous to rank: where your parent is
  kReject = 3,     ///< rendezvous to rank: why there will be no world
  kJoin = 4,       ///< rank to its parent in the tree
  kLetter = 5,     ///< both ways: a message between any two ranks
  kLost = 6,       ///< both ways: a rank is lost
  kAbort = 7,      ///< rank to rendezvous: why it fails
  kBye = 8,        ///< both ways: leaving in order
  kAsk = 9,        ///< up the tree: who has not come to an exchange?
  kCensus = 10,    ///< down the tree: say whether you have come to an exchange
  kPresence = 11,  ///< up the tree: whether a rank has come to an exchange
  kMissing = 12,   ///< down the tree: a bit for every rank that has not come to an exchange
};

struct Frame {
  FrameType type;
  std::uint32_t sender = 0;    ///< rank
  std::uint32_t sequence = 0;  ///< of the exchange that is asked about; otherwise 0
  Bytes payload;
};

inline constexpr std::size_t kFrameHeaderBytes = 20;
/// A table of a hundred thousand ranks with a kilobyte each.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{128} << 20;

Bytes EncodeFrame(const Frame& frame);

/// Cuts frames off a growing buffer.
class FrameParser {
 public:
  explicit FrameParser(std::size_t max_payload_bytes = kMaxFrameBytes)
      : max_payload_bytes_(max_payload_bytes) {}

  void set_max_payload_bytes(std::size_t bytes) { max_payload_bytes_ = bytes; }
  /// Where received bytes are appended.
  Bytes* buffer() { return &buffer_; }
  /// The next whole frame, or nothing yet.
  /// @return kMismatch for bytes that are no frame: the connection is of no more use.
  Result<std::optional<Frame>> Next();

 private:
  std::size_t max_payload_bytes_;
  Bytes buffer_;
};

}  // namespace mori::shmem
