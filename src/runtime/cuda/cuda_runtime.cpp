#include "runtime/cuda/cuda_runtime.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "runtime/cuda/cuda_ipc.hpp"

namespace mori::shmem {
namespace {

using cuda::DevicePointer;
using cuda::Driver;

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(std::shared_ptr<CudaDevice> device, cuda::MemoryHandle handle, std::uint64_t bytes)
      : device_(std::move(device)), handle_(handle), bytes_(bytes) {}
  ~CudaMemory() override { device_->driver().memory_release(handle_); }  // of no context
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::uint64_t bytes() const override { return bytes_; }
  cuda::MemoryHandle handle() const { return handle_; }

  Result<UniqueFd> Export() const override {
    const CudaDevice::Use use(*device_);
    const Driver& driver = device_->driver();
    int fd = -1;
    MORI_RETURN_IF_ERROR(
        driver.Check(driver.memory_export(&fd, handle_, cuda::kHandleTypePosixFd, 0),
                     fmt::format("export {} of device memory", FormatByteSize(bytes_))));
    return UniqueFd(fd);
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  cuda::MemoryHandle handle_;
  std::uint64_t bytes_;
};

class CudaRange final : public AddressRange {
 public:
  CudaRange(std::shared_ptr<CudaDevice> device, DevicePointer base, std::uint64_t bytes)
      : device_(std::move(device)), base_(base), bytes_(bytes) {}
  ~CudaRange() override {
    std::optional<CudaDevice::Use> use;
    if (!mapped_.empty() && !device_->IsGone()) {
      use.emplace(*device_);
      // Work that was launched on the memory may still be under way, a barrier for example.
      device_->driver().context_synchronize();
    }
    for (const auto& [offset, bytes] : mapped_) device_->driver().unmap(base_ + offset, bytes);
    device_->driver().address_free(base_, bytes_);
  }
  CudaRange(const CudaRange&) = delete;
  CudaRange& operator=(const CudaRange&) = delete;

  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }
  std::uint64_t bytes() const override { return bytes_; }

  Status Map(std::uint64_t offset, const DeviceMemory& memory) override {
    const CudaDevice::Use use(*device_);
    const Driver& driver = device_->driver();
    const auto handle = static_cast<const CudaMemory&>(memory).handle();
    const auto what = [&] { return fmt::format("map {}", FormatByteSize(memory.bytes())); };
    MORI_RETURN_IF_ERROR(
        driver.Check(driver.map(base_ + offset, memory.bytes(), 0, handle, 0), what()));
    cuda::AccessDescription access;
    access.location.id = device_->device();
    const Status accessible =
        driver.Check(driver.set_access(base_ + offset, memory.bytes(), &access, 1), what());
    if (!accessible.ok()) {
      driver.unmap(base_ + offset, memory.bytes());
      return accessible;
    }
    mapped_[offset] = memory.bytes();
    return Status();
  }

  Status Unmap(std::uint64_t offset, std::uint64_t bytes, bool) override {
    // Work that was launched on the memory may still be under way.
    MORI_RETURN_IF_ERROR(device_->Await());
    const CudaDevice::Use use(*device_);
    const Driver& driver = device_->driver();
    for (auto at = mapped_.lower_bound(offset);
         at != mapped_.end() && at->first < offset + bytes;) {
      MORI_RETURN_IF_ERROR(driver.Check(driver.unmap(base_ + at->first, at->second),
                                        fmt::format("unmap {}", FormatByteSize(at->second))));
      at = mapped_.erase(at);
    }
    return Status();
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  DevicePointer base_;
  std::uint64_t bytes_;
  std::map<std::uint64_t, std::uint64_t> mapped_;  ///< offset and length of each mapping
};

}  // namespace

Result<std::unique_ptr<DeviceRuntime>> CudaRuntime::Create(const Config& config) {
  MORI_ASSIGN_OR_RETURN(const Driver* driver, cuda::OpenDriver());
  int count = 0;
  MORI_RETURN_IF_ERROR(driver->Check(driver->device_count(&count), "count the CUDA devices"));
  int ordinal = config.local_rank.value_or(0) % count;
  cuda::Context current = nullptr;
  cuda::Device current_device = 0;
  if (driver->context_current(&current) == cuda::kSuccess && current != nullptr &&
      driver->context_device(&current_device) == cuda::kSuccess) {
    ordinal = current_device;  // a CUdevice is its ordinal
  }
  MORI_ASSIGN_OR_RETURN(auto device, CudaDevice::Open(driver, ordinal));
  std::unique_ptr<CudaRuntime> runtime(new CudaRuntime(std::move(device)));
  MORI_RETURN_IF_ERROR(runtime->Examine());
  MORI_RETURN_IF_ERROR(runtime->ChooseSharing(config.gpu_sharing));
  MORI_ASSIGN_OR_RETURN(runtime->kernels_, CudaKernels::Create(runtime->device_));
  return std::unique_ptr<DeviceRuntime>(std::move(runtime));
}

Status CudaRuntime::Examine() {
  const Driver& driver = device_->driver();
  const CudaDevice::Use use(*device_);
  const cuda::Device device = device_->device();
  std::array<char, 256> text{};
  MORI_RETURN_IF_ERROR(driver.Check(
      driver.device_name(text.data(), static_cast<int>(text.size()), device), "name a device"));
  name_ = text.data();
  MORI_RETURN_IF_ERROR(driver.Check(
      driver.device_bus_id(text.data(), static_cast<int>(text.size()), device), "find a device"));
  bus_id_ = text.data();
  std::size_t bytes = 0;
  MORI_RETURN_IF_ERROR(driver.Check(driver.device_memory(&bytes, device), "size a device"));
  memory_bytes_ = bytes;
  return driver.Check(driver.driver_version(&driver_version_), "ask for the driver's version");
}

std::optional<bool> CudaRuntime::HasAtomicsOn(const std::string& identity) const {
  const Driver& driver = device_->driver();
  cuda::Device other = 0;
  int has_atomics = 0;
  if (driver.device_by_bus_id(&other, identity.c_str()) != cuda::kSuccess ||
      driver.peer_attribute(&has_atomics, cuda::kPeerAttributeNativeAtomics, device_->device(),
                            other) != cuda::kSuccess) {
    return std::nullopt;
  }
  return has_atomics != 0;
}

Status CudaRuntime::ChooseSharing(GpuSharing wanted) {
  const Driver& driver = device_->driver();
  const CudaDevice::Use use(*device_);
  bool can_share_fds = true;
  for (const int attribute : {cuda::kAttributeVmmSupported, cuda::kAttributePosixFdSupported}) {
    int is_supported = 0;
    MORI_RETURN_IF_ERROR(
        driver.Check(driver.device_attribute(&is_supported, attribute, device_->device()),
                     "ask what a device can do"));
    can_share_fds = can_share_fds && is_supported != 0;
  }
  if (wanted == GpuSharing::kFd && !can_share_fds) {
    return Error(ErrorCode::kUnsupported,
                 "CUDA device {} ({}) cannot map memory that is shared by file descriptor, as "
                 "MORI_SHMEM_GPU_SHARING=fd asks for; leave it unset, or set it to ipc",
                 device_->ordinal(), name_);
  }
  if (wanted == GpuSharing::kIpc || !can_share_fds) {
    sharing_ = GpuSharing::kIpc;
    granularity_ = kIpcGranularityBytes;
    return Status();
  }
  std::size_t bytes = 0;
  const cuda::AllocationProperties properties = device_->Properties();
  MORI_RETURN_IF_ERROR(driver.Check(
      driver.granularity(&bytes, &properties, cuda::kGranularityRecommended), "size a page"));
  granularity_ = bytes;
  return Status();
}

std::string CudaRuntime::Describe() const {
  return fmt::format("CUDA device {}, {}, {}, {}, driver for CUDA {}.{}{}", device_->ordinal(),
                     name_, bus_id_, FormatByteSize(memory_bytes_), driver_version_ / 1000,
                     driver_version_ % 1000 / 10,
                     sharing_ == GpuSharing::kIpc ? ", memory shared by CUDA IPC" : "");
}

std::string CudaRuntime::DescribeHeapType(HeapType type) const {
  return type == HeapType::kUncached
             ? "coherent at system scope (NVIDIA devices have one kind of memory)"
             : "device memory, coherent at system scope";
}

Result<std::unique_ptr<DeviceMemory>> CudaRuntime::Allocate(std::uint64_t bytes, HeapType) {
  if (sharing_ == GpuSharing::kIpc) return AllocateForIpc(device_, bytes, bus_id_);
  const CudaDevice::Use use(*device_);
  const Driver& driver = device_->driver();
  const cuda::AllocationProperties properties = device_->Properties();
  cuda::MemoryHandle handle = 0;
  MORI_RETURN_IF_ERROR(
      driver.Check(driver.memory_create(&handle, bytes, &properties, 0),
                   fmt::format("create {} of memory on CUDA device {} ({})", FormatByteSize(bytes),
                               device_->ordinal(), bus_id_)));
  return std::unique_ptr<DeviceMemory>(std::make_unique<CudaMemory>(device_, handle, bytes));
}

Result<std::unique_ptr<DeviceMemory>> CudaRuntime::Import(UniqueFd descriptor,
                                                          std::uint64_t bytes) {
  if (sharing_ == GpuSharing::kIpc) return ImportByIpc(device_, std::move(descriptor), bytes);
  const CudaDevice::Use use(*device_);
  const Driver& driver = device_->driver();
  cuda::MemoryHandle handle = 0;
  auto* descriptor_as_pointer =
      reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get()));
  MORI_RETURN_IF_ERROR(
      driver.Check(driver.memory_import(&handle, descriptor_as_pointer, cuda::kHandleTypePosixFd),
                   "import a peer's memory"));
  return std::unique_ptr<DeviceMemory>(std::make_unique<CudaMemory>(device_, handle, bytes));
}

Result<std::unique_ptr<AddressRange>> CudaRuntime::Reserve(std::uint64_t bytes,
                                                           std::uint64_t alignment) {
  const CudaDevice::Use use(*device_);
  const Driver& driver = device_->driver();
  DevicePointer base = 0;
  MORI_RETURN_IF_ERROR(driver.Check(driver.address_reserve(&base, bytes, alignment, 0, 0),
                                    fmt::format("reserve {} of addresses", FormatByteSize(bytes))));
  return std::unique_ptr<AddressRange>(std::make_unique<CudaRange>(device_, base, bytes));
}

Status CudaRuntime::Copy(void* to, const void* from, std::uint64_t bytes) const {
  const CudaDevice::Use use(*device_);
  const Driver& driver = device_->driver();
  const std::string what = fmt::format("copy {} bytes", bytes);
  MORI_RETURN_IF_ERROR(driver.Check(
      driver.copy_async(reinterpret_cast<DevicePointer>(to), reinterpret_cast<DevicePointer>(from),
                        bytes, device_->stream()),
      what));
  return driver.Check(driver.stream_synchronize(device_->stream()), what);
}

}  // namespace mori::shmem
