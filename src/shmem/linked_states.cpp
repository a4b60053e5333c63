#include "shmem/linked_states.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "mori/shmem/types.hpp"
#include "shmem/device_state.hpp"
#include "shmem/registry.hpp"

namespace mori::shmem {

namespace detail {

extern "C" MORI_SHMEM_API void MoriShmemAddLinkedStateV2(LinkedState* state);
extern "C" MORI_SHMEM_API void MoriShmemRemoveLinkedStateV2(LinkedState* state);

void MoriShmemAddLinkedStateV2(LinkedState* state) { LinkedStates::Instance().Add(state); }
void MoriShmemRemoveLinkedStateV2(LinkedState* state) { LinkedStates::Instance().Remove(state); }

}  // namespace detail

LinkedStates& LinkedStates::Instance() {
  // Never destroyed: units of shared libraries leave it at the end of the process.
  static auto* const instance = new LinkedStates;
  return *instance;
}

bool LinkedStates::Copy(const Target& target, const detail::LinkedState& state,
                        const device::DeviceContext& context) {
  int code = 0;
  void* const stream = target.device->own_stream();
  Status copied;
  target.device->OnDevice([&] {
    device::DeviceContext known = context;
    known.header.bytes = std::min(known.header.bytes, state.compiled_for.bytes);
    code = state.publish(&known, known.header.bytes, stream);
    copied = target.device->SynchronizeOwn();
  });
  if (!copied.ok()) LogDebug("the state of linked kernels: {}", copied.message());
  if (code != 0)
    LogDebug("linked kernels do not take their state yet on device {}: cudaError {}",
             target.ordinal, code);
  return code == 0;
}

std::vector<detail::LinkedState*> LinkedStates::CopyToAll(
    const Target& target, const device::DeviceContext& context,
    const std::vector<detail::LinkedState*>& states) {
  std::vector<detail::LinkedState*> refused;
  for (detail::LinkedState* state : states) {
    {
      const std::lock_guard lock(mutex_);
      if (std::ranges::find(states_, state) == states_.end()) continue;  // closed meanwhile
      in_use_ = state;
    }
    if (!Copy(target, *state, context)) refused.push_back(state);
    const std::lock_guard lock(mutex_);
    in_use_ = nullptr;
    changed_.notify_all();
  }
  return refused;
}

void LinkedStates::SetPending() {
  // A unit that was closed while it was published to is not asked again.
  std::erase_if(pending_, [this](const auto& one) {
    return std::ranges::find(states_, one.first) == states_.end();
  });
  // Relaxed: who sees it takes the lock; who misses it sees it at the next call.
  has_pending_.store(!pending_.empty(), std::memory_order_relaxed);
}

void LinkedStates::Add(detail::LinkedState* state) {
  if (Registry::IsForkedChild()) return;  // nor can anybody give the lock back there
  const std::lock_guard lock(mutex_);
  if (Status known = CheckAbi(state->compiled_for); !known.ok()) return Refuse(std::move(known));
  states_.push_back(state);
  // The kernels of the unit may be registered after this constructor: later, then.
  for (const Target& target : targets_) pending_.emplace_back(state, target.device);
  SetPending();
}

void LinkedStates::AddOfVersion1() {
  if (Registry::IsForkedChild()) return;
  const std::lock_guard lock(mutex_);
  Refuse(CheckAbi({0, 1, 0}));
}

void LinkedStates::Refuse(Status why) {
  // The constructor of a unit calls: nobody is there to be told before init.
  refused_ = std::move(why);
  if (!targets_.empty()) LogError("kernels that are linked in: {}", refused_.message());
}

void LinkedStates::Remove(detail::LinkedState* state) {
  if (Registry::IsForkedChild()) return;
  std::unique_lock lock(mutex_);
  std::erase(states_, state);
  SetPending();
  changed_.wait(lock, [&] { return in_use_ != state; });
}

void LinkedStates::Publish(DeviceKernels* device, int ordinal,
                           const device::DeviceContext& context) {
  const std::lock_guard publishing(publishing_);
  const Target target{device, ordinal, context};
  std::vector<detail::LinkedState*> states;
  {
    const std::lock_guard lock(mutex_);
    if (!refused_.ok()) LogError("kernels that are linked in: {}", refused_.message());
    const bool is_shared =
        std::ranges::any_of(targets_, [&](const Target& one) { return one.ordinal == ordinal; });
    if (is_shared && !states_.empty() && !has_warned_) {
      has_warned_ = true;
      LogWarn(
          "several PEs of this process are on device {}: kernels that are linked into the program "
          "are PE {}'s; give each PE a module of its own (shmem_module_init)",
          ordinal, context.my_pe);
    }
    targets_.push_back(target);
    states = states_;
  }
  const auto refused = CopyToAll(target, context, states);
  const std::lock_guard lock(mutex_);
  for (detail::LinkedState* state : refused) pending_.emplace_back(state, device);
  SetPending();
}

void LinkedStates::Withdraw(DeviceKernels* device) {
  const std::lock_guard publishing(publishing_);
  Target gone{};
  device::DeviceContext heir = device::kStateOfNobody;
  std::vector<detail::LinkedState*> states;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(targets_, device, &Target::device);
    if (found == targets_.end()) return;
    gone = *found;
    targets_.erase(found);
    // To another PE of the device, if there is one.
    for (const Target& target : targets_) {
      if (target.ordinal == gone.ordinal) heir = target.context;
    }
    std::erase_if(pending_, [&](const auto& one) { return one.second == device; });
    SetPending();
    states = states_;
  }
  static_cast<void>(CopyToAll(gone, heir, states));
}

void LinkedStates::RetryPending(void* stream) {
  const std::lock_guard publishing(publishing_);
  std::vector<Target> targets;
  {
    const std::lock_guard lock(mutex_);
    targets = targets_;
  }
  for (const Target& target : targets) {
    if (target.device->IsCaptured(stream)) continue;
    std::vector<detail::LinkedState*> states;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(pending_, [&](const auto& one) {
        if (one.second != target.device) return false;
        states.push_back(one.first);
        return true;
      });
    }
    const auto refused = CopyToAll(target, target.context, states);
    const std::lock_guard lock(mutex_);
    for (detail::LinkedState* state : refused) pending_.emplace_back(state, target.device);
    SetPending();
  }
}

}  // namespace mori::shmem
