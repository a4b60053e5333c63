#include "output_hub.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/text.hpp"

namespace mori::launcher {
namespace {

constexpr int kLauncherSource = std::numeric_limits<int>::max();
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

bool SameFile(int a, int b) {
  struct stat stat_a {};
  struct stat stat_b {};
  return fstat(a, &stat_a) == 0 && fstat(b, &stat_b) == 0 && stat_a.st_dev == stat_b.st_dev &&
         stat_a.st_ino == stat_b.st_ino;
}

bool WantsColor(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
         std::string_view(term) != "dumb";
}

std::string Prefix(int pe, int fd) {
  constexpr std::array kColors = {36, 32, 33, 35, 34, 31};
  if (!WantsColor(fd)) return fmt::format("[{}] ", pe);
  return fmt::format("\x1b[{}m[{}]\x1b[0m ", kColors[pe % kColors.size()], pe);
}

}  // namespace

OutputHub::OutputHub(int n_pes, bool with_prefix)
    : shared_(SameFile(STDOUT_FILENO, STDERR_FILENO)),
      with_prefix_(with_prefix),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      buffer_(kReadBytes) {
  streams_.reserve(2 * static_cast<std::size_t>(n_pes));
}

void OutputHub::Add(int pe, shmem::UniqueFd out, shmem::UniqueFd err) {
  AddStream(pe, std::move(out), out_);
  AddStream(pe, std::move(err), ErrorSink());
}

void OutputHub::AddStream(int pe, shmem::UniqueFd fd, OutputSink& sink) {
  const int source = static_cast<int>(streams_.size());
  LineForwarder lines(sink, source, with_prefix_ ? Prefix(pe, sink.fd()) : std::string());
  streams_.push_back({std::move(fd), &sink, std::move(lines), kUnlimited});
}

void OutputHub::Message(std::string_view text) {
  ErrorSink().Append(kLauncherSource, "mori run: ", shmem::OneLine(text));
  ErrorSink().EndLine(kLauncherSource);
}

void OutputHub::FillPolls(std::span<pollfd> polls) const {
  polls[0] = {out_.empty() ? -1 : out_.fd(), POLLOUT, 0};
  polls[1] = {err_.empty() ? -1 : err_.fd(), POLLOUT, 0};
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const Stream& stream = streams_[i];
    polls[2 + i] = {stream.sink->full() ? -1 : stream.fd.get(), POLLIN, 0};
  }
}

void OutputHub::Transfer(std::span<const pollfd> polls) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (polls[2 + i].fd >= 0 && polls[2 + i].revents != 0) Read(streams_[i]);
  }
  out_.Flush();
  err_.Flush();
  CloseWithoutSink();
}

// Where nothing can be written, the PEs get to know it as they would without a launcher.
void OutputHub::CloseWithoutSink() {
  for (Stream& stream : streams_) {
    if (stream.sink->error() != 0) stream.fd.Reset();
  }
}

void OutputHub::Read(Stream& stream) {
  const std::size_t wanted = std::min(buffer_.size(), stream.left_bytes);
  const ssize_t got = read(stream.fd.get(), buffer_.data(), wanted);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) return Close(stream);
  stream.lines.Feed({buffer_.data(), static_cast<std::size_t>(got)});
  if (stream.left_bytes != kUnlimited) stream.left_bytes -= static_cast<std::size_t>(got);
  if (stream.left_bytes == 0) Close(stream);
}

void OutputHub::Close(Stream& stream) {
  stream.lines.Finish();
  stream.fd.Reset();
}

void OutputHub::ReadOut(Stream& stream) {
  constexpr std::size_t kLargestPipe = std::size_t{1} << 20;
  for (std::size_t total = 0; total < kLargestPipe;) {
    const ssize_t got = read(stream.fd.get(), buffer_.data(), buffer_.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    stream.lines.Feed({buffer_.data(), static_cast<std::size_t>(got)});
    total += static_cast<std::size_t>(got);
  }
  Close(stream);
}

void OutputHub::Drain() {
  for (Stream& stream : streams_) {
    if (!stream.fd.valid() || stream.left_bytes != kUnlimited) continue;
    int held_bytes = 0;
    if (ioctl(stream.fd.get(), FIONREAD, &held_bytes) != 0) {  // the system does not say
      ReadOut(stream);
      continue;
    }
    stream.left_bytes = static_cast<std::size_t>(held_bytes);
    if (held_bytes == 0) Close(stream);
  }
}

bool OutputHub::StreamsClosed() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return !stream.fd.valid(); });
}

void OutputHub::Abandon() {
  for (OutputSink* sink : {&out_, &err_}) {
    if (!sink->empty()) sink->Discard(ECANCELED);
  }
  CloseWithoutSink();
}

}  // namespace mori::launcher
