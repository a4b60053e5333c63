#include "runtime/cuda/cuda_ipc.hpp"

#include <sodium.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace mori::shmem {
namespace {

using cuda::DevicePointer;

/// What an exported file holds.
struct Record {
  static constexpr std::array<char, 8> kMagic = {'m', 'o', 'r', 'i', 'i', 'p', 'c', '1'};
  std::array<char, 8> magic = kMagic;
  std::array<unsigned char, 16> process{};  ///< `ProcessToken()` of the owner's
  std::uint64_t number = 0;                 ///< of the allocation, in that process
  std::uint64_t bytes = 0;
  cuda::IpcHandle handle;
};
static_assert(sizeof(Record) == 104, "no padding: PEs of one version exchange it");

/// Tells this process from all others, in whatever namespace they count theirs.
const std::array<unsigned char, 16>& ProcessToken() {
  static const auto token = [] {
    std::array<unsigned char, 16> made{};
    randombytes_buf(made.data(), made.size());
    return made;
  }();
  return token;
}

std::byte* AsBytes(DevicePointer address) { return reinterpret_cast<std::byte*>(address); }

/// Memory that this process allocated. Freed with the last who holds it.
class Allocation {
 public:
  Allocation(std::shared_ptr<CudaDevice> device, DevicePointer address, std::uint64_t bytes)
      : device_(std::move(device)), address_(address), bytes_(bytes) {}
  ~Allocation() {
    if (device_->IsGone()) return;  // and the memory with it
    if (!device_->BecomesIdle()) return;
    const CudaDevice::Use use(*device_);
    if (use.status().ok()) device_->driver().memory_free(address_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const CudaDevice& device() const { return *device_; }
  DevicePointer address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<CudaDevice> device_;
  DevicePointer address_;
  std::uint64_t bytes_;
};

/// The allocations of this process that it may be asked to import.
class Allocations {
 public:
  static Allocations& Instance() {
    static auto* const instance = new Allocations;
    return *instance;
  }
  std::uint64_t Add(const std::shared_ptr<Allocation>& allocation) {
    const std::lock_guard lock(mutex_);
    std::erase_if(by_number_, [](const auto& entry) { return entry.second.expired(); });
    by_number_.emplace(++last_, allocation);
    return last_;
  }
  std::shared_ptr<Allocation> Find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = by_number_.find(number);
    return found == by_number_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::weak_ptr<Allocation>> by_number_;
};

/// An allocation of this process, for the PE that made it or for another one.
class OwnMemory final : public DeviceMemory {
 public:
  /// `user`: the other device from which it is used, if it is.
  OwnMemory(std::shared_ptr<Allocation> allocation, std::uint64_t number,
            std::shared_ptr<CudaDevice> user = nullptr)
      : allocation_(std::move(allocation)), number_(number), user_(std::move(user)) {}
  ~OwnMemory() override {
    // A view that outlived finalize may be in use by a kernel.
    if (user_ != nullptr && !user_->BecomesIdle()) KeepForProcess(allocation_);
  }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  std::uint64_t bytes() const override { return allocation_->bytes(); }
  std::byte* address() const override { return AsBytes(allocation_->address()); }

  Result<UniqueFd> Export() const override {
    const CudaDevice& device = allocation_->device();
    Record record;
    record.process = ProcessToken();
    record.number = number_;
    record.bytes = bytes();
    const CudaDevice::Use use(device);
    MORI_RETURN_IF_ERROR(use.status());
    MORI_RETURN_IF_ERROR(device.driver().Check(
        device.driver().ipc_get(&record.handle, allocation_->address()),
        fmt::format("export {} of device memory by CUDA IPC", FormatByteSize(bytes()))));
    auto file =
        UniqueFd::KeptFromChildren([] { return ::memfd_create("mori_shmem_ipc", MFD_CLOEXEC); });
    if (!file.valid()) return Status::FromErrno(errno, "create a file for an IPC handle");
    if (::write(file.get(), &record, sizeof record) != static_cast<ssize_t>(sizeof record)) {
      return Status::FromErrno(errno, "write an IPC handle");
    }
    return file;
  }

 private:
  std::shared_ptr<Allocation> allocation_;
  std::uint64_t number_;
  std::shared_ptr<CudaDevice> user_;
};

/// Memory of another process.
class OpenedMemory final : public DeviceMemory {
 public:
  OpenedMemory(std::shared_ptr<CudaDevice> device, DevicePointer address, std::uint64_t bytes)
      : device_(std::move(device)), address_(address), bytes_(bytes) {}
  ~OpenedMemory() override {
    if (device_->IsGone()) return;
    // What was launched on it may still be under way; if it does not end, it keeps the memory.
    if (!device_->BecomesIdle()) return;
    const CudaDevice::Use use(*device_);
    if (use.status().ok()) device_->driver().ipc_close(address_);
  }
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;

  std::uint64_t bytes() const override { return bytes_; }
  std::byte* address() const override { return AsBytes(address_); }
  Result<UniqueFd> Export() const override {
    return Error(ErrorCode::kInternal, "memory that was imported by CUDA IPC is not exported");
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  DevicePointer address_;
  std::uint64_t bytes_;
};

Result<std::unique_ptr<DeviceMemory>> ImportOwn(std::shared_ptr<CudaDevice> device,
                                                const Record& record) {
  auto allocation = Allocations::Instance().Find(record.number);
  if (allocation == nullptr || allocation->bytes() != record.bytes) {
    return Error(ErrorCode::kMismatch, "the memory of a PE of this process is gone already");
  }
  if (allocation->device().device() == device->device()) device = nullptr;
  if (device != nullptr) {
    const CudaDevice::Use use(*device);
    MORI_RETURN_IF_ERROR(use.status());
    const cuda::Code enabled =
        device->driver().enable_peer_access(allocation->device().context(), 0);
    if (enabled != cuda::kErrorPeerAccessAlreadyEnabled) {
      MORI_RETURN_IF_ERROR(device->driver().Check(
          enabled, fmt::format("reach the memory of CUDA device {} from CUDA device {}",
                               allocation->device().ordinal(), device->ordinal())));
    }
  }
  return std::unique_ptr<DeviceMemory>(
      std::make_unique<OwnMemory>(std::move(allocation), record.number, std::move(device)));
}

}  // namespace

Result<std::unique_ptr<DeviceMemory>> AllocateForIpc(std::shared_ptr<CudaDevice> device,
                                                     std::uint64_t bytes,
                                                     const std::string& bus_id) {
  const CudaDevice::Use use(*device);
  MORI_RETURN_IF_ERROR(use.status());
  DevicePointer address = 0;
  MORI_RETURN_IF_ERROR(
      device->driver().Check(device->driver().memory_allocate(&address, bytes),
                             fmt::format("allocate {} of memory on CUDA device {} ({})",
                                         FormatByteSize(bytes), device->ordinal(), bus_id)));
  auto allocation = std::make_shared<Allocation>(std::move(device), address, bytes);
  const std::uint64_t number = Allocations::Instance().Add(allocation);
  return std::unique_ptr<DeviceMemory>(std::make_unique<OwnMemory>(std::move(allocation), number));
}

Result<std::unique_ptr<DeviceMemory>> ImportByIpc(std::shared_ptr<CudaDevice> device,
                                                  UniqueFd descriptor, std::uint64_t bytes) {
  Record record;
  const ssize_t got = ::pread(descriptor.get(), &record, sizeof record, 0);
  if (got < 0) return Status::FromErrno(errno, "read a peer's IPC handle");
  if (got != static_cast<ssize_t>(sizeof record) || record.magic != Record::kMagic ||
      record.bytes != bytes) {
    return Error(ErrorCode::kMismatch, "a peer has sent no IPC handle of {}",
                 FormatByteSize(bytes));
  }
  if (record.process == ProcessToken()) return ImportOwn(std::move(device), record);
  const CudaDevice::Use use(*device);
  MORI_RETURN_IF_ERROR(use.status());
  DevicePointer address = 0;
  MORI_RETURN_IF_ERROR(device->driver().Check(
      device->driver().ipc_open(&address, record.handle, cuda::kIpcLazyEnablePeerAccess),
      fmt::format("open {} of a peer's memory by CUDA IPC on CUDA device {}", FormatByteSize(bytes),
                  device->ordinal())));
  return std::unique_ptr<DeviceMemory>(
      std::make_unique<OpenedMemory>(std::move(device), address, bytes));
}

}  // namespace mori::shmem
