#include "input_pump.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace mori::launcher {

pollfd InputPump::Poll() const {
  if (!to_pe_.valid()) return {-1, 0, 0};
  if (!pending_.empty()) return {to_pe_.get(), POLLOUT, 0};
  return {from_, POLLIN, 0};
}

void InputPump::Transfer(const pollfd& poll_fd) {
  if (!to_pe_.valid() || poll_fd.revents == 0) return;
  if (pending_.empty()) {
    ReadInput();
  } else {
    WriteToPe();
  }
}

void InputPump::ReadInput() {
  std::array<char, 16 * 1024> buffer;
  const ssize_t got = read(from_, buffer.data(), buffer.size());
  if (got >= 0) return Put({buffer.data(), static_cast<std::size_t>(got)});
  if (errno != EINTR && errno != EAGAIN) to_pe_.Reset();
}

void InputPump::Put(std::string_view bytes) {
  if (bytes.empty()) to_pe_.Reset();
  if (to_pe_.valid()) pending_.append(bytes);
}

void InputPump::WriteToPe() {
  const ssize_t done = write(to_pe_.get(), pending_.data(), pending_.size());
  if (done > 0) {
    pending_.erase(0, static_cast<std::size_t>(done));
  } else if (done < 0 && errno != EINTR && errno != EAGAIN) {
    to_pe_.Reset();
  }
}

}  // namespace mori::launcher
