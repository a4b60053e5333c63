#include "transport/ofi/channel.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/thread.hpp"

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
/// Messages to one peer that wait for the network.
constexpr std::size_t kMostWaiting = 2;
/// Writes and reads of one peer that the network has at a time.
constexpr std::size_t kMostTransfers = 32;
/// How long a wait spins where it may.
constexpr auto kSpin = 1ms;
constexpr auto kAskEvery = 50ms;
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

}  // namespace mori::shmem::ofi
