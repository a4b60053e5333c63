// Memory for devices, or containers, where the driver does not share memory by file descriptor:
// cuMemAlloc, shared by IPC handle. Its address is the driver's choice, in each process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

/// Allocations of whole units of this size start at a multiple of it. The driver API does not
/// promise that; who uses the memory checks it.
inline constexpr std::uint64_t kIpcGranularityBytes = std::uint64_t{2} << 20;

/// Memory of its own, which `Export()` puts into a small file with its handle. It must not be
/// destroyed before those who imported it in other processes have done so (CUDA driver API,
/// cuIpcCloseMemHandle). `bus_id` is for messages. @return kOutOfMemory
Result<std::unique_ptr<DeviceMemory>> AllocateForIpc(std::shared_ptr<CudaDevice> device,
                                                     std::uint64_t bytes,
                                                     const std::string& bus_id);

/// Memory of exactly `bytes` that `descriptor` is the export of: of another process, or of another
/// PE of this one, which reaches it where it is, since a process cannot open its own handles.
/// @return kMismatch for a file with anything else in it; kSystem if `device` cannot reach the
/// owner's
Result<std::unique_ptr<DeviceMemory>> ImportByIpc(std::shared_ptr<CudaDevice> device,
                                                  UniqueFd descriptor, std::uint64_t bytes);

}  // namespace mori::shmem
