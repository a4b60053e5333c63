// The thread of the host that carries out what kernels of this PE have put on their ring.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "heap/remote_pieces.hpp"
#include "mori/shmem/device/ring.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

/// What of a ring lies in memory of the host: zeros at first. Kernels reach all of it.
struct alignas(4096) RingPages {
  static constexpr std::uint32_t kEntries = 1024;
  device::RingEntry entries[kEntries];
  device::u64 results[kEntries];
  device::RingDone done;
};

/// One for each ring. Commands are carried out one after the other, in the order in which they were
/// put on the ring: one that waits, as a get or a quiet does, holds up those behind it.
class Proxy {
 public:
  struct Parts {
    std::shared_ptr<RingPages> pages;
    Channel* channel = nullptr;  ///< outlives the proxy
    int n_pes = 1;
    std::vector<int> remote_pes;  ///< those that load and store do not reach
    /// Where `bytes` at `offset` of a PE's memory begin, and how far they, or more, are there in
    /// one piece. An error for a range that is not all in it.
    std::function<Result<RemotePieces::Stretch>(device::RingMemory memory, std::uint64_t offset,
                                                std::uint64_t bytes, int pe)>
        locate;
    /// Kernels look at it: a command that fails is noted there, if no other fault is. May be null.
    device::FaultRecord* fault = nullptr;
    /// Called before a command that failed since a PE is lost is told: returns once kernels can see
    /// that it is, or they may never. May be empty.
    std::function<void()> await_loss;
    bool may_spin = false;
  };

  /// Starts the thread. @return kSystem when the system has no more threads
  static Result<std::unique_ptr<Proxy>> Start(Parts parts);
  /// Carries out what is on the ring, and ends. What comes later fails at once.
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  /// Returns once the first `tickets` commands are carried out; what they put may still be under
  /// way. Asks `keeps_waiting` several times a second, which may end the wait. Thread-safe.
  Status Await(std::uint64_t tickets,
               const std::function<Status(std::chrono::milliseconds so_far)>& keeps_waiting) const;
  /// Why the first command failed since the last call of this; success if none has. Thread-safe.
  Status TakeFailure();

 private:
  explicit Proxy(Parts parts) : parts_(std::move(parts)) {}

  void Run();
  Status CarryOut(const device::RingCommand& command, std::uint64_t* result);
  Status Transfer(const device::RingCommand& command, int pe, std::uint64_t here);
  Status PutSignal(const device::RingCommand& command, int pe);
  /// Of what must lie in one piece: words do, since pieces begin and end on pages.
  Result<RemotePlace> PlaceOf(const device::RingCommand& command, std::uint64_t offset,
                              std::uint64_t bytes, int pe) const;
  void Fail(const device::RingCommand& command, const Status& why);

  const Parts parts_;
  std::uint64_t next_ = 0;  ///< the ticket of the next command
  std::atomic<bool> is_ending_{false};
  std::mutex mutex_;
  Status failure_;
  std::thread thread_;
};

}  // namespace mori::shmem
