#include "output.hpp"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/text.hpp"

namespace mori::launcher {
namespace {

/// A descriptor that polls as writable takes this much without blocking.
constexpr std::size_t kWriteBytes = PIPE_BUF;

bool Writable(int fd) {
  pollfd poll_fd{fd, POLLOUT, 0};
  return poll(&poll_fd, 1, 0) == 1;
}

}  // namespace

void WriteError(std::string_view text) noexcept try {
  const std::string line = shmem::OneLine(text) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t written = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR) return;
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
} catch (...) {  // no memory for the line
}

void OutputSink::Append(int source, std::string_view prefix, std::string_view text) {
  if (error_ != 0 || text.empty()) return;
  if (open_source_ != source) {
    if (open_source_ != kNoSource) pending_.push_back('\n');
    pending_.append(prefix);
  }
  pending_.append(text);
  open_source_ = text.back() == '\n' ? kNoSource : source;
}

void OutputSink::EndLine(int source) {
  if (open_source_ == source) Append(source, {}, "\n");
}

void OutputSink::Flush() {
  while (!empty() && Writable(fd_)) {
    const std::size_t bytes = std::min(pending_.size() - written_, kWriteBytes);
    const ssize_t done = write(fd_, pending_.data() + written_, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) return;
    if (done < 0) return Discard(errno);
    written_ += static_cast<std::size_t>(done);
  }
  if (written_ < kFullBytes && !empty()) return;
  pending_.erase(0, written_);
  written_ = 0;
}

void OutputSink::Discard(int error) {
  error_ = error;
  pending_.clear();
  written_ = 0;
}

void LineForwarder::Feed(std::string_view bytes) {
  for (std::size_t end; (end = bytes.find('\n')) != std::string_view::npos;) {
    Emit(partial_);
    partial_.clear();
    Emit(bytes.substr(0, end + 1));
    bytes.remove_prefix(end + 1);
  }
  partial_.append(bytes);
  if (partial_.size() < kMaxLineBytes) return;
  Emit(partial_);
  partial_.clear();
}

void LineForwarder::Finish() {
  Emit(partial_);
  partial_.clear();
  if (!prefix_.empty()) sink_->EndLine(source_);
}

}  // namespace mori::launcher
