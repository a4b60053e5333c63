// Device runtime of NVIDIA GPUs: physical memory by cuMemCreate, shared by file descriptor, mapped
// wherever a heap wants it; or by cuMemAlloc, shared by IPC handle, where the driver puts it.
#pragma once

#include <memory>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/cuda/cuda_kernels.hpp"
#include "runtime/device_runtime.hpp"

namespace mori::shmem {

class CudaUnmapper;

class CudaRuntime final : public DeviceRuntime {
 public:
  /// On the calling thread's current device, or the local rank of `config` modulo the number of
  /// devices if it has none. @return kUnsupported without a driver, a device, or a device that can
  /// share memory as `config` says
  static Result<std::unique_ptr<DeviceRuntime>> Create(const Config& config);

  Backend backend() const override { return Backend::kCuda; }
  std::string Describe() const override;
  std::uint64_t GranularityBytes() const override { return granularity_; }
  std::uint64_t MemoryBytes() const override { return memory_bytes_; }
  bool IsHostMemory() const override { return false; }
  std::string Identity() const override { return bus_id_; }
  int ordinal() const override { return device_->ordinal(); }
  bool IsFineGrained(HeapType) const override { return true; }
  std::string DescribeHeapType(HeapType type) const override;
  bool ChoosesAddresses() const override { return sharing_ == GpuSharing::kIpc; }
  GpuSharing sharing() const override { return sharing_; }
  Result<std::unique_ptr<DeviceMemory>> Allocate(std::uint64_t bytes, HeapType type) override;
  Result<std::unique_ptr<DeviceMemory>> Import(UniqueFd descriptor, std::uint64_t bytes) override;
  Result<std::unique_ptr<AddressRange>> Reserve(std::uint64_t bytes,
                                                std::uint64_t alignment) override;
  Status Copy(void* to, const void* from, std::uint64_t bytes) const override;
  bool IsOfDevice(const void* address) const override;
  std::optional<bool> HasAtomicsOn(const std::string& identity) const override;
  std::optional<bool> CanReach(const std::string& identity) const override;
  void UnmapPassed() override;
  void SetPatience(Patience patience) override { device_->SetPatience(std::move(patience)); }
  DeviceKernels* kernels() const override { return kernels_.get(); }

 private:
  explicit CudaRuntime(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  Status Examine();
  Status ChooseSharing(GpuSharing wanted);

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaUnmapper> unmapper_;
  std::unique_ptr<CudaKernels> kernels_;
  std::string name_;
  std::string bus_id_;
  int driver_version_ = 0;
  GpuSharing sharing_ = GpuSharing::kFd;
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t granularity_ = 0;
};

}  // namespace mori::shmem
