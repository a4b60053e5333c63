// Seam: what a device has beyond memory: modules of kernels, streams, and words of the host that
// kernels read. The host backend has none of it.
//
// Implementations: cuda. Streams, modules, libraries and kernels are the vendor's handles. Every
// call leaves the calling thread's current device as it was. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.hpp"

namespace mori::shmem {

/// A point behind all that this process had given to a device when it was made. Thread-safe.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Whether the device has come to it, or is gone.
  virtual bool HasPassed() const = 0;
  /// Returns once it has. `what` is for messages: what is waited for.
  virtual Status Await(std::string_view what) const = 0;
};

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  /// A variable of a module.
  struct Symbol {
    void* address = nullptr;
    std::uint64_t bytes = 0;
  };
  /// @return kInvalidArgument if the module, which the driver has loaded, has no such variable
  virtual Result<Symbol> FindSymbol(void* module, const char* name) const = 0;
  /// The same of a library (CUDA: `CUlibrary`), for this device.
  virtual Result<Symbol> FindSymbolInLibrary(void* library, const char* name) const = 0;

  /// The library's own kernels for `LoadModule()`; null if this build has none.
  virtual const void* LibraryImage() const = 0;
  /// Loads machine code or code for the driver to compile; unloaded with this object.
  virtual Result<void*> LoadModule(const void* image) = 0;
  struct Kernel {
    void* function = nullptr;
    bool can_start_early = false;  ///< made ready while what was on its stream before still runs
  };
  virtual Result<Kernel> FindKernel(void* module, const char* name) const = 0;
  /// Returns once the kernel is on the stream. `arguments` points to each argument.
  virtual Status Launch(const Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
                        void* stream) const = 0;
  /// The same of a kernel that waits by itself for what was on the stream before: early, if it can.
  virtual Status LaunchEarly(const Kernel& kernel, unsigned blocks, unsigned threads,
                             void** arguments, void* stream) const = 0;
  /// Copies as the stream comes to it. Memory of the device, of a peer, or of the host.
  virtual Status CopyOnStream(void* to, const void* from, std::uint64_t bytes,
                              void* stream) const = 0;
  /// A stream for what the host waits for at once.
  virtual void* own_stream() const = 0;
  /// Waits for that stream.
  virtual Status SynchronizeOwn() const = 0;
  /// Whether what is put on `stream` goes into a graph, and does not happen now.
  virtual bool IsCaptured(void* stream) const = 0;
  virtual unsigned multiprocessors() const = 0;

  /// Notes what is on `stream` now: the next `AwaitPosted()` waits for it. Notes nothing while the
  /// stream is captured into a graph, since launches of the graph are not known here. `call`, which
  /// put it there, is for messages, and lives as long as the process.
  virtual Status NotePosted(void* stream, const char* call) = 0;
  virtual Status AwaitPosted() = 0;
  /// Waits for everything that was put on streams of the device by this process; not if the device
  /// has been reset.
  virtual Status AwaitDevice() const = 0;
  /// A mark behind the same. @return kUnsupported while a graph is captured on the device: the
  /// driver then spoils that capture
  virtual Result<std::shared_ptr<DeviceMark>> Mark() const = 0;

  /// Copies `instead` to [address, address + bytes) if that still holds `expected`, and is the
  /// device's at all: a variable of a module that may have been unloaded meanwhile.
  virtual Status ReplaceIfHolds(void* address, const void* expected, const void* instead,
                                std::uint64_t bytes) const = 0;
  /// The address by which kernels reach memory of the host, for as long as it is held. The memory
  /// is kept at least as long, and with the process if a kernel may still use it at the end.
  virtual Result<std::shared_ptr<void>> MapHost(std::shared_ptr<void> memory,
                                                std::uint64_t bytes) = 0;
  /// Makes `call` with the device as the calling thread's current one. Does not make it if the
  /// device has been reset.
  virtual void OnDevice(const std::function<void()>& call) const = 0;
};

}  // namespace mori::shmem
