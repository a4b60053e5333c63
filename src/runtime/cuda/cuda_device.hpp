// A CUDA device and its primary context.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/cuda/driver.hpp"
#include "runtime/device_kernels.hpp"
#include "runtime/patience.hpp"

namespace mori::shmem {

/// Whether something may still run after a wait for a device, or a mark on it, that ended so: it
/// was given up, a capture forbids it, or there is no memory for it. After all other errors the
/// device runs nothing any more.
inline bool MayStillRun(const Status& awaited) {
  return IsGivenUp(awaited) || awaited.code() == ErrorCode::kUnsupported ||
         awaited.code() == ErrorCode::kOutOfMemory;
}

/// Memory that a kernel may still use when its owner goes: it goes with the process.
void KeepForProcess(std::shared_ptr<void> memory);

/// A device's primary context, and a stream of our own for copies. Shared by all memory and
/// mappings of a runtime, so that it outlives them.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
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

  /// Of all waits from now on. Thread-safe.
  void SetPatience(Patience patience);
  /// Asks `query`, a call of the driver, until it gives another answer than "not ready". Says after
  /// some seconds what is waited for: `what()`, a noun.
  /// @return the driver's error, or that of the patience, with `what()`
  Status WaitWhile(const std::function<cuda::Code()>& query,
                   const std::function<std::string()>& what) const;
  /// Waits for our own stream.
  Status AwaitStream(std::string_view what) const;
  /// Waits for what this process has launched on the device; for nothing if that is gone.
  Status Await() const;
  /// The same before something of it is given back: false if something may still run. That then
  /// keeps it, and it goes with the process.
  bool BecomesIdle() const;
  /// A mark behind all that. Before CUDA 12.5 it waits for it.
  /// @return kUnsupported while a graph is captured in the context, whose capture the driver then
  /// ends
  Result<std::shared_ptr<DeviceMark>> Mark() const;

  /// The device is the calling thread's current one while this exists; the former one is
  /// afterwards. What it calls meanwhile is none of the thread's, or another thread's, captures of
  /// a graph; unless it `kPosts` on a stream of the program, which may be captured.
  class Use {
   public:
    enum class For { kItself, kPosts };
    explicit Use(const CudaDevice& device, For purpose = For::kItself);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    /// Why the device is not current: nothing may be called.
    const Status& status() const { return status_; }

   private:
    const cuda::Driver& driver_;
    bool is_pushed_ = false;
    bool is_exchanged_ = false;
    int mode_ = cuda::kCaptureModeRelaxed;  ///< the thread's own, once it is exchanged
    Status status_;
  };

 private:
  CudaDevice(const cuda::Driver* driver, int ordinal, cuda::Device device)
      : driver_(driver), ordinal_(ordinal), device_(device) {}

  std::shared_ptr<const Patience> patience() const;

  const cuda::Driver* driver_;
  int ordinal_;
  cuda::Device device_;
  cuda::Context context_ = nullptr;
  unsigned long long context_id_ = 0;
  cuda::Stream stream_ = nullptr;
  /// After the last wait for the whole device something may still run, and keeps the context.
  mutable std::atomic<bool> is_busy_ = false;
  mutable std::mutex mutex_;
  std::shared_ptr<const Patience> patience_ = std::make_shared<Patience>();
};

}  // namespace mori::shmem
