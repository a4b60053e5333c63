#include "runtime/cuda/cuda_runtime.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/log.hpp"
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
    MORI_RETURN_IF_ERROR(use.status());
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

}  // namespace

/// Unmaps memory behind the kernels that may use it: at once where the device is idle, otherwise
/// when somebody asks again. A free that waited for them could wait for ever: they may wait for a
/// kernel that another PE launches when it comes back from the same free. Thread-safe.
class CudaUnmapper {
 public:
  explicit CudaUnmapper(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  Status Unmap(DevicePointer address, std::uint64_t bytes) {
    MORI_RETURN_IF_ERROR(SettlePassed());
    PutOff one{address, bytes, nullptr};
    if (const Status marked = MarkOf(one); !marked.ok()) {
      if (!MayStillRun(marked)) return marked;
      LogWarn("{} that was freed stays mapped for now: {}", FormatByteSize(bytes),
              marked.message());
    }
    for (int looks = 0; one.mark != nullptr && looks < kLooks; ++looks) {
      if (one.mark->HasPassed()) return UnmapNow(address, bytes);
    }
    const std::lock_guard lock(mutex_);
    put_off_.push_back(std::move(one));
    return Status();
  }
  /// Unmaps what was put off in [address, address + bytes); with `waits`, all of it.
  Status Settle(bool waits, DevicePointer address, std::uint64_t bytes) {
    std::vector<PutOff> due;
    {
      const std::lock_guard lock(mutex_);
      for (auto at = put_off_.begin(); at != put_off_.end();) {
        const bool is_meant = at->address - address < bytes || address - at->address < at->bytes;
        if (!is_meant || (!waits && !HasPassed(*at))) {
          ++at;
          continue;
        }
        due.push_back(std::move(*at));
        at = put_off_.erase(at);
      }
    }
    Status outcome;
    Status given_up;  // once: each wait would take the whole time that waits have
    for (PutOff& one : due) {
      Status settled = given_up;
      if (given_up.ok() || HasPassed(one)) {
        settled = MarkOf(one);
        if (settled.ok()) settled = one.mark->Await("kernels that may use memory which was freed");
      }
      if (MayStillRun(settled)) {
        given_up = settled;
        const std::lock_guard lock(mutex_);
        put_off_.push_back(std::move(one));
      } else if (const Status unmapped = UnmapNow(one.address, one.bytes); settled.ok()) {
        settled = unmapped;
      }
      if (outcome.ok()) outcome = settled;
    }
    return outcome;
  }
  Status SettleAll() { return Settle(true, 0, UINT64_MAX); }
  /// Unmaps, without a wait, what nothing uses any more.
  Status SettlePassed() { return Settle(false, 0, UINT64_MAX); }

 private:
  struct PutOff {
    DevicePointer address;
    std::uint64_t bytes;
    std::shared_ptr<DeviceMark> mark;  ///< null: a capture, or a lack of memory, was in the way
  };
  /// Without a mark it is not known: a new one each time would spoil each capture.
  static bool HasPassed(const PutOff& one) { return one.mark != nullptr && one.mark->HasPassed(); }
  /// Makes the mark that is missing.
  Status MarkOf(PutOff& one) const {
    if (one.mark != nullptr) return Status();
    MORI_ASSIGN_OR_RETURN(one.mark, device_->Mark());
    return Status();
  }
  /// Of an idle device, until it has come to a mark: some milliseconds at most.
  static constexpr int kLooks = 1000;

  Status UnmapNow(DevicePointer address, std::uint64_t bytes) const {
    const CudaDevice::Use use(*device_);
    MORI_RETURN_IF_ERROR(use.status());
    return device_->driver().Check(device_->driver().unmap(address, bytes),
                                   fmt::format("unmap {}", FormatByteSize(bytes)));
  }

  std::shared_ptr<CudaDevice> device_;
  std::mutex mutex_;
  std::vector<PutOff> put_off_;
};

namespace {

class CudaRange final : public AddressRange {
 public:
  CudaRange(std::shared_ptr<CudaDevice> device, std::shared_ptr<CudaUnmapper> unmapper,
            DevicePointer base, std::uint64_t bytes)
      : device_(std::move(device)), unmapper_(std::move(unmapper)), base_(base), bytes_(bytes) {}
  ~CudaRange() override {
    if (!device_->IsGone()) {
      // Work that was launched on the memory may still be under way, a barrier for example. What
      // does not end keeps its memory, which then goes with the process.
      Status idle = unmapper_->Settle(true, base_, bytes_);
      if (idle.ok() && !mapped_.empty()) idle = device_->Await();
      if (MayStillRun(idle)) {
        LogWarn("{} of addresses stay mapped on CUDA device {}: {}", FormatByteSize(bytes_),
                device_->ordinal(), idle.message());
        return;
      }
    }
    std::optional<CudaDevice::Use> use;
    if (!mapped_.empty() && !device_->IsGone()) use.emplace(*device_);
    for (const auto& [offset, bytes] : mapped_) device_->driver().unmap(base_ + offset, bytes);
    device_->driver().address_free(base_, bytes_);
  }
  CudaRange(const CudaRange&) = delete;
  CudaRange& operator=(const CudaRange&) = delete;

  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }
  std::uint64_t bytes() const override { return bytes_; }

  Status Map(std::uint64_t offset, const DeviceMemory& memory) override {
    MORI_RETURN_IF_ERROR(unmapper_->Settle(true, base_ + offset, memory.bytes()));
    const CudaDevice::Use use(*device_);
    MORI_RETURN_IF_ERROR(use.status());
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
    if (device_->IsGone()) return Error(ErrorCode::kSystem, "the device has been reset");
    for (auto at = mapped_.lower_bound(offset);
         at != mapped_.end() && at->first < offset + bytes;) {
      MORI_RETURN_IF_ERROR(unmapper_->Unmap(base_ + at->first, at->second));
      at = mapped_.erase(at);
    }
    return Status();
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaUnmapper> unmapper_;
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
  runtime->unmapper_ = std::make_shared<CudaUnmapper>(runtime->device_);
  MORI_RETURN_IF_ERROR(runtime->Examine());
  MORI_RETURN_IF_ERROR(runtime->ChooseSharing(config.gpu_sharing));
  MORI_ASSIGN_OR_RETURN(runtime->kernels_, CudaKernels::Create(runtime->device_));
  return std::unique_ptr<DeviceRuntime>(std::move(runtime));
}

Status CudaRuntime::Examine() {
  const Driver& driver = device_->driver();
  const CudaDevice::Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
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

std::optional<bool> CudaRuntime::CanReach(const std::string& identity) const {
  const Driver& driver = device_->driver();
  cuda::Device other = 0;
  int can_reach = 0;
  if (driver.device_by_bus_id(&other, identity.c_str()) != cuda::kSuccess) return std::nullopt;
  if (other == device_->device()) return true;
  if (driver.can_access_peer(&can_reach, device_->device(), other) != cuda::kSuccess)
    return std::nullopt;
  return can_reach != 0;
}

Status CudaRuntime::ChooseSharing(GpuSharing wanted) {
  const Driver& driver = device_->driver();
  const CudaDevice::Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
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
  MORI_RETURN_IF_ERROR(use.status());
  const Driver& driver = device_->driver();
  const cuda::AllocationProperties properties = device_->Properties();
  cuda::MemoryHandle handle = 0;
  cuda::Code created = driver.memory_create(&handle, bytes, &properties, 0);
  if (created == cuda::kErrorOutOfMemory) {  // freed memory may still be mapped
    MORI_RETURN_IF_ERROR(unmapper_->SettleAll());
    created = driver.memory_create(&handle, bytes, &properties, 0);
  }
  MORI_RETURN_IF_ERROR(
      driver.Check(created, fmt::format("create {} of memory on CUDA device {} ({})",
                                        FormatByteSize(bytes), device_->ordinal(), bus_id_)));
  return std::unique_ptr<DeviceMemory>(std::make_unique<CudaMemory>(device_, handle, bytes));
}

Result<std::unique_ptr<DeviceMemory>> CudaRuntime::Import(UniqueFd descriptor,
                                                          std::uint64_t bytes) {
  if (sharing_ == GpuSharing::kIpc) return ImportByIpc(device_, std::move(descriptor), bytes);
  const CudaDevice::Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
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
  MORI_RETURN_IF_ERROR(use.status());
  const Driver& driver = device_->driver();
  DevicePointer base = 0;
  MORI_RETURN_IF_ERROR(driver.Check(driver.address_reserve(&base, bytes, alignment, 0, 0),
                                    fmt::format("reserve {} of addresses", FormatByteSize(bytes))));
  return std::unique_ptr<AddressRange>(
      std::make_unique<CudaRange>(device_, unmapper_, base, bytes));
}

void CudaRuntime::UnmapPassed() {
  if (const Status settled = unmapper_->SettlePassed(); !settled.ok())
    LogDebug("memory that was freed was not unmapped: {}", settled.message());
}

bool CudaRuntime::IsOfDevice(const void* address) const {
  const CudaDevice::Use use(*device_);
  unsigned type = 0;
  return use.status().ok() &&
         device_->driver().pointer_attribute(&type, cuda::kPointerMemoryType,
                                             reinterpret_cast<DevicePointer>(address)) ==
             cuda::kSuccess &&
         type == cuda::kMemoryTypeDevice;
}

Status CudaRuntime::Copy(void* to, const void* from, std::uint64_t bytes) const {
  const CudaDevice::Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  const Driver& driver = device_->driver();
  const std::string what = fmt::format("copy {} bytes", bytes);
  MORI_RETURN_IF_ERROR(driver.Check(
      driver.copy_async(reinterpret_cast<DevicePointer>(to), reinterpret_cast<DevicePointer>(from),
                        bytes, device_->stream()),
      what));
  return device_->AwaitStream(what);
}

}  // namespace mori::shmem
