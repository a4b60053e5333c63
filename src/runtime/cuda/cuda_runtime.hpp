// Device runtime of NVIDIA GPUs: physical memory by cuMemCreate, shared by file descriptor, mapped
// wherever a heap wants it.
#pragma once

#include <memory>

#include "runtime/cuda/driver.hpp"
#include "runtime/device_runtime.hpp"

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
  cuda::Stream stream() const { return stream_; }
  cuda::AllocationProperties Properties() const;

  /// The device is the calling thread's current one while this exists; the former one is
  /// afterwards.
  class Use {
   public:
    explicit Use(const CudaDevice& device) : driver_(device.driver()) {
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
    bool is_pushed_;
  };

 private:
  CudaDevice(const cuda::Driver* driver, int ordinal, cuda::Device device)
      : driver_(driver), ordinal_(ordinal), device_(device) {}

  const cuda::Driver* driver_;
  int ordinal_;
  cuda::Device device_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  /// On the calling thread's current device, or `preferred` modulo the number of devices if it has
  /// none. @return kUnsupported without a driver, a device, or a device that can map memory
  static Result<std::unique_ptr<DeviceRuntime>> Create(int preferred);

  Backend backend() const override { return Backend::kCuda; }
  std::string Describe() const override;
  std::uint64_t GranularityBytes() const override { return granularity_; }
  std::uint64_t MemoryBytes() const override { return memory_bytes_; }
  bool IsHostMemory() const override { return false; }
  int ordinal() const override { return device_->ordinal(); }
  bool IsFineGrained(HeapType) const override { return true; }
  std::string DescribeHeapType(HeapType type) const override;
  Result<std::unique_ptr<DeviceMemory>> Allocate(std::uint64_t bytes, HeapType type) override;
  Result<std::unique_ptr<DeviceMemory>> Import(UniqueFd descriptor, std::uint64_t bytes) override;
  Result<std::unique_ptr<AddressRange>> Reserve(std::uint64_t bytes,
                                                std::uint64_t alignment) override;
  Status Copy(void* to, const void* from, std::uint64_t bytes) const override;
  Result<Symbol> FindSymbol(void* module, const char* name) const override;

 private:
  explicit CudaRuntime(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  Status Examine();

  std::shared_ptr<CudaDevice> device_;
  std::string name_;
  std::string bus_id_;
  int driver_version_ = 0;
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t granularity_ = 0;
};

}  // namespace mori::shmem
