// Device runtime of machines without a GPU: sealed memfd memory, coherent for all CPUs of the node.
#pragma once

#include <mutex>

#include "runtime/device_runtime.hpp"

namespace mori::shmem {

class HostRuntime final : public DeviceRuntime {
 public:
  Backend backend() const override { return Backend::kHost; }
  std::string Describe() const override;
  std::uint64_t GranularityBytes() const override;
  std::uint64_t MemoryBytes() const override;
  bool IsHostMemory() const override { return true; }
  bool IsFineGrained(HeapType) const override { return true; }
  std::string DescribeHeapType(HeapType type) const override;
  Result<std::unique_ptr<DeviceMemory>> Allocate(std::uint64_t bytes, HeapType type) override;
  Result<std::unique_ptr<DeviceMemory>> Import(UniqueFd descriptor, std::uint64_t bytes) override;
  Result<std::unique_ptr<AddressRange>> Reserve(std::uint64_t bytes,
                                                std::uint64_t alignment) override;
  Status Copy(void* to, const void* from, std::uint64_t bytes) const override;

 private:
  mutable std::once_flag looked_;
  mutable std::uint64_t memory_bytes_ = 0;  ///< looked up at the first question: files are read
};

}  // namespace mori::shmem
