// Output of many PEs on the launcher's own standard output and error, in whole lines.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace mori::launcher {

/// A line longer than this is forwarded in pieces of at least this size.
inline constexpr std::size_t kMaxLineBytes = 256 * 1024;

/// A message of the command itself, on standard error, as one line. It does not fail: where it
/// cannot be written, the exit status has to do.
void WriteError(std::string_view text) noexcept;

/// One destination. Never blocks: what the descriptor does not take is kept until the next
/// `Flush()`. Lines of different sources never share a line of output.
class OutputSink {
 public:
  /// @param fd  borrowed; kept in blocking mode, since others may share it
  explicit OutputSink(int fd) : fd_(fd) {}

  /// Adds text of `source`: a whole line with its newline, or a piece that leaves the line open.
  /// `prefix` goes before it unless it continues the open line of the same source; an open line of
  /// another source is ended first.
  void Append(int source, std::string_view prefix, std::string_view text);
  /// Ends the line of `source` if it is open.
  void EndLine(int source);

  /// Writes what can be written now.
  void Flush();
  /// Drops what is left, and everything that comes.
  void Discard(int error);

  int fd() const { return fd_; }
  bool empty() const { return written_ == pending_.size(); }
  /// So much is waiting that sources should pause.
  bool full() const { return pending_.size() - written_ > kFullBytes; }
  /// The error number that ended this sink, or 0.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kFullBytes = 1024 * 1024;
  static constexpr int kNoSource = -1;

  int fd_;
  int error_ = 0;
  int open_source_ = kNoSource;
  std::string pending_;
  std::size_t written_ = 0;  // bytes of pending_ that are out
};

/// Cuts the bytes of one source into lines.
class LineForwarder {
 public:
  /// @param source  not negative, unique among the sources of the sink
  LineForwarder(OutputSink& sink, int source, std::string prefix)
      : sink_(&sink), source_(source), prefix_(std::move(prefix)) {}

  void Feed(std::string_view bytes);
  /// The source has ended. Completes its last line, if lines have prefixes; without them its bytes
  /// stay as they are.
  void Finish();

 private:
  void Emit(std::string_view text) { sink_->Append(source_, prefix_, text); }

  OutputSink* sink_;
  int source_;
  std::string prefix_;
  std::string partial_;  // start of a line whose end has not come
};

}  // namespace mori::launcher
