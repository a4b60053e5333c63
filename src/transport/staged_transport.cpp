#include "transport/staged_transport.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace mori::shmem {
namespace {

using detail::AtomicOp;

/// Addresses in a buffer are as far from a multiple of it as those of the device: words stay whole.
constexpr std::uint64_t kAlike = 64;
/// What passes through a buffer at a time.
constexpr std::uint64_t kBufferBytes = std::uint64_t{256} << 10;

std::uint64_t Misfit(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kAlike;
}

/// A buffer of the host for up to `bytes` of the device's at `address`.
class Buffer {
 public:
  Buffer(const void* address, std::uint64_t bytes) {
    const std::uint64_t wanted = std::min(bytes, kBufferBytes) + 2 * kAlike;
    if (wanted > sizeof small_) large_ = std::make_unique_for_overwrite<std::byte[]>(wanted);
    std::byte* const start = large_ ? large_.get() : small_;
    aligned_ = start + (kAlike - Misfit(start)) % kAlike;
    address_ = static_cast<const std::byte*>(address);
    left_ = bytes;
    Next(0);
  }
  Buffer(const Buffer&) = delete;

  std::byte* data() const { return aligned_ + Misfit(address_); }
  /// Of the part that is at hand; 0 at the end. It ends where words do.
  std::uint64_t bytes() const { return bytes_; }
  void Next(std::uint64_t done) {
    address_ += done;
    left_ -= done;
    bytes_ = std::min(left_, kBufferBytes - Misfit(address_));
  }

 private:
  std::byte small_[4096];
  std::unique_ptr<std::byte[]> large_;
  std::byte* aligned_ = nullptr;
  const std::byte* address_ = nullptr;
  std::uint64_t left_ = 0;
  std::uint64_t bytes_ = 0;
};

RemotePlace Behind(RemotePlace place, std::uint64_t offset) {
  return {place.address + offset, place.key};
}

class StagedChannel final : public Channel {
 public:
  StagedChannel(Channel* network, const DeviceRuntime* runtime)
      : network_(*network), runtime_(*runtime) {}

  Status Put(int pe, RemotePlace to, const void* from, std::uint64_t bytes) override {
    if (!runtime_.IsOfDevice(from)) return network_.Put(pe, to, from, bytes);
    return PutOfDevice(pe, to, from, bytes);
  }
  Status PutNbi(int pe, RemotePlace to, const void* from, std::uint64_t bytes) override {
    if (!runtime_.IsOfDevice(from)) return network_.PutNbi(pe, to, from, bytes);
    return PutOfDevice(pe, to, from, bytes);
  }
  Status Get(int pe, void* to, RemotePlace from, std::uint64_t bytes) override {
    if (!runtime_.IsOfDevice(to)) return network_.Get(pe, to, from, bytes);
    return GetToDevice(pe, to, from, bytes);
  }
  /// To the device at once: its buffer would have to wait for the quiet otherwise.
  Status GetNbi(int pe, void* to, RemotePlace from, std::uint64_t bytes) override {
    if (!runtime_.IsOfDevice(to)) return network_.GetNbi(pe, to, from, bytes);
    return GetToDevice(pe, to, from, bytes);
  }
  Status PutSignal(int pe, RemotePlace to, const void* from, std::uint64_t bytes, RemotePlace word,
                   std::uint64_t signal, SignalOp op) override {
    if (!runtime_.IsOfDevice(from))
      return network_.PutSignal(pe, to, from, bytes, word, signal, op);
    const Buffer buffer(from, bytes);
    if (buffer.bytes() == bytes) {
      MORI_RETURN_IF_ERROR(runtime_.Copy(buffer.data(), from, bytes));
      return network_.PutSignal(pe, to, buffer.data(), bytes, word, signal, op);
    }
    MORI_RETURN_IF_ERROR(PutOfDevice(pe, to, from, bytes));
    MORI_RETURN_IF_ERROR(network_.Fence());
    return network_.Post(pe, word, op == SignalOp::kAdd ? AtomicOp::kFetchAdd : AtomicOp::kSet,
                         sizeof signal, signal);
  }
  Status Post(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value) override {
    return network_.Post(pe, word, op, width, value);
  }
  Status Tell(int pe, RemotePlace to, const std::uint64_t* words, std::uint64_t bytes) override {
    return network_.Tell(pe, to, words, bytes);
  }
  Status Fetch(int pe, RemotePlace word, AtomicOp op, int width, std::uint64_t value,
               std::uint64_t expected, std::uint64_t* found) override {
    return network_.Fetch(pe, word, op, width, value, expected, found);
  }
  Status Fence() override { return network_.Fence(); }
  Status Quiet() override { return network_.Quiet(); }
  Status Quiet(int pe) override { return network_.Quiet(pe); }
  void Progress() override { network_.Progress(); }
  std::uint64_t Arrivals() override { return network_.Arrivals(); }
  void AwaitArrival(std::uint64_t seen, std::chrono::nanoseconds limit) override {
    network_.AwaitArrival(seen, limit);
  }
  void Synchronize() override { network_.Synchronize(); }

 private:
  Status PutOfDevice(int pe, RemotePlace to, const void* from, std::uint64_t bytes) {
    std::uint64_t done = 0;
    for (Buffer buffer(from, bytes); buffer.bytes() > 0;) {
      const std::uint64_t part = buffer.bytes();
      MORI_RETURN_IF_ERROR(
          runtime_.Copy(buffer.data(), static_cast<const std::byte*>(from) + done, part));
      MORI_RETURN_IF_ERROR(network_.Put(pe, Behind(to, done), buffer.data(), part));
      done += part;
      buffer.Next(part);
    }
    return Status();
  }
  Status GetToDevice(int pe, void* to, RemotePlace from, std::uint64_t bytes) {
    std::uint64_t done = 0;
    for (Buffer buffer(to, bytes); buffer.bytes() > 0;) {
      const std::uint64_t part = buffer.bytes();
      MORI_RETURN_IF_ERROR(network_.Get(pe, buffer.data(), Behind(from, done), part));
      MORI_RETURN_IF_ERROR(runtime_.Copy(static_cast<std::byte*>(to) + done, buffer.data(), part));
      done += part;
      buffer.Next(part);
    }
    return Status();
  }

  Channel& network_;
  const DeviceRuntime& runtime_;
};

class StagedTransport final : public RemoteTransport {
 public:
  StagedTransport(std::unique_ptr<RemoteTransport> network, const DeviceRuntime* runtime,
                  RegionAccess* access)
      : network_(std::move(network)), access_(access), channel_(&network_->channel(), runtime) {}

  std::string_view name() const override { return network_->name(); }
  std::string Describe() const override {
    return network_->Describe() + ", by way of the host's memory";
  }
  Bytes Address() const override { return network_->Address(); }
  Status Connect(std::span<const Bytes> addresses, const Deadline& deadline) override {
    return network_->Connect(addresses, deadline);
  }
  Result<std::unique_ptr<Registration>> Register(void* start, std::uint64_t bytes) override {
    return network_->RegisterThrough(access_, start, bytes);
  }
  Result<std::unique_ptr<Registration>> RegisterThrough(RegionAccess* access, void* start,
                                                        std::uint64_t bytes) override {
    return network_->RegisterThrough(access, start, bytes);
  }
  Channel& channel() override { return channel_; }

 private:
  std::unique_ptr<RemoteTransport> network_;
  RegionAccess* access_;
  StagedChannel channel_;
};

}  // namespace

void DeviceAccess::SetAtomics(WordAtomic atomic) {
  const std::unique_lock lock(mutex_);
  atomic_ = std::move(atomic);
}

Status DeviceAccess::Write(std::byte* to, const void* from, std::uint64_t bytes) {
  return runtime_->Copy(to, from, bytes);
}

Status DeviceAccess::Read(void* to, const std::byte* from, std::uint64_t bytes) {
  return runtime_->Copy(to, from, bytes);
}

Result<std::uint64_t> DeviceAccess::Atomic(std::byte* word, AtomicOp op, int width,
                                           std::uint64_t value, std::uint64_t expected) {
  const auto bytes = static_cast<std::uint64_t>(width);
  if (op == AtomicOp::kSet) {
    MORI_RETURN_IF_ERROR(runtime_->Copy(word, &value, bytes));  // its low bytes come first
    return std::uint64_t{0};
  }
  if (op == AtomicOp::kFetch) {
    std::uint64_t found = 0;
    MORI_RETURN_IF_ERROR(runtime_->Copy(&found, word, bytes));
    return found;
  }
  const std::shared_lock lock(mutex_);
  if (atomic_) return atomic_(op, width, word, value, expected);
  return Error(ErrorCode::kNotInitialized, "this PE makes no atomics on words of its device now");
}

std::unique_ptr<RemoteTransport> MakeStagedTransport(std::unique_ptr<RemoteTransport> network,
                                                     const DeviceRuntime* runtime,
                                                     RegionAccess* access) {
  return std::make_unique<StagedTransport>(std::move(network), runtime, access);
}

}  // namespace mori::shmem
