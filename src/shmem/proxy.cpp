#include "shmem/proxy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "node/waiter.hpp"
#include "shmem/faults.hpp"

namespace mori::shmem {
namespace {

using detail::AtomicOp;
using device::RingAtomic;
using device::RingCommand;
using device::RingOp;

static_assert(static_cast<int>(AtomicOp::kFetch) == static_cast<int>(RingAtomic::kFetch) &&
              static_cast<int>(AtomicOp::kSet) == static_cast<int>(RingAtomic::kSet) &&
              static_cast<int>(AtomicOp::kFetchAdd) == static_cast<int>(RingAtomic::kFetchAdd) &&
              static_cast<int>(AtomicOp::kFetchAnd) == static_cast<int>(RingAtomic::kFetchAnd) &&
              static_cast<int>(AtomicOp::kFetchOr) == static_cast<int>(RingAtomic::kFetchOr) &&
              static_cast<int>(AtomicOp::kFetchXor) == static_cast<int>(RingAtomic::kFetchXor) &&
              static_cast<int>(AtomicOp::kSwap) == static_cast<int>(RingAtomic::kSwap) &&
              static_cast<int>(AtomicOp::kCompareSwap) ==
                  static_cast<int>(RingAtomic::kCompareSwap));

/// By the numbers that kernels know.
SignalOp SignalOf(const RingCommand& command) {
  return command.code == static_cast<std::uint32_t>(RingAtomic::kSet) ? SignalOp::kSet
                                                                      : SignalOp::kAdd;
}

/// What a kernel of a faulty program may have written.
Status CheckCommand(const RingCommand& command, int n_pes) {
  const bool is_of_all = command.op == RingOp::kFence || command.op == RingOp::kPutToAll ||
                         (command.op == RingOp::kQuiet && command.pe == device::kAllPes);
  const bool is_atomic = command.op == RingOp::kPost || command.op == RingOp::kFetch;
  const bool is_value = command.op == RingOp::kPutValue || command.op == RingOp::kGetValue;
  if (!is_of_all && command.pe >= static_cast<std::uint32_t>(n_pes)) {
    return Error(ErrorCode::kInvalidArgument, "PE {} is out of range: there are PEs 0 to {}",
                 command.pe, n_pes - 1);
  }
  if ((is_atomic && ((command.width != 4 && command.width != 8) ||
                     command.code > static_cast<std::uint32_t>(RingAtomic::kCompareSwap) ||
                     command.word % command.width != 0)) ||
      (is_value && command.bytes > sizeof(std::uint64_t)) ||
      (command.op == RingOp::kPutSignal && command.word % sizeof(std::uint64_t) != 0)) {
    return Error(ErrorCode::kInvalidArgument,
                 "a command {} of code {} on {} bytes at offset {:#x} is none",
                 static_cast<unsigned>(command.op), command.code, command.width, command.word);
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::Start(Parts parts) {
  std::unique_ptr<Proxy> proxy(new Proxy(std::move(parts)));
  MORI_RETURN_IF_ERROR(StartThread([self = proxy.get()] { self->Run(); }, &proxy->thread_));
  return proxy;
}

Proxy::~Proxy() {
  // Release: what this thread did before, as the last entries of a test, is seen by the last look.
  is_ending_.store(true, std::memory_order_release);
  if (thread_.joinable()) thread_.join();
  // Nobody serves the ring any more: a kernel that runs too late waits for nothing.
  device::RingDone& done = parts_.pages->done;
  __atomic_store_n(&done.failed, device::kRingIsOver, __ATOMIC_RELAXED);
  // Release: who sees the count sees that all has failed.
  __atomic_store_n(&done.count, device::kRingIsOver, __ATOMIC_RELEASE);
}

void Proxy::Run() {
  constexpr std::uint32_t kMask = RingPages::kEntries - 1;
  Waiter waiter(parts_.may_spin);
  for (bool is_last_look = false;;) {
    device::RingEntry entry;
    const device::RingEntry& place = parts_.pages->entries[next_ & kMask];
    if (!device::TakeEntry(&place, device::LapOf(next_, kMask), &entry)) {
      if (is_last_look) return;
      // Acquire: pairs with the end's release; one look more.
      is_last_look = is_ending_.load(std::memory_order_acquire);
      if (!is_last_look) waiter.Pause();
      continue;
    }
    const RingCommand command = device::CommandOf(entry);
    std::uint64_t result = 0;
    const Status done = CarryOut(command, &result);
    if (done.code() == ErrorCode::kPeerLost && parts_.await_loss) parts_.await_loss();
    if (!done.ok()) Fail(command, done);
    // Relaxed: the count behind it releases.
    __atomic_store_n(&parts_.pages->results[next_ & kMask], result, __ATOMIC_RELAXED);
    ++next_;
    // Release: who sees the count has the result and what a get has brought, and may write to the
    // source of a put and to the entry.
    __atomic_store_n(&parts_.pages->done.count, next_, __ATOMIC_RELEASE);
    waiter = Waiter(parts_.may_spin);
  }
}

Status Proxy::CarryOut(const RingCommand& command, std::uint64_t* result) {
  MORI_RETURN_IF_ERROR(CheckCommand(command, parts_.n_pes));
  Channel& channel = *parts_.channel;
  const int pe = static_cast<int>(command.pe);
  switch (command.op) {
    case RingOp::kFence: return channel.Fence();
    case RingOp::kQuiet: return command.pe == device::kAllPes ? channel.Quiet() : channel.Quiet(pe);
    case RingOp::kPost:
    case RingOp::kFetch: {
      MORI_ASSIGN_OR_RETURN(const RemotePlace word,
                            PlaceOf(command, command.word, command.width, pe));
      const auto op = static_cast<AtomicOp>(command.code);
      const int width = static_cast<int>(command.width);
      if (command.op == RingOp::kPost) return channel.Post(pe, word, op, width, command.value);
      return channel.Fetch(pe, word, op, width, command.value, command.here, result);
    }
    case RingOp::kPutToAll:
      for (const int to : parts_.remote_pes) {
        MORI_RETURN_IF_ERROR(
            Transfer(command, to, command.here + static_cast<std::uint64_t>(to) * command.value));
      }
      return Status();
    case RingOp::kPutValue:
      return Transfer(command, pe, reinterpret_cast<std::uint64_t>(&command.value));
    case RingOp::kGetValue: return Transfer(command, pe, reinterpret_cast<std::uint64_t>(result));
    case RingOp::kPut:
    case RingOp::kPutNbi:
    case RingOp::kGet:
    case RingOp::kGetNbi: return Transfer(command, pe, command.here);
    case RingOp::kPutSignal: return PutSignal(command, pe);
  }
  return Error(ErrorCode::kInternal, "a command of number {}", static_cast<unsigned>(command.op));
}

Status Proxy::Transfer(const RingCommand& command, int pe, std::uint64_t here) {
  Channel& channel = *parts_.channel;
  std::uint64_t done = 0;
  do {
    MORI_ASSIGN_OR_RETURN(
        const RemotePieces::Stretch stretch,
        parts_.locate(command.memory, command.there + done, command.bytes - done, pe));
    const std::uint64_t length = std::min(stretch.bytes, command.bytes - done);
    if (length == 0) return Status();  // of no bytes
    auto* const at = reinterpret_cast<std::byte*>(here + done);
    const auto transfer = [&] {
      switch (command.op) {
        case RingOp::kGet:
        case RingOp::kGetValue: return channel.Get(pe, at, stretch.place, length);
        case RingOp::kGetNbi: return channel.GetNbi(pe, at, stretch.place, length);
        case RingOp::kPutNbi:
        case RingOp::kPutToAll: return channel.PutNbi(pe, stretch.place, at, length);
        default: return channel.Put(pe, stretch.place, at, length);
      }
    };
    MORI_RETURN_IF_ERROR(transfer());
    done += length;
  } while (done < command.bytes);
  return Status();
}

Status Proxy::PutSignal(const RingCommand& command, int pe) {
  Channel& channel = *parts_.channel;
  MORI_ASSIGN_OR_RETURN(const RemotePieces::Stretch first,
                        parts_.locate(command.memory, command.there, command.bytes, pe));
  MORI_ASSIGN_OR_RETURN(const RemotePlace word,
                        PlaceOf(command, command.word, sizeof command.value, pe));
  const SignalOp op = SignalOf(command);
  if (first.bytes >= command.bytes) {
    return channel.PutSignal(pe, first.place, reinterpret_cast<const std::byte*>(command.here),
                             command.bytes, word, command.value, op);
  }
  MORI_RETURN_IF_ERROR(Transfer(command, pe, command.here));
  MORI_RETURN_IF_ERROR(channel.Fence());
  return channel.Post(pe, word, op == SignalOp::kSet ? AtomicOp::kSet : AtomicOp::kFetchAdd,
                      sizeof command.value, command.value);
}

Result<RemotePlace> Proxy::PlaceOf(const RingCommand& command, std::uint64_t offset,
                                   std::uint64_t bytes, int pe) const {
  MORI_ASSIGN_OR_RETURN(const RemotePieces::Stretch stretch,
                        parts_.locate(command.memory, offset, bytes, pe));
  if (stretch.bytes >= bytes) return stretch.place;
  return Error(ErrorCode::kInternal, "a word at offset {:#x} of PE {} is in two pieces", offset,
               pe);
}

Status Proxy::Await(std::uint64_t tickets,
                    const std::function<Status(std::chrono::milliseconds)>& keeps_waiting) const {
  constexpr std::chrono::milliseconds kAskEvery{50};
  using Clock = std::chrono::steady_clock;
  // Acquire: what was carried out comes before what follows.
  const auto is_done = [&] {
    return __atomic_load_n(&parts_.pages->done.count, __ATOMIC_ACQUIRE) >= tickets;
  };
  const auto start = Clock::now();
  auto ask_at = start + kAskEvery;
  for (Waiter waiter(parts_.may_spin); !is_done(); waiter.Pause()) {
    const auto now = Clock::now();
    if (now < ask_at) continue;
    ask_at = now + kAskEvery;
    MORI_RETURN_IF_ERROR(
        keeps_waiting(std::chrono::duration_cast<std::chrono::milliseconds>(now - start)));
  }
  return Status();
}

void Proxy::Fail(const RingCommand& command, const Status& why) {
  const std::string_view call = NameOf(command.call);
  Status failure =
      command.pe == device::kAllPes
          ? Error(why.code(), "a kernel's {}: {}", call, why.message())
          : Error(why.code(), "a kernel's {} to PE {}: {}", call, command.pe, why.message());
  LogDebug("{}", failure.message());
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = std::move(failure);
  }
  if (parts_.fault != nullptr) {
    // The first half alone: a kernel that tells of a fault at the same time writes over it, and
    // what failed here is told by itself. Release: behind the failure, which who finds it asks for.
    static_assert(offsetof(device::FaultRecord, call) == 4);
    auto* const half = reinterpret_cast<std::uint64_t*>(parts_.fault);
    const auto note = static_cast<std::uint64_t>(device::FaultReason::kRemoteFailed) |
                      static_cast<std::uint64_t>(command.call) << 32;
    std::uint64_t found = __atomic_load_n(half, __ATOMIC_RELAXED);
    while (static_cast<std::uint32_t>(found) == 0 &&
           !__atomic_compare_exchange_n(half, &found, note, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
  }
  // Relaxed: the count behind it releases.
  __atomic_store_n(&parts_.pages->done.failed, next_ + 1, __ATOMIC_RELAXED);
}

Status Proxy::TakeFailure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, Status());
}

}  // namespace mori::shmem
