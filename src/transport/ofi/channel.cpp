#include "transport/ofi/channel.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/element_copy.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/word_atomic.hpp"

namespace mori::shmem::ofi {
namespace {

using detail::AtomicOp;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Puts and gets up to here travel in messages.
constexpr std::uint64_t kSmallBytes = kMaxRecordData;
static_assert(kSmallBytes >= Channel::kWholeBytes, "writes of the network may tear words");
/// Receives that are posted at a time: of all peers together.
constexpr std::size_t kReceives = 64;
/// Messages to one peer that the network has at a time, and those that wait for it.
constexpr std::size_t kMostUnderWay = 8;
constexpr std::size_t kMostWaiting = 2;
/// Writes and reads of one peer that the network has at a time.
constexpr std::size_t kMostTransfers = 32;
/// How long a wait spins where it may.
constexpr auto kSpin = 1ms;
/// How long the server rests while threads that wait do its work: twice as long each time, since
/// every end of a rest takes the CPU of such a thread for a while. What others want of this PE once
/// these threads do something else waits for the end of a rest, so for no longer than they had
/// waited before.
constexpr std::chrono::nanoseconds kShortestRest = 50us;
constexpr std::chrono::nanoseconds kLongestRest = 500us;
constexpr auto kAskEvery = 50ms;
/// While the network takes nothing it is asked again and again.
constexpr int kStuckPollMs = 1;
/// A PE that there was a connection to, and that takes nothing for so long, is gone: a connection
/// that stands takes what is sent in such amounts, also while the PE is stopped.
constexpr auto kReconnectLimit = 2s;
constexpr auto kProbeEvery = 100ms;
/// How often in a row the server finds nothing before it waits: writes and reads of others go on
/// within a look, without a sign of it. Where it has a CPU, it looks for so long, too: it takes
/// what comes faster than others send it, and to be woken for each part costs more than the part.
constexpr int kLooks = 8;
constexpr auto kLooking = 150us;
/// The longest that it serves without a look at anything else.
constexpr auto kServing = 10ms;
constexpr auto kFarewell = 1s;
/// Parts of a large get by messages that are under way together: the other side keeps as many.
constexpr std::size_t kPartsAtATime = 16;

/// Counts a thread among those that spin.
class Spinning {
 public:
  Spinning(std::atomic<int>* count, std::atomic<std::uint64_t>* all) : count_(count) {
    if (count_ == nullptr) return;
    all->fetch_add(1, std::memory_order_relaxed);
    count_->fetch_add(1, std::memory_order_relaxed);
  }
  Spinning(const Spinning&) = delete;
  ~Spinning() { End(); }
  void End() {
    if (count_ != nullptr) count_->fetch_sub(1, std::memory_order_relaxed);
    count_ = nullptr;
  }

 private:
  std::atomic<int>* count_;
};

Status WhyRefused(int pe, const RecordHeader& refusal) {
  if (refusal.op == static_cast<std::uint8_t>(Refusal::kDevice)) {
    return Error(ErrorCode::kSystem,
                 "the device of PE {} did not do what it was asked: its log says why", pe);
  }
  return Error(ErrorCode::kInternal, "PE {} has registered no such memory", pe);
}

}  // namespace

OfiChannel::OfiChannel(Parts parts)
    : remote_(std::move(parts.remote)),
      endpoint_(std::move(parts.endpoint)),
      regions_(std::move(parts.regions)),
      token_(parts.token),
      connect_limit_(parts.connect_limit) {
  for (int pe = 0; pe < remote_.n_pes; ++pe) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->pe = pe;
  }
}

Status OfiChannel::Start() {
  for (std::size_t i = 0; i < kReceives; ++i) {
    receives_.push_back(std::make_unique<Message>(Request::Kind::kReceive));
    PostReceive(receives_.back().get());
  }
  stop_ = UniqueFd::KeptFromChildren([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!stop_.valid()) return Status::FromErrno(errno, "make an eventfd");
  return StartThread([this] { Serve(); }, &server_);
}

OfiChannel::~OfiChannel() {
  if (::getpid() != owner_) {  // a forked child has neither the thread nor the connections
    if (server_.joinable()) server_.detach();
    return;
  }
  if (server_.joinable()) {
    const auto is_done = [this] {
      return std::all_of(peers_.begin(), peers_.end(), [](const auto& each) {
        const Lock lock(each->mutex);
        return each->is_lost || !each->is_connected ||
               (each->open == nullptr && each->full.empty() && each->sent.empty());
      });
    };
    for (const auto end = Clock::now() + kFarewell; !is_done() && Clock::now() < end;) {
      for (const auto& each : peers_) {
        const Lock lock(each->mutex);
        if (!each->is_lost) Send(*each, /*is_urgent=*/true);
      }
      std::this_thread::sleep_for(1ms);
    }
    is_stopped_ = true;
    WakeServer();
    server_.join();
  }
  endpoint_->Shut();  // before the memory of what it has not completed goes
}

void OfiChannel::Connect(int pe, fi_addr_t address, std::uint64_t token) {
  Peer& to = peer(pe);
  const Lock lock(to.mutex);
  to.address = address;
  to.token = token;
  to.is_connected = true;
  Send(to, /*is_urgent=*/true);  // answers to what came early
}

// ---- calls

Status OfiChannel::CheckReached(const Peer& peer) const {
  if (peer.is_lost) return peer.loss;
  if (peer.is_connected) return Status();
  return Error(ErrorCode::kInternal, "PE {} is not reached over this network", peer.pe);
}

Result<Regions::Found> OfiChannel::FindOwn(const Regions::Use& use, RemotePlace place,
                                           std::uint64_t bytes) const {
  const Regions::Found found = use.Find(place.key, place.address, bytes);
  if (found.memory != nullptr) return found;
  return Error(ErrorCode::kInternal, "PE {} has registered no {} bytes at {:#x} with key {:#x}",
               remote_.self, bytes, place.address, place.key);
}

Status OfiChannel::Put(int pe, RemotePlace to, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return Status();
  if (bytes > kSmallBytes && !IsSelf(pe) && (to.key & kByMessages) == 0)
    return TransferAll(pe, Operation::What::kWrite, const_cast<void*>(from), to, bytes, true);
  return PutNbi(pe, to, from, bytes);
}

Status OfiChannel::PutNbi(int pe, RemotePlace to, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return Status();
  if (IsSelf(pe)) {
    const Regions::Use use(*regions_);
    MORI_ASSIGN_OR_RETURN(const Regions::Found found, FindOwn(use, to, bytes));
    return found.Write(from, bytes);
  }
  if (bytes > kSmallBytes && (to.key & kByMessages) != 0) return PutByMessages(pe, to, from, bytes);
  if (bytes > kSmallBytes)
    return TransferAll(pe, Operation::What::kWrite, const_cast<void*>(from), to, bytes, false);
  Lock lock(peer(pe).mutex);
  return PutSmall(peer(pe), lock, to, from, bytes);
}

Status OfiChannel::PutSmall(Peer& peer, Lock& lock, RemotePlace to, const void* from,
                            std::uint64_t bytes) {
  return Append(peer, lock, bytes, true, [&](MessageWriter& writer, std::uint64_t) {
    writer.Put(to.key, to.address, from, bytes);
  });
}

Status OfiChannel::PutByMessages(int pe, RemotePlace to, const void* from, std::uint64_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  Lock lock(peer(pe).mutex);
  while (bytes > 0) {
    const std::uint64_t part = std::min(bytes, kSmallBytes);
    MORI_RETURN_IF_ERROR(PutSmall(peer(pe), lock, to, at, part));
    to.address += part;
    at += part;
    bytes -= part;
  }
  return Status();
}

Status OfiChannel::PutSignal(int pe, RemotePlace to, const void* from, std::uint64_t bytes,
                             RemotePlace word, std::uint64_t signal, SignalOp op) {
  // What is large is visible there before the signal leaves; what is small lies before it in the
  // same stream of messages.
  MORI_RETURN_IF_ERROR(Put(pe, to, from, bytes));
  return Post(pe, word, op == SignalOp::kAdd ? AtomicOp::kFetchAdd : AtomicOp::kSet, 8, signal);
}

Status OfiChannel::Post(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value) {
  if (IsSelf(pe)) return Fetch(pe, word, op, width, value, 0, nullptr);
  Lock lock(peer(pe).mutex);
  return Append(peer(pe), lock, sizeof value, true, [&](MessageWriter& writer, std::uint64_t) {
    writer.Post(word.key, word.address, op, width, value);
  });
}

Status OfiChannel::Tell(int pe, RemotePlace to, const std::uint64_t* words, std::uint64_t bytes) {
  const std::span<const std::uint64_t> all(words, bytes / sizeof *words);
  if (IsSelf(pe)) {
    const Regions::Use use(*regions_);
    MORI_ASSIGN_OR_RETURN(const Regions::Found at, FindOwn(use, to, bytes));
    return at.WriteWords(words, bytes);
  }
  Peer& at = peer(pe);
  Lock lock(at.mutex);
  MORI_RETURN_IF_ERROR(CheckReached(at));
  MORI_RETURN_IF_ERROR(MakeRoom(at, lock, bytes));
  at.open->writer.Tell(to.key, to.address, all);
  Send(at, /*is_urgent=*/true);
  return at.is_lost ? at.loss : Status();
}

Status OfiChannel::Fetch(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value,
                         std::uint64_t expected, std::uint64_t* found) {
  if (IsSelf(pe)) {
    const Regions::Use use(*regions_);
    MORI_ASSIGN_OR_RETURN(const Regions::Found own,
                          FindOwn(use, word, static_cast<std::uint64_t>(width)));
    MORI_ASSIGN_OR_RETURN(const std::uint64_t before, own.Atomic(op, width, value, expected));
    if (found != nullptr) *found = before;
    return Status();
  }
  Peer& to = peer(pe);
  Waited waited;
  std::uint64_t number = 0;
  Lock lock(to.mutex);
  MORI_RETURN_IF_ERROR(
      Append(to, lock, 3 * sizeof value, false, [&](MessageWriter& writer, std::uint64_t) {
        number = NewOperation(to, Operation::What::kReply, &waited)->number;
        writer.Fetch(word.key, word.address, op, width, value, expected, number);
      }));
  Send(to, /*is_urgent=*/true);
  MORI_RETURN_IF_ERROR(Await(to, lock, number, waited));
  if (found != nullptr) *found = waited.found;
  return waited.status;
}

Status OfiChannel::Get(int pe, void* to, RemotePlace from, std::uint64_t bytes) {
  if (bytes == 0) return Status();
  if (IsSelf(pe)) return GetNbi(pe, to, from, bytes);
  if (bytes > kSmallBytes && (from.key & kByMessages) != 0)
    return GetByMessages(pe, to, from, bytes);
  if (bytes > kSmallBytes) return TransferAll(pe, Operation::What::kRead, to, from, bytes, true);
  Peer& at = peer(pe);
  Waited waited;
  Lock lock(at.mutex);
  MORI_ASSIGN_OR_RETURN(const std::uint64_t number, AskFor(at, lock, to, from, bytes, &waited));
  Send(at, /*is_urgent=*/true);
  MORI_RETURN_IF_ERROR(Await(at, lock, number, waited));
  return waited.status;
}

Status OfiChannel::GetNbi(int pe, void* to, RemotePlace from, std::uint64_t bytes) {
  if (bytes == 0) return Status();
  if (IsSelf(pe)) {
    const Regions::Use use(*regions_);
    MORI_ASSIGN_OR_RETURN(const Regions::Found found, FindOwn(use, from, bytes));
    return found.Read(to, bytes);
  }
  if (bytes > kSmallBytes && (from.key & kByMessages) != 0)
    return GetByMessages(pe, to, from, bytes);
  if (bytes > kSmallBytes) return TransferAll(pe, Operation::What::kRead, to, from, bytes, false);
  Peer& at = peer(pe);
  Lock lock(at.mutex);
  return AskFor(at, lock, to, from, bytes, nullptr).status();
}

Result<std::uint64_t> OfiChannel::AskFor(Peer& peer, Lock& lock, void* to, RemotePlace from,
                                         std::uint64_t bytes, Waited* waited) {
  std::uint64_t number = 0;
  MORI_RETURN_IF_ERROR(
      Append(peer, lock, 2 * sizeof bytes, false, [&](MessageWriter& writer, std::uint64_t) {
        Operation* operation = NewOperation(peer, Operation::What::kReply, waited);
        operation->target = to;
        operation->bytes = bytes;
        number = operation->number;
        writer.Get(from.key, from.address, bytes, number);
      }));
  return number;
}

Status OfiChannel::GetByMessages(int pe, void* to, RemotePlace from, std::uint64_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  Peer& of = peer(pe);
  Lock lock(of.mutex);
  Status outcome;
  while (bytes > 0 && outcome.ok()) {
    std::array<Waited, kPartsAtATime> waited;
    std::array<std::uint64_t, kPartsAtATime> numbers{};
    std::size_t asked = 0;
    while (bytes > 0 && asked < kPartsAtATime) {
      const std::uint64_t part = std::min(bytes, kSmallBytes);
      const auto number = AskFor(of, lock, at, from, part, &waited[asked]);
      outcome = number.status();
      if (!outcome.ok()) break;
      numbers[asked++] = *number;
      at += part;
      from.address += part;
      bytes -= part;
    }
    if (outcome.ok()) Send(of, /*is_urgent=*/true);
    for (std::size_t n = 0; n < asked; ++n) {
      if (outcome.ok()) outcome = Await(of, lock, numbers[n], waited[n]);
      if (outcome.ok()) outcome = waited[n].status;
      if (!outcome.ok()) Forget(of, numbers[n]);
    }
  }
  return outcome;
}

Status OfiChannel::Fence() {
  // Looked at by the next operation to each PE. Pairs with its load; the counter orders nothing
  // else, since what was put before by this thread is behind the lock of its peer.
  fences_.fetch_add(1, std::memory_order_acq_rel);
  return Status();
}

Status OfiChannel::Quiet() {
  for (const auto& each : peers_) {
    const Lock lock(each->mutex);
    if (!each->is_lost && each->open != nullptr) Send(*each, /*is_urgent=*/true);
  }
  Status told;
  for (const auto& each : peers_) {
    Lock lock(each->mutex);
    const Status waited = AwaitAll(*each, lock);
    if (!waited.ok() && !each->is_lost) return waited;  // the wait was ended, not the PE
    const Status failure = std::exchange(each->failure, Status());
    if (told.ok()) told = failure;
  }
  return told;
}

Status OfiChannel::Quiet(int pe) {
  if (IsSelf(pe)) return Status();
  Peer& at = peer(pe);
  Lock lock(at.mutex);
  MORI_RETURN_IF_ERROR(CheckReached(at));
  const Status waited = AwaitAll(at, lock);
  const Status failure = std::exchange(at.failure, Status());
  return waited.ok() ? failure : waited;
}

void OfiChannel::Progress() {
  // The server may rest, where the caller spins: elsewhere it looks once, and then sleeps.
  if (remote_.may_spin) spins_.fetch_add(1, std::memory_order_relaxed);
  TryDrain();
  TellLosses();
}

std::uint64_t OfiChannel::Arrivals() { return rounds_.load(std::memory_order_acquire); }

void OfiChannel::AwaitArrival(std::uint64_t seen, std::chrono::nanoseconds limit) {
  std::unique_lock wait(wake_mutex_);
  waiting_.fetch_add(1);  // before the look at the rounds: see WakeWaiting
  wake_.wait_for(wait, limit, [&] { return rounds_.load() != seen; });
  waiting_.fetch_sub(1);
}

void OfiChannel::Synchronize() {
  // Whoever carries out what others send holds it.
  const std::lock_guard progress(progress_mutex_);
}

// ---- parts of calls

template <typename Write>
Status OfiChannel::Append(Peer& peer, Lock& lock, std::size_t bytes, bool has_effect, Write write) {
  MORI_RETURN_IF_ERROR(CheckReached(peer));
  MORI_RETURN_IF_ERROR(PassFence(peer, lock, /*is_transfer=*/false));
  MORI_RETURN_IF_ERROR(MakeRoom(peer, lock, bytes));
  write(peer.open->writer, peer.open->number);
  if (has_effect) {
    peer.open->has_effect = true;
    peer.effect = peer.open->number;
  }
  Send(peer, /*is_urgent=*/false);
  // Whoever waits for a reply hears of a loss there.
  return has_effect && peer.is_lost ? peer.loss : Status();
}

/// In the open message.
Status OfiChannel::MakeRoom(Peer& peer, Lock& lock, std::size_t bytes) {
  while (!OpenMessage(peer).writer.HasRoom(bytes)) {
    if (peer.full.size() < kMostWaiting) {
      CloseMessage(peer);
      SendFull(peer);
      if (peer.is_lost) return peer.loss;
      continue;
    }
    MORI_RETURN_IF_ERROR(WaitUntil(peer, lock, [&] { return peer.full.size() < kMostWaiting; }));
  }
  return Status();
}

OfiChannel::Operation* OfiChannel::NewOperation(Peer& peer, Operation::What what, Waited* waited) {
  auto made = std::make_unique<Operation>();
  Operation* operation = made.get();
  operation->pe = peer.pe;
  operation->what = what;
  operation->number = peer.next_operation++;
  operation->waited = waited;
  peer.operations.emplace(operation->number, std::move(made));
  return operation;
}

Status OfiChannel::TransferAll(int pe, Operation::What what, void* local, RemotePlace place,
                               std::uint64_t bytes, bool waits) {
  Peer& to = peer(pe);
  Lock lock(to.mutex);
  MORI_RETURN_IF_ERROR(CheckReached(to));
  if (what == Operation::What::kWrite)
    MORI_RETURN_IF_ERROR(PassFence(to, lock, /*is_transfer=*/true));
  const std::uint64_t most = endpoint_->info().ep_attr->max_msg_size;
  auto* at = static_cast<std::byte*>(local);
  for (; bytes > most; bytes -= most, at += most, place.address += most)
    MORI_RETURN_IF_ERROR(Transfer(to, lock, what, at, place, most, nullptr));
  Waited waited;
  MORI_RETURN_IF_ERROR(Transfer(to, lock, what, at, place, bytes, waits ? &waited : nullptr));
  if (!waits) return Status();
  const std::uint64_t number = to.next_operation - 1;
  MORI_RETURN_IF_ERROR(Await(to, lock, number, waited));
  return waited.status;
}

Status OfiChannel::Transfer(Peer& peer, Lock& lock, Operation::What what, void* local,
                            RemotePlace place, std::uint64_t bytes, Waited* waited) {
  for (;;) {
    MORI_RETURN_IF_ERROR(
        WaitUntil(peer, lock, [&] { return peer.transfers < kMostTransfers && !peer.is_stuck; }));
    Operation* operation = NewOperation(peer, what, waited);
    operation->bytes = bytes;
    const ssize_t result = what == Operation::What::kWrite
                               ? endpoint_->Write(peer.address, place, local, bytes, operation)
                               : endpoint_->Read(peer.address, place, local, bytes, operation);
    if (result == 0) {
      peer.stuck_since.reset();
      ++peer.transfers;
      return Status();
    }
    peer.operations.erase(--peer.next_operation);
    if (result != -FI_EAGAIN) {
      Lose(peer, endpoint_->library().ErrorText(result));
      return peer.loss;
    }
    NoteStuck(peer);
  }
}

Status OfiChannel::Await(Peer& peer, Lock& lock, std::uint64_t number, const Waited& waited) {
  const Status status = WaitUntil(peer, lock, [&] { return waited.is_done; });
  if (!status.ok()) Forget(peer, number);
  return status;
}

void OfiChannel::Forget(Peer& peer, std::uint64_t number) {
  const auto found = peer.operations.find(number);
  if (found == peer.operations.end()) return;
  found->second->waited = nullptr;
  found->second->target = nullptr;
}

Status OfiChannel::PassFence(Peer& peer, Lock& lock, bool is_transfer) {
  const std::uint64_t fences = fences_.load(std::memory_order_acquire);
  std::uint64_t& passed = is_transfer ? peer.fenced_transfers : peer.fenced_messages;
  if (passed == fences) return Status();
  MORI_RETURN_IF_ERROR(AwaitWrites(peer, lock));
  if (is_transfer) MORI_RETURN_IF_ERROR(AwaitMessages(peer, lock));
  if (peer.open != nullptr) peer.open->writer.EndRun();
  passed = std::max(passed, fences);
  return Status();
}

Status OfiChannel::AwaitWrites(Peer& peer, Lock& lock) {
  const std::uint64_t last = peer.next_operation - 1;
  return WaitUntil(peer, lock, [&] {
    return std::none_of(
        peer.operations.begin(), peer.operations.upper_bound(last),
        [](const auto& each) { return each.second->what == Operation::What::kWrite; });
  });
}

Status OfiChannel::AwaitMessages(Peer& peer, Lock& lock) {
  const std::uint64_t last = peer.effect;
  if (peer.applied >= last) return Status();
  Send(peer, /*is_urgent=*/true);
  return WaitUntil(peer, lock, [&] { return peer.applied >= last; });
}

Status OfiChannel::AwaitAll(Peer& peer, Lock& lock) {
  if (peer.is_lost) return peer.loss;
  const std::uint64_t last = peer.next_operation - 1;
  if (peer.open != nullptr) Send(peer, /*is_urgent=*/true);
  MORI_RETURN_IF_ERROR(AwaitMessages(peer, lock));
  return WaitUntil(
      peer, lock, [&] { return peer.operations.empty() || peer.operations.begin()->first > last; });
}

template <typename Condition>
Status OfiChannel::WaitUntil(Peer& peer, Lock& lock, Condition condition) {
  if (condition()) return Status();
  const auto start = Clock::now();
  auto ask_at = start + kAskEvery;
  const auto spin_until = remote_.may_spin ? start + kSpin : start;
  Spinning spinning(remote_.may_spin ? &spinning_ : nullptr, &spins_);
  for (;;) {
    const std::uint64_t rounds = rounds_.load(std::memory_order_acquire);
    if (condition()) return Status();
    if (peer.is_lost) return peer.loss;
    lock.unlock();
    const auto now = Clock::now();
    if (now < spin_until) {
      TryDrain();
    } else {
      spinning.End();
      std::unique_lock wait(wake_mutex_);
      waiting_.fetch_add(1);
      wake_.wait_until(wait, ask_at, [&] { return rounds_.load() != rounds; });
      waiting_.fetch_sub(1);
    }
    TellLosses();
    Status verdict;
    if (now >= ask_at) {
      ask_at = now + kAskEvery;
      if (remote_.keeps_waiting)
        verdict = remote_.keeps_waiting(
            std::chrono::duration_cast<std::chrono::milliseconds>(now - start));
    }
    lock.lock();
    MORI_RETURN_IF_ERROR(verdict);
  }
}

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

// ---- the thread that serves others

void OfiChannel::WakeServer() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
}

bool OfiChannel::OthersServe(std::uint64_t* spins) const {
  const std::uint64_t now = spins_.load(std::memory_order_relaxed);
  return std::exchange(*spins, now) != now || spinning_.load(std::memory_order_relaxed) > 0;
}

void OfiChannel::Serve() {
  ::prctl(PR_SET_TIMERSLACK, 1000UL);  // of this thread, in ns: its rests are short
  auto probe_at = Clock::now();
  std::uint64_t spins = 0;
  auto rest = kShortestRest;
  while (!is_stopped_) {
    LookAfterStuck();
    if (const auto now = Clock::now(); now >= probe_at) {
      probe_at = now + kProbeEvery;
      ProbeSilent();
      if (has_connected_.exchange(false)) endpoint_->connections().CloseOnExec();
    }
    TellLosses();
    if (OthersServe(&spins)) {
      std::this_thread::sleep_for(rest);
      rest = std::min(2 * rest, kLongestRest);
      continue;
    }
    rest = kShortestRest;
    if (!ServeWhatComes()) continue;
    pollfd waits[] = {{endpoint_->wait_descriptor(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    const int ready = ::poll(waits, 2, stuck_ > 0 ? kStuckPollMs : 100);
    if (ready < 0) std::this_thread::sleep_for(kShortestRest);  // goes on without
    std::uint64_t ignored = 0;
    if (waits[1].revents != 0) (void)!::read(stop_.get(), &ignored, sizeof ignored);
  }
}

bool OfiChannel::ServeWhatComes() {
  const auto looking = remote_.may_spin ? std::chrono::nanoseconds(kLooking) : 0ns;
  auto now = Clock::now();
  auto until = now + looking;
  const auto end = now + kServing;
  for (int empty = 0; now < end && spinning_.load(std::memory_order_relaxed) == 0;) {
    const std::lock_guard progress(progress_mutex_);
    now = Clock::now();
    if (Drain()) {
      empty = 0;
      until = now + looking;
    } else if (++empty >= kLooks && now >= until) {
      return endpoint_->MayWait();
    }
  }
  return false;
}

void OfiChannel::LookAfterStuck() {
  if (stuck_ == 0) return;
  bool is_new = false;
  for (const auto& each : peers_) {
    const Lock lock(each->mutex);
    if (!each->is_stuck) continue;
    const auto since = Clock::now() - each->stuck_since.value_or(Clock::now());
    const auto limit = each->has_taken ? kReconnectLimit : connect_limit_;
    if (since > limit && each->sent.empty() && each->transfers == 0) {
      Lose(*each, fmt::format("it has taken nothing for {} s", limit / 1s));
      is_new = true;
      continue;
    }
    if (each->full.empty()) {  // a write or a read: its caller tries again
      NoteUnstuck(*each);
      is_new = true;
    } else {
      SendFull(*each);
      is_new = is_new || !each->is_stuck;
    }
  }
  if (is_new) WakeWaiting();
}

void OfiChannel::ProbeSilent() {
  const auto silent_since = Clock::now() - kProbeEvery;
  for (const auto& each : peers_) {
    const Lock lock(each->mutex);
    const bool is_awaited = each->applied < each->effect || !each->operations.empty();
    if (!is_awaited || each->is_lost || each->sent_at > silent_since) continue;
    if (each->open == nullptr && each->full.empty() && each->sent.empty()) OpenMessage(*each);
    Send(*each, /*is_urgent=*/true);
  }
}

void OfiChannel::TellLosses() {
  if (!has_losses_.load(std::memory_order_acquire)) return;
  std::vector<std::pair<int, std::string>> losses;
  {
    const std::lock_guard lock(losses_mutex_);
    losses.swap(losses_);
    has_losses_ = false;
  }
  for (const auto& [pe, why] : losses) {
    if (remote_.on_loss) remote_.on_loss(pe, why);
  }
  WakeWaiting();
}

}  // namespace mori::shmem::ofi
