// What faults of kernels are called in messages.
#pragma once

#include <string_view>

#include "base/status.hpp"
#include "mori/shmem/device/context.hpp"

namespace mori::shmem {

/// For "its ... named PE 3".
std::string_view NameOf(device::FaultCall call);
/// What the fault is, with the call and the PE.
Status DescribeFault(const device::FaultRecord& fault);
/// The same of a PE that was lost while a kernel waited; `lost` says who and why.
Status LostInKernel(const device::FaultRecord& fault, const Status& lost);

}  // namespace mori::shmem
