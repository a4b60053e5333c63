// Streams of the host backend: the only one is the calling thread.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/element_copy.hpp"
#include "shmem/operations.hpp"
#include "shmem/streams.hpp"

namespace mori::shmem {
namespace {

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMin: return b < a ? b : a;
    case ReduceOp::kMax: return a < b ? b : a;
    case ReduceOp::kSum: break;
  }
  if constexpr (std::is_integral_v<T>) {  // wraps, as in a kernel
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

class HostStreams final : public Streams {
 public:
  explicit HostStreams(HostStreamParts parts) : parts_(std::move(parts)) {}

  Status Copy(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    const auto apart =
        reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
    if (apart < bytes || -apart < bytes) {
      std::memmove(to, from, bytes);
    } else {
      CopyElements(to, from, bytes);
    }
    return Status();
  }
  Status Signal(std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.operations->Signal(sig_addr, signal, op, pe);
  }
  Status Wait(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.wait(sig_addr, cmp, value);
  }
  Status Quiet(void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return parts_.operations->Quiet();
  }
  Status Meet(void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.meet();
  }

  // What a collective puts is complete when its PEs have met, since a meeting begins with a quiet.
  // Who cannot put meets the others all the same.
  Status Broadcast(void* dest, const void* source, std::uint64_t bytes, int root,
                   void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    Status put;
    if (parts_.pe == root) put = PutToAll(dest, 0, source, 0, bytes);
    return Met(put);
  }
  Status FCollect(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return Met(PutToAll(dest, Index() * bytes, source, 0, bytes));
  }
  Status AllToAll(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return Met(PutToAll(dest, Index() * bytes, source, bytes, bytes));
  }
  Status Reduce(void* dest, const void* source, std::uint64_t count, ElementType type, ReduceOp op,
                void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    MORI_RETURN_IF_ERROR(parts_.meet());
    switch (type) {
      case ElementType::kInt32: return Met(ReduceAs<std::int32_t>(dest, source, count, op));
      case ElementType::kUint32: return Met(ReduceAs<std::uint32_t>(dest, source, count, op));
      case ElementType::kInt64: return Met(ReduceAs<std::int64_t>(dest, source, count, op));
      case ElementType::kUint64: return Met(ReduceAs<std::uint64_t>(dest, source, count, op));
      case ElementType::kFloat32: return Met(ReduceAs<float>(dest, source, count, op));
      case ElementType::kFloat64: return Met(ReduceAs<double>(dest, source, count, op));
    }
    return Error(ErrorCode::kInternal, "element type {}", static_cast<int>(type));
  }
  Status RemotePut(void* dest, const void* source, std::uint64_t bytes, int pe,
                   void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.operations->Put(dest, source, bytes, pe);
  }
  Status RemoteGet(void* dest, const void* source, std::uint64_t bytes, int pe,
                   void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.operations->Get(dest, source, bytes, pe);
  }
  Status RemotePutSignal(void* dest, const void* source, std::uint64_t bytes,
                         std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                         void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.operations->PutSignal(dest, source, bytes, sig_addr, signal, op, pe);
  }
  Status Complete() override { return Status(); }
  Result<std::uint64_t> Atomic(detail::AtomicOp, int, void*, std::uint64_t,
                               std::uint64_t) override {
    return Error(ErrorCode::kInternal, "the host's memory needs no help with atomics");
  }

 private:
  static Status CheckStream(const void* stream) {
    if (stream == nullptr) return Status();
    return Error(ErrorCode::kInvalidArgument,
                 "stream {}: on the host backend the only stream is null", stream);
  }
  std::uint64_t Index() const { return static_cast<std::uint64_t>(parts_.pe); }
  Status Met(const Status& done) const {
    const Status met = parts_.meet();
    return done.ok() ? met : done;
  }
  /// `bytes` to every PE, from `source` and as much further for each as `step` says. Begins behind
  /// this PE, so that not all begin with the same.
  Status PutToAll(void* dest, std::uint64_t offset, const void* source, std::uint64_t step,
                  std::uint64_t bytes) const {
    if (bytes == 0) return Status();
    std::byte* const to = static_cast<std::byte*>(dest) + offset;
    for (int i = 1; i <= parts_.world_size; ++i) {
      const int pe = (parts_.pe + i) % parts_.world_size;
      const std::byte* const from =
          static_cast<const std::byte*>(source) + static_cast<std::uint64_t>(pe) * step;
      if (pe == parts_.pe && to == from) continue;
      MORI_RETURN_IF_ERROR(parts_.operations->Put(to, from, bytes, pe, Until::kQuiet));
    }
    return Status();
  }

  /// As in device/collectives.hpp: this PE's part of the elements, to all.
  template <typename T>
  Status ReduceAs(void* dest, const void* source, std::uint64_t count, ReduceOp op) const {
    const auto n_pes = static_cast<std::uint64_t>(parts_.world_size);
    const std::uint64_t part = (count + n_pes - 1) / n_pes;
    const std::uint64_t start = std::min(count, part * Index());
    const std::uint64_t length = std::min(part, count - start);
    const T* mine = static_cast<const T*>(source) + start;
    T* result = static_cast<T*>(dest) + start;
    for (std::uint64_t done = 0; done < length; done += kAtATime<T>) {
      MORI_RETURN_IF_ERROR(
          ReduceSome(result + done, mine + done, std::min(kAtATime<T>, length - done), op));
    }
    return Status();
  }
  /// What fits on the stack. An element is read everywhere before it is stored anywhere.
  template <typename T>
  static constexpr std::uint64_t kAtATime = 4096 / sizeof(T);
  template <typename T>
  Status ReduceSome(T* dest, const T* source, std::uint64_t count, ReduceOp op) const {
    const std::uint64_t bytes = count * sizeof(T);
    std::array<T, kAtATime<T>> values;
    std::array<T, kAtATime<T>> theirs;
    MORI_RETURN_IF_ERROR(parts_.operations->Get(values.data(), source, bytes, 0));
    for (int pe = 1; pe < parts_.world_size; ++pe) {
      MORI_RETURN_IF_ERROR(parts_.operations->Get(theirs.data(), source, bytes, pe));
      for (std::uint64_t i = 0; i < count; ++i) values[i] = Combine(op, values[i], theirs[i]);
    }
    for (int pe = 0; pe < parts_.world_size; ++pe)
      MORI_RETURN_IF_ERROR(parts_.operations->Put(dest, values.data(), bytes, pe));
    return Status();
  }

  HostStreamParts parts_;
};

}  // namespace

std::uint64_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kInt32:
    case ElementType::kUint32:
    case ElementType::kFloat32: return 4;
    case ElementType::kInt64:
    case ElementType::kUint64:
    case ElementType::kFloat64: return 8;
  }
  return 0;
}

std::unique_ptr<Streams> MakeHostStreams(HostStreamParts parts) {
  return std::make_unique<HostStreams>(std::move(parts));
}

}  // namespace mori::shmem
