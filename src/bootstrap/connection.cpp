#include "bootstrap/connection.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "bootstrap/socket.hpp"

namespace mori::shmem {

void Connection::Queue(const Frame& frame) {
  if (cannot_send_) return;
  if (!has_queued()) {
    outgoing_.clear();
    sent_ = 0;
  }
  sealer_.Seal(EncodeFrame(frame), &outgoing_);
}

Status Connection::Flush() {
  if (cannot_send_) return Error(ErrorCode::kPeerLost, "the connection broke before");
  while (has_queued()) {
    const auto sent = SendSome(fd(), ByteView(outgoing_).subspan(sent_));
    if (!sent.ok()) {
      cannot_send_ = true;
      outgoing_.clear();
      sent_ = 0;
      return sent.status();
    }
    if (*sent == 0) return Status();
    sent_ += *sent;
  }
  return Status();
}

Status Connection::Send(const Frame& frame, const Deadline& deadline) {
  Queue(frame);
  for (;;) {
    MORI_RETURN_IF_ERROR(Flush());
    if (!has_queued()) return Status();
    MORI_RETURN_IF_ERROR(WaitFor(fd(), POLLOUT, deadline));
  }
}

bool Connection::IsDelivered() const {
  if (cannot_send_) return true;
  int not_acknowledged = 0;
  return !has_queued() &&
         (::ioctl(fd(), SIOCOUTQ, &not_acknowledged) != 0 || not_acknowledged == 0);
}

Result<Frame> Connection::Receive(const Deadline& deadline) {
  for (;;) {
    MORI_ASSIGN_OR_RETURN(std::optional<Frame> frame, Next());
    if (frame) return std::move(*frame);
    MORI_RETURN_IF_ERROR(WaitFor(fd(), POLLIN, deadline));
    MORI_RETURN_IF_ERROR(ReadSome());
  }
}

Status Connection::ReadSome() {
  constexpr std::size_t kChunk = 64 << 10;
  const auto got = ReceiveSome(fd(), kChunk, opener_.buffer());
  const Status opened = opener_.Open(parser_.buffer());
  return opened.ok() ? got.status() : opened;
}

}  // namespace mori::shmem
