#include "node/id_exchange.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/bytes.hpp"
#include "bootstrap/rendezvous_messages.hpp"
#include "bootstrap/socket.hpp"
#include "node/abstract_socket.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kMaxReply = 8192;

/// One byte says what follows: the id, or why there is none.
Bytes EncodeReply(const Result<UniqueId>& id) {
  ByteWriter writer;
  writer.Int<std::uint8_t>(id.ok() ? 1 : 0);
  return id.ok() ? writer.Raw(id->bytes).Take() : writer.Raw(EncodeStatus(id.status())).Take();
}

Result<UniqueId> DecodeReply(ByteView reply) {
  ByteReader reader(reply);
  if (reader.Int<std::uint8_t>() != 1) return DecodeStatus(reader.Raw(reader.remaining()));
  const ByteView bytes = reader.Raw(UniqueId::kBytes);
  if (!reader.AtEnd()) return Error(ErrorCode::kMismatch, "what rank 0 sent is no unique id");
  UniqueId id;
  std::ranges::copy(bytes, id.bytes);
  return id;
}

}  // namespace

Result<UniqueId> IdExchange::Run(const std::function<Result<UniqueId>()>& make) const {
  if (rank_ != 0) return Fetch();
  const Result<UniqueId> id = make();
  if (size_ > 1) MORI_RETURN_IF_ERROR(Serve(id));
  return id;
}

Status IdExchange::Serve(const Result<UniqueId>& id) const {
  MORI_ASSIGN_OR_RETURN(const UniqueFd listener, ListenAbstract(AbstractNameFor(meeting_)));
  std::set<std::uint32_t> missing;
  for (int rank = 1; rank < size_; ++rank) missing.insert(static_cast<std::uint32_t>(rank));
  const Bytes reply = EncodeReply(id);
  while (!missing.empty()) {
    if (WaitFor(listener.get(), POLLIN, deadline_).code() == ErrorCode::kTimeout) {
      return Error(ErrorCode::kTimeout,
                   "{} of {} ranks did not come to init within {:.3g} s (MORI_BOOTSTRAP_TIMEOUT), "
                   "among them rank {}",
                   missing.size(), size_, deadline_.ElapsedSeconds(), *missing.begin());
    }
    MORI_ASSIGN_OR_RETURN(const UniqueFd caller, AcceptAbstract(listener.get()));
    std::array<std::uint8_t, 4> rank;
    const Deadline limit = deadline_.AtMost(std::chrono::seconds(2));
    if (!caller.valid() || !ReceiveAll(caller.get(), rank, limit).ok()) continue;
    if (SendAll(caller.get(), reply, limit).ok())
      missing.erase(ByteReader(rank).Int<std::uint32_t>());
  }
  return Status();
}

Result<UniqueId> IdExchange::Fetch() const {
  for (;;) {
    auto server = ConnectAbstract(AbstractNameFor(meeting_), deadline_);
    if (server.ok()) return AskFor(server->get());
    if (server.status().code() != ErrorCode::kPeerLost) return server.status();
    if (deadline_.Expired()) return RankZeroIsLate();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // rank 0 is not there yet
  }
}

Result<UniqueId> IdExchange::AskFor(int server) const {
  Bytes reply;
  Status status =
      SendAll(server, ByteWriter().Int(static_cast<std::uint32_t>(rank_)).Take(), deadline_);
  while (status.ok() && reply.size() <= kMaxReply) {  // until rank 0 closes: then all is here
    status = WaitFor(server, POLLIN, deadline_);
    if (status.ok()) status = ReceiveSome(server, kMaxReply, &reply).status();
  }
  if (status.code() == ErrorCode::kTimeout) return RankZeroIsLate();
  if (reply.empty()) {
    return Error(ErrorCode::kPeerLost, "rank 0 was lost while it made the unique id");
  }
  return DecodeReply(reply);
}

Status IdExchange::RankZeroIsLate() const {
  return Error(ErrorCode::kTimeout,
               "rank 0 did not come to init within {:.3g} s (MORI_BOOTSTRAP_TIMEOUT)",
               deadline_.ElapsedSeconds());
}

}  // namespace mori::shmem
