// Frames on a connection whose ends have proved themselves to each other.
#pragma once

#include <optional>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "bootstrap/frame.hpp"
#include "bootstrap/sealed_stream.hpp"

namespace mori::shmem {

/// Sends and receives sealed frames, waiting or not. One thread may send while another receives;
/// more than one on a side need a lock.
class Connection {
 public:
  /// `max_payload_bytes` is the limit of a received frame.
  Connection(UniqueFd fd, const StreamKeys& keys, std::size_t max_payload_bytes = kMaxFrameBytes)
      : fd_(std::move(fd)),
        sealer_(keys.sending),
        opener_(keys.receiving),
        parser_(max_payload_bytes) {}

  /// For poll(2). A frame may be here already though nothing shows on it: `Next()` first.
  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }

  /// Sends one frame. @return kTimeout or kPeerLost, after which nothing more can be sent
  Status Send(const Frame& frame, const Deadline& deadline);
  /// Puts a frame behind what is to be sent.
  void Queue(const Frame& frame);
  /// Sends what the socket takes at once. @return kPeerLost, after which nothing is left to send
  Status Flush();
  bool has_queued() const { return sent_ < outgoing_.size(); }
  /// Whether the other end's system has all that was sent or queued, or never will.
  bool IsDelivered() const;

  /// The next frame. @return kTimeout if it is not all here by then, kPeerLost, or kMismatch for
  /// bytes that are none
  Result<Frame> Receive(const Deadline& deadline);
  /// The next frame of what is here already, or nothing. @return kMismatch
  Result<std::optional<Frame>> Next() { return parser_.Next(); }
  /// Takes in what the socket has, without waiting. @return kPeerLost, kMismatch
  Status ReadSome();
  void set_max_payload_bytes(std::size_t bytes) { parser_.set_max_payload_bytes(bytes); }

 private:
  UniqueFd fd_;
  // Sending.
  Sealer sealer_;
  Bytes outgoing_;
  std::size_t sent_ = 0;  ///< of `outgoing_`
  bool cannot_send_ = false;
  // Receiving.
  Opener opener_;
  FrameParser parser_;
};

}  // namespace mori::shmem
