#include "runtime/device_runtime.hpp"

#include "runtime/host/host_runtime.hpp"

namespace mori::shmem {

Result<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(const Config& config) {
  if (config.backend == Backend::kAuto || config.backend == Backend::kHost) {
    return std::unique_ptr<DeviceRuntime>(std::make_unique<HostRuntime>());
  }
  return Error(ErrorCode::kUnsupported,
               "MORI_SHMEM_BACKEND={} is not available in this version, which has the host backend "
               "only: set "
               "MORI_SHMEM_BACKEND=host or leave it unset",
               BackendName(config.backend));
}

}  // namespace mori::shmem
