// Each operation of the host on memory of a PE, once: over load and store where that reaches, over
// the network otherwise. Arguments are checked here.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "mori/shmem/types.hpp"
#include "runtime/device_runtime.hpp"
#include "shmem/streams.hpp"
#include "shmem/symmetric_memory.hpp"

namespace mori::shmem {

/// When the source of a put may be changed, and the data of a get is there: on return, or after a
/// quiet.
enum class Until { kReturn, kQuiet };

/// Thread-safe. Of every call: kInvalidArgument for no such PE, and for no symmetric range;
/// kPeerLost.
class Operations {
 public:
  /// All are borrowed, and outlive it.
  struct Parts {
    const SymmetricMemory* memory = nullptr;
    const DeviceRuntime* runtime = nullptr;
    RemoteTransport* network = nullptr;  ///< null where load and store reach all
    /// Makes atomics on words of a device; null where words are the host's.
    const Result<std::unique_ptr<Streams>>* device = nullptr;
    /// Links that have no atomics, by PE: "from GPU 0 to GPU 3".
    const std::map<int, std::string>* without_atomics = nullptr;
  };
  explicit Operations(const Parts& parts) : parts_(parts) {}

  Status Put(void* dest, const void* source, std::uint64_t bytes, int pe,
             Until until = Until::kReturn) const;
  Status Get(void* dest, const void* source, std::uint64_t bytes, int pe,
             Until until = Until::kReturn) const;
  /// A put, and a change of `word` that is not seen before its data.
  Status PutSignal(void* dest, const void* source, std::uint64_t bytes, std::uint64_t* word,
                   std::uint64_t signal, SignalOp op, int pe) const;
  /// The change alone.
  Status Signal(std::uint64_t* word, std::uint64_t signal, SignalOp op, int pe) const;
  /// An atomic on a word of `width` bytes, 4 or 8.
  /// @param wants_result  false: the bits that were there are not asked for, and 0 may come back
  /// @return kUnsupported where the link has no atomics
  Result<std::uint64_t> Atomic(detail::AtomicOp op, const void* word, int width,
                               std::uint64_t value, std::uint64_t expected, int pe,
                               bool wants_result) const;
  /// @return kUnsupported where the link to `pe` has no atomics that read and change a word
  Status CheckAtomicsOf(int pe) const;

  /// Orders, and completes, what the network has under way. What load and store do is ordered by
  /// fences of the caller.
  Status Fence() const;
  Status Quiet() const;
  Status Quiet(int pe) const;
  /// Around a meeting; see `Channel::Synchronize()`.
  void Synchronize() const;

 private:
  Result<std::uint64_t> NearAtomic(detail::AtomicOp op, std::byte* word, int width,
                                   std::uint64_t value, std::uint64_t expected) const;

  const Parts parts_;
};

}  // namespace mori::shmem
