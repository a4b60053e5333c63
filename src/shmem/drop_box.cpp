#include "shmem/drop_box.hpp"

#include "base/log.hpp"

namespace mori::shmem {
namespace {

/// Of a device that does nothing, until it has come to a mark: some milliseconds at most.
constexpr int kLooks = 1000;

/// Of a device with a fault, which runs nothing any more.
class PassedMark final : public DeviceMark {
 public:
  bool HasPassed() const override { return true; }
  Status Await(std::string_view) const override { return Status(); }
};

/// Null if the device cannot make one now.
std::shared_ptr<DeviceMark> MarkOf(const DeviceKernels& device) {
  auto made = device.Mark();
  if (made.ok()) {
    for (int looks = 0; looks < kLooks && !(*made)->HasPassed(); ++looks) {
    }
    return *made;
  }
  if (made.status().code() != ErrorCode::kUnsupported) return std::make_shared<PassedMark>();
  LogDebug("memory that was dropped is given back later: {}", made.status().message());
  return nullptr;
}

}  // namespace

std::vector<std::uint64_t> DropBox::Released(const DeviceKernels* device) {
  std::vector<std::uint64_t> fresh;
  std::vector<std::uint64_t> released;
  {
    const std::lock_guard lock(mutex_);
    news_.store(false, std::memory_order_relaxed);
    for (const auto& [offset, mark] : dropped_) {
      if (device == nullptr) {
        released.push_back(offset);
      } else if (mark == nullptr) {
        fresh.push_back(offset);
      }
    }
  }
  if (device == nullptr) return released;
  // Without the lock, which a collector in this thread may take.
  const std::shared_ptr<DeviceMark> made = fresh.empty() ? nullptr : MarkOf(*device);
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t offset : fresh) {
    if (const auto at = dropped_.find(offset); at != dropped_.end()) at->second = made;
  }
  for (const auto& [offset, mark] : dropped_) {
    if (mark != nullptr && mark->HasPassed()) {
      released.push_back(offset);
    } else {
      news_.store(true, std::memory_order_relaxed);  // to be asked again
    }
  }
  return released;
}

}  // namespace mori::shmem
