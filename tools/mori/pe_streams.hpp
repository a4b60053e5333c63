// The pipes that PEs of this machine write into.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"
#include "pe_output.hpp"

namespace mori::launcher {

/// Reads them without blocking, and only while their output has room, so that memory is bounded.
class PeStreams {
 public:
  /// @param output  outlives this
  explicit PeStreams(PeOutput& output);

  /// Takes the read ends of a PE's pipes, which are non-blocking.
  void Add(int pe, shmem::UniqueFd out, shmem::UniqueFd err);

  /// The part of the poll set that belongs to the streams has this size ...
  std::size_t PollCount() const { return streams_.size(); }
  /// ... and is set here before poll(), ...
  void FillPolls(std::span<pollfd> polls) const;
  /// ... and used here after it.
  void Transfer(std::span<const pollfd> polls);

  /// Closes the streams whose output is closed: PEs get to know it as they would without a
  /// launcher.
  void CloseWithoutOutput();
  /// No more output is wanted than what the pipes hold now: streams close as they run empty, even
  /// if some process still holds the other end.
  void Drain();
  /// All have ended or run empty.
  bool Closed() const;

 private:
  struct Stream {
    int pe;
    StreamKind kind;
    shmem::UniqueFd fd;
    std::size_t left_bytes;  // to be read before it is closed
  };

  void Read(Stream& stream);
  /// Takes what the pipe holds and closes it. It does not block.
  void ReadOut(Stream& stream);
  void Feed(const Stream& stream, std::size_t bytes);
  void Close(Stream& stream);

  PeOutput& output_;
  std::vector<Stream> streams_;
  std::vector<char> buffer_;
};

}  // namespace mori::launcher
