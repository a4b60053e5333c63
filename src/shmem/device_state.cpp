#include "shmem/device_state.hpp"

#include <algorithm>
#include <vector>

namespace mori::shmem {
namespace {

constexpr const char* kSymbol = "globalGpuStates";

}  // namespace

Result<std::unique_ptr<DeviceState>> DeviceState::Create(const SpaceParts& parts, const Heap& heap,
                                                         const Deadline& deadline) {
  const auto n_pes = static_cast<std::uint64_t>(parts.world_size);
  if (n_pes > device::kMaxKernelPes) {
    return Error(ErrorCode::kUnsupported,
                 "{} PEs are more than the {} that kernels can synchronise", n_pes,
                 device::kMaxKernelPes);
  }
  // Epochs, and the two tables behind them, in one piece per PE.
  constexpr std::uint64_t kTableBytes = device::kMaxKernelPes * sizeof(std::uint64_t);
  const std::uint64_t bytes = std::max(3 * kTableBytes, parts.runtime->GranularityBytes());
  MORI_ASSIGN_OR_RETURN(auto space, SymmetricSpace::Reserve(parts, bytes));
  MORI_RETURN_IF_ERROR(space->Add({{0, bytes}}, HeapType::kUncached, deadline));

  std::vector<std::uint64_t> tables(3 * device::kMaxKernelPes, 0);
  for (std::uint64_t pe = 0; pe < n_pes; ++pe) {
    tables[device::kMaxKernelPes + pe] = reinterpret_cast<std::uintptr_t>(heap.peer_bases()[pe]);
    tables[2 * device::kMaxKernelPes + pe] =
        reinterpret_cast<std::uintptr_t>(space->peer_bases()[pe]);
  }
  std::byte* base = space->base();
  MORI_RETURN_IF_ERROR(parts.runtime->Copy(base, tables.data(), 3 * kTableBytes));

  std::unique_ptr<DeviceState> state(new DeviceState(parts.runtime, std::move(space)));
  state->context_ = {device::kContextMagic,
                     reinterpret_cast<std::uintptr_t>(heap.base()),
                     reinterpret_cast<const device::u64*>(base + kTableBytes),
                     reinterpret_cast<const device::u64*>(base + 2 * kTableBytes),
                     static_cast<device::u32>(parts.pe),
                     static_cast<device::u32>(parts.world_size)};
  return state;
}

Status DeviceState::Publish(void* module) const {
  MORI_ASSIGN_OR_RETURN(const auto symbol, runtime_->FindSymbol(module, kSymbol));
  if (symbol.bytes != sizeof context_) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} of this module has {} bytes, not {}: it was compiled with headers of another "
                 "version",
                 kSymbol, symbol.bytes, sizeof context_);
  }
  return runtime_->Copy(symbol.address, &context_, sizeof context_);
}

}  // namespace mori::shmem
