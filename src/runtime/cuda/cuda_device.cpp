#include "runtime/cuda/cuda_device.hpp"

namespace mori::shmem {

Result<std::shared_ptr<CudaDevice>> CudaDevice::Open(const cuda::Driver* driver, int ordinal) {
  cuda::Device device = 0;
  MORI_RETURN_IF_ERROR(driver->Check(driver->device_get(&device, ordinal),
                                     fmt::format("find CUDA device {}", ordinal)));
  std::shared_ptr<CudaDevice> opened(new CudaDevice(driver, ordinal, device));
  MORI_RETURN_IF_ERROR(driver->Check(driver->primary_retain(&opened->context_, device),
                                     fmt::format("open CUDA device {}", ordinal)));
  MORI_RETURN_IF_ERROR(driver->Check(driver->context_id(opened->context_, &opened->context_id_),
                                     "identify a CUDA context"));
  const Use use(*opened);
  MORI_RETURN_IF_ERROR(driver->Check(
      driver->stream_create(&opened->stream_, cuda::kStreamNonBlocking), "make a CUDA stream"));
  return opened;
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr || IsGone()) return;
  if (stream_ != nullptr) {
    const Use use(*this);
    driver_->stream_destroy(stream_);
  }
  driver_->primary_release(device_);
}

bool CudaDevice::IsGone() const {
  unsigned flags = 0;
  int is_active = 0;
  if (driver_->primary_state(device_, &flags, &is_active) != cuda::kSuccess || is_active == 0)
    return true;
  // Active, but perhaps another one since.
  unsigned long long id = 0;
  return driver_->context_id(context_, &id) != cuda::kSuccess || id != context_id_;
}

Status CudaDevice::Await() const {
  if (IsGone()) return Status();
  const Use use(*this);
  return driver_->Check(driver_->context_synchronize(), "wait for what runs on the device");
}

cuda::AllocationProperties CudaDevice::Properties() const {
  cuda::AllocationProperties properties;
  properties.location.id = device_;
  return properties;
}

}  // namespace mori::shmem
