// The output of all PEs, and the launcher's messages, on standard output and standard error.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "output.hpp"
#include "pe_output.hpp"

namespace mori::launcher {

/// Used by one thread.
class OutputHub : public PeOutput {
 public:
  /// @param with_prefix  each line starts with its PE, as in `[2] text`
  OutputHub(int n_pes, bool with_prefix);
  OutputHub(const OutputHub&) = delete;
  OutputHub& operator=(const OutputHub&) = delete;

  void Feed(int pe, StreamKind kind, std::string_view bytes) override;
  void Finish(int pe, StreamKind kind) override;
  bool Full(StreamKind kind) const override { return SinkOf(kind).full(); }
  bool Closed(StreamKind kind) const override { return SinkOf(kind).error() != 0; }
  /// A line of the launcher itself, on standard error.
  void Message(std::string_view text);

  /// What is waited for until more can be written.
  static constexpr std::size_t kPolls = 2;
  void FillPolls(std::span<pollfd> polls) const;
  /// Writes what can be written without blocking.
  void Flush();

  /// Everything is written.
  bool Empty() const { return out_.empty() && err_.empty(); }
  /// Gives up what is not written yet, and the sinks that did not take it.
  void Abandon();

  /// Error number of the first sink that could not be written to, or 0.
  int error() const { return out_.error() != 0 ? out_.error() : err_.error(); }

 private:
  OutputSink& ErrorSink() { return shared_ ? out_ : err_; }
  const OutputSink& SinkOf(StreamKind kind) const {
    return kind == StreamKind::kOut || shared_ ? out_ : err_;
  }
  LineForwarder& LinesOf(int pe, StreamKind kind);

  bool shared_;  // standard output and error are the same file
  OutputSink out_;
  OutputSink err_;
  std::vector<LineForwarder> lines_;  // two a PE
};

}  // namespace mori::launcher
