// A CUDA device and its primary context.
#pragma once

#include <memory>

#include "runtime/cuda/driver.hpp"

namespace mori::shmem {

/// A device's primary context, and a stream of our own for copies. Shared by all memory and
/// mappings of a runtime, so that it outlives them.
class CudaDevice {
 public:
  static Result<std::shared_ptr<CudaDevice>> Open(const cuda::Driver* driver, int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const cuda::Driver& driver() const { return *driver_; }
  int ordinal() const { return ordinal_; }
  cuda::Device device() const { return device_; }
  cuda::Context context() const { return context_; }
  cuda::Stream stream() const { return stream_; }
  cuda::AllocationProperties Properties() const;
  /// Whether somebody has reset the device (cudaDeviceReset), or the driver has ended: streams,
  /// events, modules and memory of the context are gone, and their handles must not be used.
  bool IsGone() const;
  /// Waits for what this process has launched on the device; for nothing if that is gone.
  Status Await() const;

  /// The device is the calling thread's current one while this exists; the former one is
  /// afterwards.
  class Use {
   public:
    explicit Use(const CudaDevice& device) : driver_(device.driver()) {
      cuda::Context current = nullptr;  // mostly it is current already, and this is cheaper
      if (driver_.context_current(&current) == cuda::kSuccess && current == device.context_) return;
      is_pushed_ = driver_.context_push(device.context_) == cuda::kSuccess;
    }
    ~Use() {
      cuda::Context popped = nullptr;
      if (is_pushed_) driver_.context_pop(&popped);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const cuda::Driver& driver_;
    bool is_pushed_ = false;
  };

 private:
  CudaDevice(const cuda::Driver* driver, int ordinal, cuda::Device device)
      : driver_(driver), ordinal_(ordinal), device_(device) {}

  const cuda::Driver* driver_;
  int ordinal_;
  cuda::Device device_;
  cuda::Context context_ = nullptr;
  unsigned long long context_id_ = 0;
  cuda::Stream stream_ = nullptr;
};

}  // namespace mori::shmem
