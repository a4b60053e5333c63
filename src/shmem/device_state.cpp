#include "shmem/device_state.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <vector>

#include "base/log.hpp"
#include "base/round_up.hpp"
#include "shmem/linked_states.hpp"

namespace mori::shmem {
namespace {

constexpr const char* kSymbol = "globalGpuStates";
constexpr std::uint64_t kMagicOfVersion1 = 0x4d4f524953484d33;  // "MORISHM3"

/// A kernel writes it by one store, of which the host might see the halves apart: read until two
/// reads are equal.
device::FaultRecord ReadWhole(const device::FaultRecord& record) {
  using Halves = std::array<std::uint64_t, 2>;
  static_assert(sizeof(Halves) == sizeof record);
  const auto* const halves = reinterpret_cast<const std::uint64_t*>(&record);
  // Acquire: each read comes after the one before.
  const auto read = [halves] {
    return Halves{__atomic_load_n(&halves[0], __ATOMIC_ACQUIRE),
                  __atomic_load_n(&halves[1], __ATOMIC_ACQUIRE)};
  };
  Halves seen = read();
  for (Halves again = read(); again != seen; again = read()) seen = again;
  return std::bit_cast<device::FaultRecord>(seen);
}

}  // namespace

/// Behind the words that kernels meet by, in the same piece of memory; of this PE alone.
struct DeviceState::Tables {
  device::PeAddresses pes[device::kMaxKernelPes];
  device::DeviceTables tables;
  device::Ring ring;
  alignas(128) device::u64 next;  ///< of the ring, as those below; changed by every command
  alignas(128) device::u64 seen;
  alignas(128) device::u32 taken[RingPages::kEntries];

  static constexpr std::uint64_t kAt = RoundUp(sizeof(device::SyncWords), 128);
};

Result<std::unique_ptr<DeviceState>> DeviceState::Create(
    const SpaceParts& parts, const Heap& heap, std::shared_ptr<const std::uint32_t> first_lost,
    const Deadline& deadline) {
  const auto n_pes = static_cast<std::uint64_t>(parts.world_size);
  if (n_pes > device::kMaxKernelPes) {
    return Error(ErrorCode::kUnsupported,
                 "{} PEs are more than the {} that kernels can synchronise", n_pes,
                 device::kMaxKernelPes);
  }
  const std::uint64_t bytes =
      RoundUp(Tables::kAt + sizeof(Tables), parts.runtime->GranularityBytes());
  MORI_ASSIGN_OR_RETURN(auto space, SymmetricSpace::Reserve(parts, bytes));
  MORI_RETURN_IF_ERROR(space->Add({{0, bytes}}, HeapType::kUncached, deadline));
  const std::vector<std::byte> zeros(Tables::kAt + sizeof(Tables));
  MORI_RETURN_IF_ERROR(parts.runtime->Copy(space->base(), zeros.data(), zeros.size()));

  std::unique_ptr<DeviceState> state(new DeviceState(parts.runtime, std::move(space)));
  MORI_RETURN_IF_ERROR(state->FillTables(parts, heap));
  state->WatchLost(first_lost);
  state->WatchFaults();
  state->context_.header.magic = device::kContextMagic;
  state->context_.heap_base = reinterpret_cast<std::uintptr_t>(heap.base());
  state->context_.heap_bytes = heap.bytes();
  state->context_.my_pe = static_cast<device::u32>(parts.pe);
  state->context_.n_pes = static_cast<device::u32>(parts.world_size);
  state->kernels_ = LibraryKernels::Load(state->device_);
  if (state->kernels_.ok()) {
    MORI_RETURN_IF_ERROR(state->Publish((*state->kernels_)->module()));
  } else if (state->kernels_.status().code() != ErrorCode::kUnsupported) {
    return state->kernels_.status();
  }
  LinkedStates::Instance().Publish(state->device_, parts.runtime->ordinal(), state->context_);
  return state;
}

DeviceState::~DeviceState() {
  LinkedStates::Instance().Withdraw(device_);
  for (const auto& [symbol, before] : published_) {
    device::DeviceContext held = context_;
    held.header.bytes = std::min(held.header.bytes, before.bytes);
    device::DeviceContext nobody = device::kStateOfNobody;
    nobody.header = before;
    const Status taken = device_->ReplaceIfHolds(symbol, &held, &nobody, held.header.bytes);
    if (!taken.ok())
      LogDebug("a module keeps the state of a PE that has finalized: {}", taken.message());
  }
}

Status DeviceState::FillTables(const SpaceParts& parts, const Heap& heap) {
  const auto n_pes = static_cast<std::size_t>(parts.world_size);
  std::vector<device::PeAddresses> pes;
  for (std::size_t pe = 0; pe < n_pes; ++pe) {
    pes.push_back({reinterpret_cast<std::uintptr_t>(heap.peer_bases()[pe]),
                   reinterpret_cast<std::uintptr_t>(space_->peer_bases()[pe])});
  }
  context_.n_inline = static_cast<device::u32>(std::min<std::size_t>(n_pes, device::kInlinePes));
  std::copy_n(pes.begin(), context_.n_inline, context_.inline_pes);
  std::byte* const at = TablesAt();
  context_.pes = reinterpret_cast<const device::PeAddresses*>(at + offsetof(Tables, pes));
  MORI_RETURN_IF_ERROR(
      runtime_->Copy(at + offsetof(Tables, pes), pes.data(), n_pes * sizeof pes[0]));
  if (parts.network == nullptr) return Status();
  MORI_ASSIGN_OR_RETURN(const device::Ring ring, MapRing());
  MORI_RETURN_IF_ERROR(runtime_->Copy(at + offsetof(Tables, ring), &ring, sizeof ring));
  device::DeviceTables tables{};
  tables.header = {device::kContextMagic, device::kContextAbi, sizeof tables};
  tables.rings = reinterpret_cast<device::Ring*>(at + offsetof(Tables, ring));
  tables.n_rings = 1;
  MORI_RETURN_IF_ERROR(runtime_->Copy(at + offsetof(Tables, tables), &tables, sizeof tables));
  context_.tables = reinterpret_cast<const device::DeviceTables*>(at + offsetof(Tables, tables));
  context_.flags |= device::kHasRemotePes;
  return Status();
}

std::byte* DeviceState::TablesAt() const { return space_->base() + Tables::kAt; }

Result<device::Ring> DeviceState::MapRing() {
  ring_pages_ = std::make_shared<RingPages>();
  MORI_ASSIGN_OR_RETURN(ring_, device_->MapHost(ring_pages_, sizeof *ring_pages_));
  auto* const pages = static_cast<std::byte*>(ring_.get());
  std::byte* const mine = TablesAt();
  device::Ring ring{};
  ring.entries = reinterpret_cast<device::RingEntry*>(pages + offsetof(RingPages, entries));
  ring.done = reinterpret_cast<const device::RingDone*>(pages + offsetof(RingPages, done));
  ring.results = reinterpret_cast<const device::u64*>(pages + offsetof(RingPages, results));
  ring.next = reinterpret_cast<device::u64*>(mine + offsetof(Tables, next));
  ring.seen = reinterpret_cast<device::u64*>(mine + offsetof(Tables, seen));
  ring.taken = reinterpret_cast<device::u32*>(mine + offsetof(Tables, taken));
  ring.mask = RingPages::kEntries - 1;
  return ring;
}

Result<std::uint64_t> DeviceState::RingTickets() const {
  std::uint64_t tickets = 0;
  MORI_RETURN_IF_ERROR(
      runtime_->Copy(&tickets, TablesAt() + offsetof(Tables, next), sizeof tickets));
  return tickets;
}

Result<RemotePieces::Stretch> DeviceState::LocateSyncWords(std::uint64_t offset,
                                                           std::uint64_t bytes, int pe) const {
  const auto stretch =
      space_->remote() == nullptr ? std::nullopt : space_->remote()->At(pe, offset);
  if (!stretch || bytes > sizeof(device::SyncWords) || offset > sizeof(device::SyncWords) - bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} bytes at offset {:#x} are none of those by which kernels meet", bytes, offset);
  }
  return *stretch;
}

void DeviceState::WatchLost(const std::shared_ptr<const std::uint32_t>& first_lost) {
  // The board's, which the kernels only read, be they later than the board.
  auto mapped =
      device_->MapHost(std::const_pointer_cast<std::uint32_t>(first_lost), sizeof *first_lost);
  if (mapped.ok()) {
    first_lost_ = std::move(*mapped);
    context_.first_lost = static_cast<const device::u32*>(first_lost_.get());
  } else {
    LogWarn("kernels of this PE will wait for lost PEs for ever: {}", mapped.status().message());
  }
}

void DeviceState::WatchFaults() {
  auto mapped = device_->MapHost(fault_page_, sizeof *fault_page_);
  if (mapped.ok()) {
    fault_ = std::move(*mapped);
    context_.faults = static_cast<device::Faults*>(fault_.get());
  } else {
    LogWarn("a fault of a kernel of this PE ends all of its kernels: {}",
            mapped.status().message());
  }
}

std::optional<device::FaultRecord> DeviceState::TakeFault() const {
  device::FaultRecord& record = fault_page_->faults.record;
  static_assert(sizeof record.reason == sizeof(std::uint32_t));
  auto* const reason = reinterpret_cast<std::uint32_t*>(&record.reason);
  // Acquire: the kernel's one store brings the rest with the reason.
  const std::uint32_t found = __atomic_load_n(reason, __ATOMIC_ACQUIRE);
  if (found == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (__atomic_load_n(reason, __ATOMIC_ACQUIRE) == 0) return std::nullopt;  // another thread's
  const device::FaultRecord taken = ReadWhole(record);
  std::uint32_t* const count = &fault_page_->faults.taken;
  // Before the record is empty, so that a kernel's wait which looks at both finds one of the two.
  // Relaxed: the release below orders it, and threads of this PE hold the mutex.
  __atomic_store_n(count, *count + 1, __ATOMIC_RELAXED);
  // Release: whoever finds the record empty may write all of it.
  __atomic_store_n(reason, 0, __ATOMIC_RELEASE);
  return taken;
}

Status CheckAbi(const device::AbiHeader& compiled_for) {
  if (compiled_for.abi == device::kContextAbi) return Status();
  if (compiled_for.abi > device::kContextAbi) {
    return Error(ErrorCode::kMismatch,
                 "its kernels were compiled for version {} of {}, and this library knows version "
                 "{}: load the library that their headers came with",
                 compiled_for.abi, kSymbol, device::kContextAbi);
  }
  return Error(ErrorCode::kMismatch,
               "its kernels were compiled for version {} of {}, and this library has version {}: "
               "compile them again with this library's headers, {}",
               std::max(compiled_for.abi, 1U), kSymbol, device::kContextAbi, MORI_SHMEM_VERSION);
}

Status DeviceState::PublishTo(const Result<DeviceKernels::Symbol>& symbol) const {
  MORI_RETURN_IF_ERROR(symbol.status());
  device::AbiHeader there{};  // version 1 had no such header, and zeros before the first state
  if (symbol->bytes < sizeof there) {
    return Error(ErrorCode::kInvalidArgument, "{} has {} bytes there: it is no state of a PE",
                 kSymbol, symbol->bytes);
  }
  MORI_RETURN_IF_ERROR(runtime_->Copy(&there, symbol->address, sizeof there));
  if (there.magic == kMagicOfVersion1) there.abi = 1;
  MORI_RETURN_IF_ERROR(CheckAbi(there));
  device::DeviceContext context = context_;
  context.header.bytes =
      static_cast<device::u32>(std::min<std::uint64_t>(symbol->bytes, sizeof context));
  MORI_RETURN_IF_ERROR(runtime_->Copy(symbol->address, &context, context.header.bytes));
  there.magic = 0;
  there.bytes = static_cast<device::u32>(symbol->bytes);
  const std::lock_guard lock(mutex_);
  published_.insert_or_assign(symbol->address, there);
  return Status();
}

Status DeviceState::Publish(void* module) const {
  return PublishTo(device_->FindSymbol(module, kSymbol));
}

Status DeviceState::PublishToLibrary(void* library) const {
  return PublishTo(device_->FindSymbolInLibrary(library, kSymbol));
}

}  // namespace mori::shmem
