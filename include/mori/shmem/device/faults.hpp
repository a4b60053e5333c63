// Who this PE is, and what ends a thread of a kernel that cannot go on.
#pragma once

#include "mori/shmem/device/context.hpp"
#include "mori/shmem/device/memory.hpp"

namespace mori::shmem::device {

[[noreturn]] MORI_DEVICE_COLD_FN void FailWithoutState() {
  Fail("this kernel has no state of its PE: call shmem_module_init(module) after each init");
}
/// Whether there is a fault that the host has not taken.
MORI_DEVICE_FN bool IsToldOfFault(const Faults* faults) {
  return LoadRelaxed(reinterpret_cast<const u32*>(&faults->record.reason)) != 0;
}
/// Tells the host, and ends the calling thread; the kernel where nobody is to be told.
[[noreturn]] MORI_DEVICE_COLD_FN void FailWith(FaultReason reason, FaultCall call, int pe,
                                               u32 value, const char* message) {
  Faults* faults = globalGpuStates.faults;
  if (faults == nullptr) Fail(message);
  if (!IsToldOfFault(faults)) {
    StoreBulk(
        reinterpret_cast<Vector16*>(&faults->record),
        Vector16{static_cast<u32>(reason), static_cast<u32>(call), static_cast<u32>(pe), value});
    FenceSystem();  // pairs with the acquiring load of the host
  }
  FailThread();
}
[[noreturn]] MORI_DEVICE_COLD_FN void FailOutOfReach(int pe, FaultCall call) {
  const u32 n_pes = globalGpuStates.n_pes;
  if (static_cast<u32>(pe) >= n_pes)
    FailWith(FaultReason::kPeOutOfRange, call, pe, n_pes, "a PE is out of range");
  FailWith(FaultReason::kPeOutOfReach, call, pe, n_pes, "a PE is not reached by load and store");
}

/// Ends a kernel to whose module the host has not published a state.
MORI_DEVICE_FN void RequireState() {
  if (globalGpuStates.header.magic != kContextMagic) FailWithoutState();
}
MORI_DEVICE_FN int MyPe() {
  RequireState();
  return static_cast<int>(globalGpuStates.my_pe);
}
MORI_DEVICE_FN int NPes() {
  RequireState();
  return static_cast<int>(globalGpuStates.n_pes);
}

MORI_DEVICE_FN void RequirePe(int pe, FaultCall call) {
  if (static_cast<u32>(pe) >= static_cast<u32>(NPes())) FailOutOfReach(pe, call);
}
}  // namespace mori::shmem::device
