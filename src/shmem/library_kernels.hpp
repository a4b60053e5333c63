// The library's own kernels (src/kernels/library_kernels.cu), loaded on one PE's device.
#pragma once

#include <array>
#include <memory>

#include "mori/shmem/types.hpp"
#include "runtime/device_kernels.hpp"

namespace mori::shmem {

class LibraryKernels {
 public:
  enum class Name {
    kMeet,
    kMeetFew,
    kSignal,
    kWait,
    kFence,
    kAtomic,
    kBroadcast,
    kFCollect,
    kAllToAll,
    kSmallBroadcast,
    kSmallGather,
    kRemotePut,  ///< and those behind it: where some PEs are reached by the ring alone
    kRemoteGet,
    kRemotePutSignal,
    kRemoteQuiet,
    kCollect,
    kReduce,                           ///< and those behind it: one for each type
    kReduceAtOnce = kReduce + 6,       ///< the same
    kSmallReduce = kReduceAtOnce + 6,  ///< the same
    kRemoteReduce = kSmallReduce + 6,  ///< the same
  };
  static Name Of(Name first, ElementType type) {
    return static_cast<Name>(static_cast<std::size_t>(first) + static_cast<std::size_t>(type));
  }

  /// Loads all of them, so that none is loaded later, which would wait for kernels that run.
  /// @return kUnsupported in a build without them
  static Result<std::unique_ptr<LibraryKernels>> Load(DeviceKernels* device);

  DeviceKernels& device() const { return *device_; }
  /// For the publication of a PE's state.
  void* module() const { return module_; }

  template <typename... Arguments>
  Status Launch(Name name, unsigned blocks, unsigned threads, void* stream,
                Arguments... arguments) const {
    std::array<void*, sizeof...(arguments) + 1> addresses = {&arguments..., nullptr};
    return device_->Launch(kernels_[static_cast<std::size_t>(name)], blocks, threads,
                           addresses.data(), stream);
  }
  /// Of a kernel that waits by itself for what was on the stream before.
  template <typename... Arguments>
  Status LaunchEarly(Name name, unsigned blocks, unsigned threads, void* stream,
                     Arguments... arguments) const {
    std::array<void*, sizeof...(arguments) + 1> addresses = {&arguments..., nullptr};
    return device_->LaunchEarly(kernels_[static_cast<std::size_t>(name)], blocks, threads,
                                addresses.data(), stream);
  }

 private:
  static constexpr std::size_t kTypes = 6;
  static constexpr std::size_t kCount = static_cast<std::size_t>(Name::kRemoteReduce) + kTypes;

  LibraryKernels(DeviceKernels* device, void* module) : device_(device), module_(module) {}

  DeviceKernels* device_;
  void* module_;
  std::array<DeviceKernels::Kernel, kCount> kernels_{};
};

}  // namespace mori::shmem
