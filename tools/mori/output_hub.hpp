// All output streams of a run, and the launcher's messages, between the PEs' pipes and two sinks.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "output.hpp"

namespace mori::launcher {

/// Used by one thread. Memory is bounded: a stream is read only while its sink has room.
class OutputHub {
 public:
  /// @param with_prefix  each line starts with its PE, as in `[2] text`
  OutputHub(int n_pes, bool with_prefix);
  OutputHub(const OutputHub&) = delete;
  OutputHub& operator=(const OutputHub&) = delete;

  /// Takes the read ends of a PE's pipes, which are non-blocking.
  void Add(int pe, shmem::UniqueFd out, shmem::UniqueFd err);
  /// A line of the launcher itself, on standard error.
  void Message(std::string_view text);

  /// The part of the poll set that belongs to the hub has this size ...
  std::size_t PollCount() const { return 2 + streams_.size(); }
  /// ... and is set here before poll(), ...
  void FillPolls(std::span<pollfd> polls) const;
  /// ... and used here after it: reads, forwards and writes without blocking.
  void Transfer(std::span<const pollfd> polls);

  /// No more output is wanted than what the pipes hold now: streams close as they run empty, even
  /// if some process still holds the other end.
  void Drain();
  /// All streams have ended or run empty.
  bool StreamsClosed() const;
  /// So they have, and everything is written.
  bool Done() const { return StreamsClosed() && out_.empty() && err_.empty(); }
  /// Gives up what is not written yet, and the sinks that did not take it.
  void Abandon();

  /// Error number of the first sink that could not be written to, or 0.
  int error() const { return out_.error() != 0 ? out_.error() : err_.error(); }

 private:
  struct Stream {
    shmem::UniqueFd fd;
    OutputSink* sink;
    LineForwarder lines;
    std::size_t left_bytes;  // to be read before it is closed
  };

  OutputSink& ErrorSink() { return shared_ ? out_ : err_; }
  void AddStream(int pe, shmem::UniqueFd fd, OutputSink& sink);
  void Read(Stream& stream);
  /// Takes what the pipe holds and closes it. It does not block.
  void ReadOut(Stream& stream);
  void Close(Stream& stream);
  void CloseWithoutSink();

  bool shared_;  // standard output and error are the same file
  bool with_prefix_;
  OutputSink out_;
  OutputSink err_;
  std::vector<Stream> streams_;
  std::vector<char> buffer_;
};

}  // namespace mori::launcher
