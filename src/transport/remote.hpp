// Seam: memory of PEs that load and store do not reach.
//
// Implementations: ofi (libfabric), and that of the tests over plain memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// A place in memory that another PE has registered. Of a registered range, the place `offset`
/// bytes behind its start has an `address` larger by `offset`, and the same key.
struct RemotePlace {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
};

/// Memory that the CPU does not load from and store to, as that of a device: how bytes get in and
/// out, and how a word is changed. Each call is complete when it returns, and comes after those
/// that returned before. Thread-safe; outlives the registrations that it serves.
class RegionAccess {
 public:
  virtual ~RegionAccess() = default;
  /// A word that is aligned at both ends is stored by one store.
  virtual Status Write(std::byte* to, const void* from, std::uint64_t bytes) = 0;
  virtual Status Read(void* to, const std::byte* from, std::uint64_t bytes) = 0;
  /// Any of AtomicOp, as one with all others that the device and its owner make on the word.
  /// @return the bits that were there before; of kSet anything
  virtual Result<std::uint64_t> Atomic(std::byte* word, detail::AtomicOp op, int width,
                                       std::uint64_t value, std::uint64_t expected) = 0;
};

/// Memory of this PE that others reach as long as this object lives.
class Registration {
 public:
  virtual ~Registration() = default;
  /// Its start, for others.
  virtual RemotePlace place() const = 0;
};

/// Operations on memory of other PEs. All calls are safe from any thread at any time, and
/// operations of several threads share one order and one quiet.
///
/// Callers have checked ranges, alignment and PEs: a place lies in memory that its owner registered
/// and has not taken back, and `pe` was connected. Memory on this side need not be registered.
///
/// Order. Without a fence, what is posted to one PE becomes visible there in any order, except that
/// a signal follows its put. A put or get of up to `kWholeBytes` moves words whole: no reader sees
/// half of one that is aligned to its size at both ends. Of more, half a word may be seen until a
/// signal, a word after a fence, or a quiet says that it is there. Atomics of all PEs on one word,
/// and those of the owner's own CPU, are single copies.
///
/// Errors of every call: kPeerLost if the PE, or one that the wait depends on, is lost; what
/// `RemoteParts::keeps_waiting` ended a wait with. An operation that failed after it was posted is
/// told by the next `Quiet()`, once. After an error of a PE others are served as before. After one
/// of a get, its target may change as long as the transport lives.
class Channel {
 public:
  static constexpr std::uint64_t kWholeBytes = 2048;
  static constexpr std::uint64_t kMostTold = 256;

  virtual ~Channel() = default;

  /// On return the source may be changed; visible after `Quiet()`.
  virtual Status Put(int pe, RemotePlace to, const void* from, std::uint64_t bytes) = 0;
  /// The source stays as it is until `Quiet()`.
  virtual Status PutNbi(int pe, RemotePlace to, const void* from, std::uint64_t bytes) = 0;
  /// On return the data is there.
  virtual Status Get(int pe, void* to, RemotePlace from, std::uint64_t bytes) = 0;
  /// The data is there after `Quiet()`.
  virtual Status GetNbi(int pe, void* to, RemotePlace from, std::uint64_t bytes) = 0;
  /// A put whose `word` changes by `signal` once the data is visible to whoever sees the word. On
  /// return the source may be changed.
  virtual Status PutSignal(int pe, RemotePlace to, const void* from, std::uint64_t bytes,
                           RemotePlace word, std::uint64_t signal, SignalOp op) = 0;
  /// An atomic without a result, of `width` 4 or 8 bytes; done after `Quiet()`. Any of AtomicOp but
  /// kFetch and kCompareSwap; kFetchAdd adds, and so on.
  virtual Status Post(int pe, RemotePlace word, detail::AtomicOp op, int width,
                      std::uint64_t value) = 0;
  /// Words for a wait there, of which the last is seen after the others: `bytes` is a multiple of
  /// 8, `kMostTold` at most, and `to` is aligned to 8. Goes at once, past every fence. No quiet
  /// waits for it, or tells that it failed: who sends it hears of it by an answer.
  virtual Status Tell(int pe, RemotePlace to, const std::uint64_t* words, std::uint64_t bytes) = 0;
  /// Any of AtomicOp. On return `*found` holds the bits that were there before.
  virtual Status Fetch(int pe, RemotePlace word, detail::AtomicOp op, int width,
                       std::uint64_t value, std::uint64_t expected, std::uint64_t* found) = 0;

  /// What was put and posted to a PE before is visible there before what is put, posted or fetched
  /// there afterwards. Does not wait where the network keeps the order.
  virtual Status Fence() = 0;
  /// Returns once everything before is done and visible: puts and atomics there, gets here.
  virtual Status Quiet() = 0;
  /// The same for what went to one PE; an error as long as that is lost.
  virtual Status Quiet(int pe) = 0;

  /// For waits that spin, beside each look: does what others ask of this PE, and sends what is to
  /// be sent, if there is any. Never waits; less than a microsecond if there is nothing.
  virtual void Progress() {}
  /// For waits that sleep: a number that changes once something of others has been carried out
  /// here. To be read before the look that finds nothing.
  virtual std::uint64_t Arrivals() = 0;
  /// Returns once `Arrivals()` is not `seen` any more, and after `limit` at the latest. Sleeps.
  virtual void AwaitArrival(std::uint64_t seen, std::chrono::nanoseconds limit) = 0;
  /// Around a meeting of PEs that goes another way: what others have done to this PE's memory, as
  /// they know, is visible to the calling thread, and what it has written is visible to what they
  /// do next. Does not wait for the network.
  virtual void Synchronize() {}
};

/// What a remote transport is made of.
struct RemoteParts {
  int self = 0;
  int n_pes = 1;
  /// For sentences: "PE 3 (host node7, process 4711)".
  std::function<std::string(int pe)> name = [](int pe) { return fmt::format("PE {}", pe); };
  /// Whether a thread that waits may spin first.
  bool may_spin = false;
  /// Called, from any thread, when the network says that a PE is gone; `why` is "its connection
  /// closed (errno 104)".
  std::function<void(int pe, const std::string& why)> on_loss;
  /// Asked several times a second by a wait that lasts, with how long it has been: an error ends
  /// it. From any thread.
  std::function<Status(std::chrono::milliseconds so_far)> keeps_waiting;
};

/// One network, as this PE uses it.
class RemoteTransport {
 public:
  virtual ~RemoteTransport() = default;
  virtual std::string_view name() const = 0;
  /// For people: "libfabric 1.17, tcp;ofi_rxm over eth0 (10.0.0.7)".
  virtual std::string Describe() const = 0;

  /// What others connect to, opaque to all but this transport; at most 256 bytes.
  virtual Bytes Address() const = 0;
  /// Takes the others' addresses, by PE; empty for those that are reached another way, and may hold
  /// this PE's own. Local: the network itself may connect as late as the first operation. PEs that
  /// are to reach each other both call it; operations of one wait for the other.
  /// @return kInvalidArgument for an address that is none of this transport's
  virtual Status Connect(std::span<const Bytes> addresses, const Deadline& deadline) = 0;

  /// Memory of the host at [start, start + bytes), which stays mapped as long as the registration.
  virtual Result<std::unique_ptr<Registration>> Register(void* start, std::uint64_t bytes) = 0;
  /// Memory that `access` alone reads and changes, at [start, start + bytes).
  virtual Result<std::unique_ptr<Registration>> RegisterThrough(RegionAccess* access, void* start,
                                                                std::uint64_t bytes) = 0;
  /// As long as this transport.
  virtual Channel& channel() = 0;
};

}  // namespace mori::shmem
