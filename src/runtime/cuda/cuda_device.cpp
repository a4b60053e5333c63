#include "runtime/cuda/cuda_device.hpp"

namespace mori::shmem {

Result<std::shared_ptr<CudaDevice>> CudaDevice::Open(const cuda::Driver* driver, int ordinal) {
  cuda::Device device = 0;
  MORI_RETURN_IF_ERROR(driver->Check(driver->device_get(&device, ordinal),
                                     fmt::format("find CUDA device {}", ordinal)));
  std::shared_ptr<CudaDevice> opened(new CudaDevice(driver, ordinal, device));
  MORI_RETURN_IF_ERROR(driver->Check(driver->primary_retain(&opened->context_, device),
                                     fmt::format("open CUDA device {}", ordinal)));
  const Use use(*opened);
  MORI_RETURN_IF_ERROR(driver->Check(
      driver->stream_create(&opened->stream_, cuda::kStreamNonBlocking), "make a CUDA stream"));
  return opened;
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  // At the end of a process the driver may be gone already: it then says so, and all is well.
  if (stream_ != nullptr) {
    const Use use(*this);
    driver_->stream_destroy(stream_);
  }
  driver_->primary_release(device_);
}

cuda::AllocationProperties CudaDevice::Properties() const {
  cuda::AllocationProperties properties;
  properties.location.id = device_;
  return properties;
}

}  // namespace mori::shmem
