#include "runtime/device_runtime.hpp"

#include "runtime/cuda/cuda_runtime.hpp"
#include "runtime/host/host_runtime.hpp"

namespace mori::shmem {

namespace {

/// A GPU that is there and of use; the host otherwise, with the reason in `why`.
std::unique_ptr<DeviceRuntime> ChooseRuntime(const Config& config, std::string* why) {
  auto cuda = CudaRuntime::Create(config);
  if (cuda.ok() && (*cuda)->kernels()->LibraryImage() != nullptr) return std::move(*cuda);
  *why = cuda.ok() ? "this build of the library has no kernels" : cuda.status().message();
  return std::make_unique<HostRuntime>();
}

}  // namespace

Result<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(const Config& config, std::string* why) {
  std::string ignored;
  if (config.backend == Backend::kAuto)
    return ChooseRuntime(config, why != nullptr ? why : &ignored);
  if (config.backend == Backend::kHost) {
    return std::unique_ptr<DeviceRuntime>(std::make_unique<HostRuntime>());
  }
  if (config.backend == Backend::kCuda) {
    auto runtime = CudaRuntime::Create(config);
    if (runtime.ok()) return runtime;
    return Error(runtime.status().code(),
                 "MORI_SHMEM_BACKEND=cuda is not available: {}; set MORI_SHMEM_BACKEND=host or "
                 "leave it unset",
                 runtime.status().message());
  }
  return Error(ErrorCode::kUnsupported,
               "MORI_SHMEM_BACKEND={} is not available in this version: set "
               "MORI_SHMEM_BACKEND=host or leave it unset",
               BackendName(config.backend));
}

std::unique_ptr<DeviceRuntime> MakeHostRuntime() { return std::make_unique<HostRuntime>(); }

std::vector<std::string> DescribeDevices(const Config& config) {
  const auto cuda = CudaRuntime::Create(config);
  return {HostRuntime().Describe(), cuda.ok() ? (*cuda)->Describe() : cuda.status().message()};
}

}  // namespace mori::shmem
