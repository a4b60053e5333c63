// Stream sockets with deadlines: every wait is bounded, every call is safe against signals and
// SIGPIPE.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "bootstrap/address.hpp"

namespace mori::shmem {

// All sockets made here are non-blocking, closed on exec, and closed in forked children.

inline constexpr std::chrono::seconds kSilence{30};

/// Whether the other host's system has answered and takes nothing more, since its process does not
/// read. It is asked at growing intervals then, up to two minutes, and is silent only when several
/// of these questions stay `unanswered`.
bool IsFull(std::uint32_t not_acknowledged, std::uint32_t not_sent, int unanswered);
/// How long nothing has come from the other host's system, not even an acknowledgement. 0 while
/// the connection is full.
std::chrono::milliseconds SilentFor(int fd);
/// Changes how often the other host's system is asked, so that `SilentFor()` reaches `silence` only
/// where it does not answer.
void AskWithin(int fd, std::chrono::seconds silence);

/// Listens on `address`, on a free port if `port` is 0.
Result<UniqueFd> ListenOn(const IpAddress& address, std::uint16_t port);
/// Port that a listening socket was given.
Result<std::uint16_t> PortOf(int fd);

/// A connected socket, without delay for small messages. This one, and those accepted, end with
/// kPeerLost once the other host's system has not answered for `kSilence`, as after a loss of
/// power: the kernel asks it every few seconds while nothing else is under way. A process that is
/// stopped has a system that answers, so it is late and not lost.
/// @return kPeerLost if nobody listens there or it cannot be reached, kTimeout, or kSystem if this
///   process gets no socket.
Result<UniqueFd> ConnectTo(const IpAddress& address, std::uint16_t port, const Deadline& deadline);

/// Takes a waiting connection, and fills `from` unless it is null; an empty descriptor if none
/// waits, or the one that did has failed meanwhile.
/// @return kSystem for a shortage of descriptors or memory here.
Result<UniqueFd> AcceptFrom(int listening_fd, IpAddress* from = nullptr);

/// Whether an errno of accept(2) is a shortage of this process or machine, not a fault of the
/// connection that was to be accepted.
bool IsShortage(int error);

/// Waits for `events` of poll(2).
/// @return kTimeout at the deadline.
Status WaitFor(int fd, short events, const Deadline& deadline);

/// Sends what the socket takes at once.
/// @return the number of bytes, 0 when it takes none; kPeerLost when the other end is gone.
Result<std::size_t> SendSome(int fd, ByteView bytes);

/// Sends all of `bytes`.
/// @return kTimeout, or kPeerLost if the other end is gone.
Status SendAll(int fd, ByteView bytes, const Deadline& deadline);

/// Fills all of `bytes`.
/// @return kTimeout, or kPeerLost if the other end is gone.
Status ReceiveAll(int fd, std::span<std::uint8_t> bytes, const Deadline& deadline);

/// Reads what is there, up to `max_bytes`, behind the end of `buffer`.
/// @return the number of bytes; 0 when nothing waits; kPeerLost when the other end is gone.
Result<std::size_t> ReceiveSome(int fd, std::size_t max_bytes, Bytes* buffer);

}  // namespace mori::shmem
