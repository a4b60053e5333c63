#include "runtime/cuda/cuda_device.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "base/log.hpp"

namespace mori::shmem {
namespace {

using Clock = std::chrono::steady_clock;

// A look costs a microsecond or so: the first ones need no pause.
constexpr int kLooks = 1000;
constexpr int kYields = 400;
constexpr long kLongestSleepNs = 1'000'000;
constexpr std::chrono::milliseconds kSaidFirst{5000};
/// What a kernel that waits for a lost PE needs at most to see that.
constexpr std::chrono::milliseconds kAfterLoss{3000};

/// The pauses between looks at a device.
class Pace {
 public:
  bool is_new() const { return looks_left_ > 0; }
  void Pause() {
    if (looks_left_ > 0) {
      --looks_left_;
    } else if (yields_left_ > 0) {
      --yields_left_;
      ::sched_yield();
    } else {
      const timespec time{0, sleep_ns_};
      ::nanosleep(&time, nullptr);
      sleep_ns_ = std::min(2 * sleep_ns_, kLongestSleepNs);
    }
  }

 private:
  int looks_left_ = kLooks;
  int yields_left_ = kYields;
  long sleep_ns_ = 50'000;
};

/// What was on the device when it was made.
class ContextMark final : public DeviceMark {
 public:
  ContextMark(std::shared_ptr<const CudaDevice> device, cuda::Event event)
      : device_(std::move(device)), event_(event) {}
  ~ContextMark() override {
    if (device_->IsGone()) return;
    const CudaDevice::Use use(*device_);
    if (use.status().ok()) device_->driver().event_destroy(event_);
  }
  ContextMark(const ContextMark&) = delete;
  ContextMark& operator=(const ContextMark&) = delete;

  bool HasPassed() const override {
    if (device_->IsGone()) return true;
    const CudaDevice::Use use(*device_);
    return !use.status().ok() || device_->driver().event_query(event_) != cuda::kErrorNotReady;
  }
  Status Await(std::string_view what) const override {
    if (device_->IsGone()) return Status();
    const CudaDevice::Use use(*device_);
    MORI_RETURN_IF_ERROR(use.status());
    return device_->WaitWhile([&] { return device_->driver().event_query(event_); },
                              [&] { return std::string(what); });
  }

 private:
  std::shared_ptr<const CudaDevice> device_;
  cuda::Event event_;
};

/// Of a driver that can only wait, and has done so.
class PassedMark final : public DeviceMark {
 public:
  bool HasPassed() const override { return true; }
  Status Await(std::string_view) const override { return Status(); }
};

}  // namespace

void KeepForProcess(std::shared_ptr<void> memory) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(*mutex);
  kept->push_back(std::move(memory));
}

CudaDevice::Use::Use(const CudaDevice& device, For purpose) : driver_(device.driver()) {
  cuda::Context current = nullptr;  // mostly it is current already, and this is cheaper
  if (driver_.context_current(&current) != cuda::kSuccess || current != device.context_) {
    status_ = driver_.Check(driver_.context_push(device.context_),
                            fmt::format("make CUDA device {} current", device.ordinal_));
    is_pushed_ = status_.ok();
  }
  is_exchanged_ = purpose == For::kItself && driver_.capture_mode(&mode_) == cuda::kSuccess;
}

CudaDevice::Use::~Use() {
  if (is_exchanged_) driver_.capture_mode(&mode_);
  cuda::Context popped = nullptr;
  if (is_pushed_) driver_.context_pop(&popped);
}

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
  MORI_RETURN_IF_ERROR(use.status());
  MORI_RETURN_IF_ERROR(driver->Check(
      driver->stream_create(&opened->stream_, cuda::kStreamNonBlocking), "make a CUDA stream"));
  return opened;
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr || IsGone() || is_busy_.load(std::memory_order_relaxed)) return;
  if (stream_ != nullptr) {
    const Use use(*this);
    if (use.status().ok()) driver_->stream_destroy(stream_);
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

void CudaDevice::SetPatience(Patience patience) {
  auto made = std::make_shared<const Patience>(std::move(patience));
  const std::lock_guard lock(mutex_);
  patience_ = std::move(made);
}

std::shared_ptr<const Patience> CudaDevice::patience() const {
  const std::lock_guard lock(mutex_);
  return patience_;
}

Status CudaDevice::WaitWhile(const std::function<cuda::Code()>& query,
                             const std::function<std::string()>& what) const {
  const auto start = Clock::now();
  auto said_next = kSaidFirst;
  std::optional<Clock::time_point> loss;
  for (Pace pace;; pace.Pause()) {
    const cuda::Code answer = query();
    if (answer != cuda::kErrorNotReady)
      return answer == cuda::kSuccess ? Status() : driver_->Check(answer, "wait for " + what());
    if (pace.is_new()) continue;
    const auto so_far = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    if (so_far >= said_next) {
      LogWarn("still waiting for {}: {} s", what(), so_far.count() / 1000);
      said_next *= 2;
    }
    const auto patience = this->patience();
    const Status asked = *patience ? (*patience)(so_far) : Status();
    if (asked.ok()) continue;
    if (!loss) loss = Clock::now();
    if (asked.code() == ErrorCode::kPeerLost && Clock::now() - *loss < kAfterLoss) continue;
    return Error(asked.code(), "{}; it waited for {}", asked.message(), what());
  }
}

Status CudaDevice::AwaitStream(std::string_view what) const {
  return WaitWhile([this] { return driver_->stream_query(stream_); },
                   [&] { return std::string(what); });
}

Result<std::shared_ptr<DeviceMark>> CudaDevice::Mark() const {
  const Use use(*this);
  MORI_RETURN_IF_ERROR(use.status());
  if (driver_->context_record_event == nullptr) {
    MORI_RETURN_IF_ERROR(
        driver_->Check(driver_->context_synchronize(), "wait for what runs on the device"));
    return std::shared_ptr<DeviceMark>(std::make_shared<PassedMark>());
  }
  cuda::Event event = nullptr;
  MORI_RETURN_IF_ERROR(
      driver_->Check(driver_->event_create(&event, cuda::kEventDisableTiming), "make an event"));
  auto mark = std::make_shared<ContextMark>(shared_from_this(), event);
  const cuda::Code recorded = driver_->context_record_event(context_, event);
  if (recorded >= cuda::kErrorCaptureUnsupported && recorded <= cuda::kErrorCapturedEvent) {
    return Error(ErrorCode::kUnsupported,
                 "a CUDA graph is captured on device {} while memory of the heap is given back, "
                 "which the driver does not allow; capture it again",
                 ordinal_);
  }
  MORI_RETURN_IF_ERROR(driver_->Check(recorded, "mark what runs on the device"));
  return std::shared_ptr<DeviceMark>(std::move(mark));
}

Status CudaDevice::Await() const {
  if (IsGone()) return Status();
  const auto mark = Mark();
  Status awaited = mark.ok() ? (*mark)->Await("what runs on the device") : mark.status();
  // Relaxed: read when nobody waits any more.
  is_busy_.store(MayStillRun(awaited), std::memory_order_relaxed);
  return awaited;
}

bool CudaDevice::BecomesIdle() const { return !MayStillRun(Await()); }

cuda::AllocationProperties CudaDevice::Properties() const {
  cuda::AllocationProperties properties;
  properties.location.id = device_;
  return properties;
}

}  // namespace mori::shmem
