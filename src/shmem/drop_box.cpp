#include "shmem/drop_box.hpp"

#include "base/log.hpp"

namespace mori::shmem {
namespace {

/// Of a device that does nothing, until it has come to a mark.
constexpr int kLooks = 100;

/// Of the host's memory, and of a device with a fault, which runs nothing any more.
class PassedMark final : public DeviceMark {
 public:
  bool HasPassed() const override { return true; }
  Status Await(std::string_view) const override { return Status(); }
};

/// Null if the device cannot make one now.
std::shared_ptr<DeviceMark> MarkOf(const DeviceKernels* device) {
  if (device == nullptr) return std::make_shared<PassedMark>();
  auto made = device->Mark();
  if (made.ok()) {
    for (int looks = 0; looks < kLooks && !(*made)->HasPassed(); ++looks) {
    }
    return *made;
  }
  const ErrorCode code = made.status().code();
  if (code != ErrorCode::kUnsupported && code != ErrorCode::kOutOfMemory)
    return std::make_shared<PassedMark>();
  LogDebug("memory that was dropped is given back later: {}", made.status().message());
  return nullptr;
}

}  // namespace

bool DropBox::LookForNews(const DeviceKernels* device) {
  std::vector<std::uint64_t> fresh;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [offset, one] : dropped_) {
      if (one.mark == nullptr) fresh.push_back(offset);
    }
  }
  // Without the lock, which a collector in this thread may take.
  const std::shared_ptr<DeviceMark> made = fresh.empty() ? nullptr : MarkOf(device);
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t offset : fresh) {
    if (const auto at = dropped_.find(offset); at != dropped_.end()) at->second.mark = made;
  }
  LookAtMarks();
  bool is_all_told = true;
  bool has_news = false;
  for (const auto& [offset, one] : dropped_) {
    is_all_told = is_all_told && one.is_told;
    has_news = has_news || (one.has_passed && !one.is_told);
  }
  news_.store(!is_all_told, std::memory_order_relaxed);
  return has_news;
}

std::vector<std::uint64_t> DropBox::Released() {
  const std::lock_guard lock(mutex_);
  LookAtMarks();
  std::vector<std::uint64_t> released;
  bool is_all_told = true;
  for (auto& [offset, one] : dropped_) {
    if (one.has_passed) released.push_back(offset);
    one.is_told = one.has_passed;
    is_all_told = is_all_told && one.is_told;
  }
  news_.store(!is_all_told, std::memory_order_relaxed);
  return released;
}

void DropBox::LookAtMarks() {
  const DeviceMark* waiting = nullptr;  // that of many blocks, mostly
  for (auto& [offset, one] : dropped_) {
    if (one.has_passed || one.mark == nullptr || one.mark.get() == waiting) continue;
    one.has_passed = one.mark->HasPassed();
    if (!one.has_passed) waiting = one.mark.get();
  }
}

}  // namespace mori::shmem
