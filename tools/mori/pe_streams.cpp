#include "pe_streams.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>
#include <utility>

namespace mori::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

}  // namespace

PeStreams::PeStreams(PeOutput& output) : output_(output), buffer_(kReadBytes) {}

void PeStreams::Add(int pe, shmem::UniqueFd out, shmem::UniqueFd err) {
  streams_.push_back({pe, StreamKind::kOut, std::move(out), kUnlimited});
  streams_.push_back({pe, StreamKind::kError, std::move(err), kUnlimited});
}

void PeStreams::FillPolls(std::span<pollfd> polls) const {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const Stream& stream = streams_[i];
    polls[i] = {output_.Full(stream.kind) ? -1 : stream.fd.get(), POLLIN, 0};
  }
}

void PeStreams::Transfer(std::span<const pollfd> polls) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (polls[i].fd >= 0 && polls[i].revents != 0) Read(streams_[i]);
  }
}

void PeStreams::CloseWithoutOutput() {
  for (Stream& stream : streams_) {
    if (output_.Closed(stream.kind)) stream.fd.Reset();
  }
}

void PeStreams::Read(Stream& stream) {
  const std::size_t wanted = std::min(buffer_.size(), stream.left_bytes);
  const ssize_t got = read(stream.fd.get(), buffer_.data(), wanted);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) return Close(stream);
  Feed(stream, static_cast<std::size_t>(got));
  if (stream.left_bytes != kUnlimited) stream.left_bytes -= static_cast<std::size_t>(got);
  if (stream.left_bytes == 0) Close(stream);
}

void PeStreams::Feed(const Stream& stream, std::size_t bytes) {
  output_.Feed(stream.pe, stream.kind, {buffer_.data(), bytes});
}

void PeStreams::Close(Stream& stream) {
  output_.Finish(stream.pe, stream.kind);
  stream.fd.Reset();
}

void PeStreams::ReadOut(Stream& stream) {
  constexpr std::size_t kLargestPipe = std::size_t{1} << 20;
  for (std::size_t total = 0; total < kLargestPipe;) {
    const ssize_t got = read(stream.fd.get(), buffer_.data(), buffer_.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    Feed(stream, static_cast<std::size_t>(got));
    total += static_cast<std::size_t>(got);
  }
  Close(stream);
}

void PeStreams::Drain() {
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

bool PeStreams::Closed() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return !stream.fd.valid(); });
}

}  // namespace mori::launcher
