#include "shmem/linked_states.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

namespace detail {

extern "C" MORI_SHMEM_API void MoriShmemAddLinkedState(LinkedState* state);
extern "C" MORI_SHMEM_API void MoriShmemRemoveLinkedState(LinkedState* state);

void MoriShmemAddLinkedState(LinkedState* state) { LinkedStates::Instance().Add(state); }
void MoriShmemRemoveLinkedState(LinkedState* state) { LinkedStates::Instance().Remove(state); }

}  // namespace detail

LinkedStates& LinkedStates::Instance() {
  // Never destroyed: units of shared libraries leave it at the end of the process.
  static auto* const instance = new LinkedStates;
  return *instance;
}

bool LinkedStates::Copy(const Target& target, const detail::LinkedState& state,
                        const device::DeviceContext& context) const {
  int code = 0;
  void* const stream = target.device->own_stream();
  Status copied;
  target.device->OnDevice([&] {
    code = state.publish(&context, stream);
    copied = target.device->Synchronize(stream);
  });
  if (!copied.ok()) LogDebug("the state of linked kernels: {}", copied.message());
  if (code != 0)
    LogDebug("linked kernels do not take their state yet on device {}: cudaError {}",
             target.ordinal, code);
  return code == 0;
}

void LinkedStates::Add(detail::LinkedState* state) {
  const std::lock_guard lock(mutex_);
  states_.push_back(state);
  // The kernels of the unit may be registered after this constructor: later, then.
  for (const Target& target : targets_) pending_.emplace_back(state, target.device);
  has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
}

void LinkedStates::Remove(detail::LinkedState* state) {
  const std::lock_guard lock(mutex_);
  std::erase(states_, state);
  std::erase_if(pending_, [&](const auto& one) { return one.first == state; });
}

void LinkedStates::Publish(DeviceKernels* device, int ordinal,
                           const device::DeviceContext& context) {
  const std::lock_guard lock(mutex_);
  const bool is_shared =
      std::ranges::any_of(targets_, [&](const Target& one) { return one.ordinal == ordinal; });
  if (is_shared && !states_.empty() && !has_warned_) {
    has_warned_ = true;
    LogWarn(
        "several PEs of this process are on device {}: kernels that are linked into the program "
        "are PE {}'s; give each PE a module of its own (shmem_module_init)",
        ordinal, context.my_pe);
  }
  targets_.push_back({device, ordinal, context});
  for (detail::LinkedState* state : states_) {
    if (!Copy(targets_.back(), *state, context)) pending_.emplace_back(state, device);
  }
  has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
}

void LinkedStates::Withdraw(DeviceKernels* device) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(targets_, device, &Target::device);
  if (found == targets_.end()) return;
  const Target gone = *found;
  targets_.erase(found);
  // To another PE of the device, if there is one.
  device::DeviceContext heir{};
  for (const Target& target : targets_) {
    if (target.ordinal == gone.ordinal) heir = target.context;
  }
  for (detail::LinkedState* state : states_) Copy(gone, *state, heir);
  std::erase_if(pending_, [&](const auto& one) { return one.second == device; });
  has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
}

void LinkedStates::RetryPending() {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const auto& one) {
    const auto target = std::ranges::find(targets_, one.second, &Target::device);
    return target == targets_.end() || Copy(*target, *one.first, target->context);
  });
  has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
}

}  // namespace mori::shmem
