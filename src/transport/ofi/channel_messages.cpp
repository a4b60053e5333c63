// The messages of a channel: how they leave, what comes of them, and what those of others ask for.
#include <algorithm>
#include <array>

#include "base/element_copy.hpp"
#include "base/log.hpp"
#include "base/word_atomic.hpp"
#include "transport/ofi/channel.hpp"

namespace mori::shmem::ofi {
namespace {

using detail::AtomicOp;
using Clock = std::chrono::steady_clock;

/// Messages to one peer that the network has at a time.
constexpr std::size_t kMostUnderWay = 8;

Status WhyRefused(int pe, const RecordHeader& refusal) {
  if (refusal.op == static_cast<std::uint8_t>(Refusal::kDevice)) {
    return Error(ErrorCode::kSystem,
                 "the device of PE {} did not do what it was asked: its log says why", pe);
  }
  return Error(ErrorCode::kInternal, "PE {} has registered no such memory", pe);
}

}  // namespace

// ---- sending

OfiChannel::Message& OfiChannel::OpenMessage(Peer& peer) {
  if (peer.open == nullptr) {
    peer.open = std::make_unique<Message>(Request::Kind::kSend);
    peer.open->pe = peer.pe;
    peer.open->number = peer.next_number++;
  }
  return *peer.open;
}

void OfiChannel::CloseMessage(Peer& peer) { peer.full.push_back(std::move(peer.open)); }

void OfiChannel::Send(Peer& peer, bool is_urgent) {
  if (peer.open != nullptr && peer.full.empty() &&
      (peer.sent.empty() || (is_urgent && peer.sent.size() < kMostUnderWay)))
    CloseMessage(peer);
  SendFull(peer);
}

void OfiChannel::SendFull(Peer& peer) {
  while (!peer.full.empty() && peer.sent.size() < kMostUnderWay && !peer.is_lost) {
    if (!peer.is_connected) return;
    Message* message = peer.full.front().get();
    message->writer.Finish(
        {peer.token, message->number, peer.received, static_cast<std::uint32_t>(remote_.self), 0});
    const ssize_t result =
        endpoint_->Send(peer.address, message->bytes, message->writer.used(), message);
    if (result == -FI_EAGAIN) return NoteStuck(peer);
    if (result != 0) return Lose(peer, endpoint_->library().ErrorText(result));
    peer.told = peer.received;
    peer.sent_at = Clock::now();
    peer.stuck_since.reset();
    NoteUnstuck(peer);
    peer.sent.push_back(std::move(peer.full.front()));
    peer.full.pop_front();
  }
}

void OfiChannel::NoteStuck(Peer& peer) {
  if (!peer.stuck_since) peer.stuck_since = Clock::now();
  if (!std::exchange(peer.is_stuck, true) && stuck_.fetch_add(1) == 0) WakeServer();
}

void OfiChannel::NoteUnstuck(Peer& peer) {
  if (std::exchange(peer.is_stuck, false)) stuck_.fetch_sub(1);
}

void OfiChannel::NoteFailure(Peer& peer, Status failure) {
  if (peer.failure.ok()) peer.failure = std::move(failure);
}

void OfiChannel::Lose(Peer& peer, const std::string& why) {
  if (peer.is_lost) return;
  peer.loss = Error(ErrorCode::kPeerLost, "{} is lost: {}", remote_.name(peer.pe), why);
  if (peer.applied < peer.effect || !peer.operations.empty()) NoteFailure(peer, peer.loss);
  peer.open.reset();
  peer.full.clear();
  NoteUnstuck(peer);
  peer.is_lost = true;
  const std::lock_guard lock(losses_mutex_);
  losses_.emplace_back(peer.pe, why);
  has_losses_ = true;
  WakeServer();
}

// ---- progress

bool OfiChannel::TryDrain() {
  const std::unique_lock progress(progress_mutex_, std::try_to_lock);
  return progress.owns_lock() && Drain();
}

bool OfiChannel::Drain() {
  constexpr std::size_t kAtATime = 16;
  fi_cq_msg_entry entries[kAtATime];
  bool is_new = false;
  for (;;) {
    const ssize_t count = ::fi_cq_read(endpoint_->queue(), entries, kAtATime);
    if (count > 0) {
      Handover::Take();
      for (ssize_t i = 0; i < count; ++i) Finish(entries[i]);
      is_new = true;
      if (static_cast<std::size_t>(count) == kAtATime) continue;
    } else if (count == -FI_EAVAIL) {
      FinishFailed();
      is_new = true;
      continue;
    }
    break;
  }
  if (!unposted_.empty()) {
    for (Message* each : std::exchange(unposted_, {})) PostReceive(each);
  }
  if (!is_new) return false;
  TellOwed();
  WakeWaiting();
  return true;
}

void OfiChannel::PostReceive(Message* message) {
  const ssize_t result = endpoint_->Receive(message->bytes, kMessageBytes, message);
  if (result != 0) unposted_.push_back(message);
}

void OfiChannel::Finish(const fi_cq_msg_entry& entry) {
  auto* request = static_cast<Request*>(entry.op_context);
  if (request == nullptr) return;
  switch (request->kind) {
    case Request::Kind::kReceive: {
      auto* message = static_cast<Message*>(request);
      Take({message->bytes, std::min(entry.len, kMessageBytes)});
      PostReceive(message);
      break;
    }
    case Request::Kind::kSend: FinishSend(static_cast<Message*>(request), ""); break;
    case Request::Kind::kTransfer: FinishTransfer(static_cast<Operation*>(request), ""); break;
  }
}

void OfiChannel::FinishFailed() {
  fi_cq_err_entry entry{};
  if (::fi_cq_readerr(endpoint_->queue(), &entry, 0) != 1) return;
  Handover::Take();
  auto* request = static_cast<Request*>(entry.op_context);
  if (request == nullptr) return;  // one failure makes several entries, one of them with a context
  const std::string why = endpoint_->library().ErrorText(entry.err);
  switch (request->kind) {
    case Request::Kind::kReceive:
      if (entry.err != FI_ECANCELED) PostReceive(static_cast<Message*>(request));
      break;
    case Request::Kind::kSend: FinishSend(static_cast<Message*>(request), why); break;
    case Request::Kind::kTransfer: FinishTransfer(static_cast<Operation*>(request), why); break;
  }
}

void OfiChannel::FinishSend(Message* message, const std::string& error) {
  Peer& to = peer(message->pe);
  const Lock lock(to.mutex);
  std::erase_if(to.sent, [message](const auto& each) { return each.get() == message; });
  if (!error.empty()) return Lose(to, error);
  if (!std::exchange(to.has_taken, true)) has_connected_ = true;
  Send(to, /*is_urgent=*/false);
}

void OfiChannel::FinishTransfer(Operation* operation, const std::string& error) {
  Peer& to = peer(operation->pe);
  const Lock lock(to.mutex);
  --to.transfers;
  if (!error.empty()) Lose(to, error);
  if (operation->waited != nullptr) {
    operation->waited->is_done = true;
    if (!error.empty()) operation->waited->status = to.loss;
  }
  to.operations.erase(operation->number);
}

void OfiChannel::Take(std::span<const std::byte> bytes) {
  MessageReader reader(bytes);
  if (!reader.header() || reader.header()->token != token_ ||
      reader.header()->from >= peers_.size()) {
    LogDebug("network: {} bytes that are no message for this PE", bytes.size());
    return;
  }
  const MessageHeader& header = *reader.header();
  Peer& from = peer(static_cast<int>(header.from));
  bool is_owed = false;
  {
    const Lock lock(from.mutex);
    if (from.is_lost) return;
    if (header.number != from.received + 1 || header.applied >= from.next_number) {
      return Lose(from, fmt::format("message {} came after {}", header.number, from.received));
    }
    from.applied = std::max(from.applied, header.applied);
    if (header.number == 1) has_connected_ = true;
  }
  {
    const Regions::Use use(*regions_);
    while (const std::optional<Record> record = reader.Next())
      CarryOut(from, *record, use, &is_owed);
  }
  const Lock lock(from.mutex);
  if (!reader.ok()) return Lose(from, "it sent what is no message");
  from.received = header.number;
  if (is_owed && !std::exchange(from.is_owed, true)) owed_.push_back(&from);
}

void OfiChannel::CarryOut(Peer& peer, const Record& record, const Regions::Use& use,
                          bool* is_owed) {
  const RecordHeader& header = record.header;
  const auto op = static_cast<AtomicOp>(header.op);
  // What was carried out before is visible before this.
  std::atomic_thread_fence(std::memory_order_release);
  switch (header.kind) {
    case RecordKind::kPut: {
      *is_owed = true;
      const Regions::Found at = use.Find(header.key, header.address, header.bytes);
      if (at.memory == nullptr) return RefuseFor(peer, 0, Status());
      const Status put = at.Write(record.data, header.bytes);
      if (!put.ok()) RefuseFor(peer, 0, put);
      return;
    }
    case RecordKind::kPost: {
      *is_owed = true;
      const Regions::Found at = use.Find(header.key, header.address, header.width);
      if (at.memory == nullptr || !IsWordAtomic(op, header.width, at.memory))
        return RefuseFor(peer, 0, Status());
      const auto posted = at.Atomic(op, header.width, record.Word(0), 0);
      if (!posted.ok()) RefuseFor(peer, 0, posted.status());
      return;
    }
    case RecordKind::kTell: {
      const Regions::Found at = use.Find(header.key, header.address, header.bytes);
      // Of a world that this PE has left: its words are gone, and nobody waits for an answer.
      if (at.memory == nullptr || !IsWordAtomic(AtomicOp::kSet, sizeof(std::uint64_t), at.memory))
        return;
      const Status told = at.WriteWords(record.data, header.bytes);
      if (!told.ok()) LogDebug("network: words of PE {}: {}", peer.pe, told.message());
      return;
    }
    case RecordKind::kFetch: {
      const std::uint64_t ticket = record.Word(2);
      const Regions::Found at = use.Find(header.key, header.address, header.width);
      if (at.memory == nullptr || !IsWordAtomic(op, header.width, at.memory))
        return RefuseFor(peer, ticket, Status());
      // What was there before is asked for.
      const AtomicOp fetching = op == AtomicOp::kSet ? AtomicOp::kSwap : op;
      const auto found = at.Atomic(fetching, header.width, record.Word(0), record.Word(1));
      if (!found.ok()) return RefuseFor(peer, ticket, found.status());
      return Answer(peer, 0, [&](MessageWriter& writer) { writer.Reply(ticket, *found); });
    }
    case RecordKind::kGet: {
      const std::uint64_t ticket = record.Word(0), bytes = record.Word(1);
      const Regions::Found at = use.Find(header.key, header.address, bytes);
      if (at.memory == nullptr || bytes > kMaxRecordData) return RefuseFor(peer, ticket, Status());
      const std::byte* data = at.memory;
      // As far from a multiple of 8 as the memory: words stay whole.
      alignas(8) std::array<std::byte, kMaxRecordData + 8> copy;
      if (at.access != nullptr) {
        std::byte* const to = copy.data() + reinterpret_cast<std::uintptr_t>(at.memory) % 8;
        const Status got = at.Read(to, bytes);
        if (!got.ok()) return RefuseFor(peer, ticket, got);
        data = to;
      }
      return Answer(peer, bytes,
                    [&](MessageWriter& writer) { writer.ReplyData(ticket, data, bytes); });
    }
    case RecordKind::kReply:
    case RecordKind::kRefusal: return TakeReply(peer, record);
  }
}

/// `why` is success where there is no such memory.
void OfiChannel::RefuseFor(Peer& peer, std::uint64_t ticket, const Status& why) {
  if (!why.ok() && !std::exchange(has_warned_, true))
    LogWarn("what {} asked of this PE's memory failed: {}", remote_.name(peer.pe), why.message());
  const Refusal reason = why.ok() ? Refusal::kNoMemory : Refusal::kDevice;
  Answer(peer, 0, [&](MessageWriter& writer) { writer.Refuse(ticket, reason); });
}

void OfiChannel::TakeReply(Peer& peer, const Record& record) {
  const RecordHeader& header = record.header;
  const Lock lock(peer.mutex);
  const bool is_refused = header.kind == RecordKind::kRefusal;
  const Status refused = is_refused ? WhyRefused(peer.pe, header) : Status();
  const auto found = peer.operations.find(header.key);
  if (found == peer.operations.end() || found->second->what != Operation::What::kReply) {
    if (is_refused) NoteFailure(peer, refused);
    return;
  }
  Operation& operation = *found->second;
  if (!is_refused && operation.target != nullptr && header.bytes == operation.bytes)
    CopyElements(operation.target, record.data, header.bytes);
  if (operation.waited != nullptr) {
    *operation.waited = {true, refused, header.address};
  } else if (is_refused) {
    NoteFailure(peer, refused);
  }
  peer.operations.erase(found);
}

template <typename Write>
void OfiChannel::Answer(Peer& peer, std::size_t bytes, Write write) {
  const Lock lock(peer.mutex);
  if (peer.is_lost) return;
  // Never waits: as many answers as the other side waits for may be on their way.
  if (!OpenMessage(peer).writer.HasRoom(bytes)) {
    CloseMessage(peer);
    OpenMessage(peer);
  }
  write(peer.open->writer);
  if (!std::exchange(peer.is_owed, true)) owed_.push_back(&peer);
}

void OfiChannel::TellOwed() {
  for (Peer* each : std::exchange(owed_, {})) {
    const Lock lock(each->mutex);
    each->is_owed = false;
    if (each->is_lost || (each->open == nullptr && each->told == each->received)) continue;
    OpenMessage(*each);
    Send(*each, /*is_urgent=*/true);
  }
}

void OfiChannel::WakeWaiting() {
  rounds_.fetch_add(1);
  if (waiting_.load() == 0) return;
  const std::lock_guard lock(wake_mutex_);
  wake_.notify_all();
}

}  // namespace mori::shmem::ofi
