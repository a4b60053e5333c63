// What a PE puts on streams: each operation once, its arguments checked by the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "mori/shmem/device/context.hpp"
#include "mori/shmem/host_ops.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

class Operations;

/// Addresses are of this PE, or mapped here where a name says `to` or `word`. Thread-safe, except
/// that the collective calls come one at a time.
class Streams {
 public:
  virtual ~Streams() = default;

  virtual Status Copy(void* to, const void* from, std::uint64_t bytes, void* stream) = 0;
  virtual Status Signal(std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                        void* stream) = 0;
  virtual Status Wait(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value,
                      void* stream) = 0;
  virtual Status Quiet(void* stream) = 0;
  virtual Status Meet(void* stream) = 0;
  virtual Status Broadcast(void* dest, const void* source, std::uint64_t bytes, int root,
                           void* stream) = 0;
  virtual Status FCollect(void* dest, const void* source, std::uint64_t bytes, void* stream) = 0;
  virtual Status AllToAll(void* dest, const void* source, std::uint64_t bytes, void* stream) = 0;
  virtual Status Reduce(void* dest, const void* source, std::uint64_t count, ElementType type,
                        ReduceOp op, void* stream) = 0;
  // Of a PE that the network alone reaches; addresses there are symmetric ones. What is put is
  // visible there after a quiet, or by its signal.
  virtual Status RemotePut(void* dest, const void* source, std::uint64_t bytes, int pe,
                           void* stream) = 0;
  virtual Status RemoteGet(void* dest, const void* source, std::uint64_t bytes, int pe,
                           void* stream) = 0;
  virtual Status RemotePutSignal(void* dest, const void* source, std::uint64_t bytes,
                                 std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                                 void* stream) = 0;
  /// Returns once what was put on streams has happened.
  virtual Status Complete() = 0;

  /// An atomic on a word of the device, of 4 or 8 bytes, now. @return what was there
  virtual Result<std::uint64_t> Atomic(detail::AtomicOp operation, int bytes, void* word,
                                       std::uint64_t value, std::uint64_t expected) = 0;
};

/// Bytes of an element.
std::uint64_t ElementBytes(ElementType type);

/// What the host's streams need of a PE.
struct HostStreamParts {
  const Operations* operations = nullptr;
  int pe = 0;
  int world_size = 1;
  std::function<Status()> meet;
  std::function<Status(const std::uint64_t* word, Cmp cmp, std::uint64_t value)> wait;
};
/// Makes each call at once.
std::unique_ptr<Streams> MakeHostStreams(HostStreamParts parts);

class LibraryKernels;
/// Where a PE's kernels run.
struct DeviceOfPe {
  std::string id;  ///< the same for PEs that share the device
  unsigned multiprocessors = 0;
};
/// Multiprocessors that every PE has for itself, at least, where those of a device share it evenly:
/// the same number on all PEs, whatever their devices.
unsigned SmallestShare(const std::vector<DeviceOfPe>& devices);

/// Puts kernels of the library on streams; `kernels` is borrowed. `multiprocessors`, that a PE has
/// for itself, must be the same on all PEs: blocks that meet have one of their number on each.
std::unique_ptr<Streams> MakeDeviceStreams(const LibraryKernels* kernels,
                                           const device::DeviceContext& context,
                                           unsigned multiprocessors);

}  // namespace mori::shmem
