// Streams of the host backend: the only one is the calling thread.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/element_copy.hpp"
#include "heap/heap.hpp"
#include "mori/shmem/host_ops.hpp"
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
    auto* word = At(sig_addr, sizeof *sig_addr, pe);
    // Release: pairs with the acquiring load of who waits for the signal.
    if (op == SignalOp::kSet) {
      __atomic_store_n(word, signal, __ATOMIC_RELEASE);
    } else {
      __atomic_fetch_add(word, signal, __ATOMIC_RELEASE);
    }
    return Status();
  }
  Status Wait(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.wait(sig_addr, cmp, value);
  }
  Status Quiet(void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return Status();
  }
  Status Meet(void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    return parts_.meet();
  }

  Status Broadcast(void* dest, const void* source, std::uint64_t bytes, int root,
                   void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    if (parts_.pe == root) {
      for (int pe = 0; pe < parts_.world_size; ++pe) Put(dest, 0, source, bytes, pe);
    }
    return parts_.meet();
  }
  Status FCollect(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    for (int pe = 0; pe < parts_.world_size; ++pe)
      Put(dest, static_cast<std::uint64_t>(parts_.pe) * bytes, source, bytes, pe);
    return parts_.meet();
  }
  Status AllToAll(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    for (int pe = 0; pe < parts_.world_size; ++pe) {
      Put(dest, static_cast<std::uint64_t>(parts_.pe) * bytes,
          static_cast<const std::byte*>(source) + static_cast<std::uint64_t>(pe) * bytes, bytes,
          pe);
    }
    return parts_.meet();
  }
  Status Reduce(void* dest, const void* source, std::uint64_t count, ElementType type, ReduceOp op,
                void* stream) override {
    MORI_RETURN_IF_ERROR(CheckStream(stream));
    MORI_RETURN_IF_ERROR(parts_.meet());
    switch (type) {
      case ElementType::kInt32: ReduceAs<std::int32_t>(dest, source, count, op); break;
      case ElementType::kUint32: ReduceAs<std::uint32_t>(dest, source, count, op); break;
      case ElementType::kInt64: ReduceAs<std::int64_t>(dest, source, count, op); break;
      case ElementType::kUint64: ReduceAs<std::uint64_t>(dest, source, count, op); break;
      case ElementType::kFloat32: ReduceAs<float>(dest, source, count, op); break;
      case ElementType::kFloat64: ReduceAs<double>(dest, source, count, op); break;
    }
    return parts_.meet();
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
  template <typename T>
  T* At(T* address, std::uint64_t bytes, int pe) const {
    return reinterpret_cast<T*>(parts_.heap->Translate(address, bytes, pe));
  }
  void Put(void* dest, std::uint64_t offset, const void* source, std::uint64_t bytes,
           int pe) const {
    std::byte* to =
        reinterpret_cast<std::byte*>(At(static_cast<std::byte*>(dest) + offset, bytes, pe));
    if (bytes > 0 && to != source) CopyElements(to, source, bytes);
  }

  /// As in device/collectives.hpp: this PE's part of the elements, to all.
  template <typename T>
  void ReduceAs(void* dest, const void* source, std::uint64_t count, ReduceOp op) const {
    const auto n_pes = static_cast<std::uint64_t>(parts_.world_size);
    const std::uint64_t part = (count + n_pes - 1) / n_pes;
    const std::uint64_t start = std::min(count, part * static_cast<std::uint64_t>(parts_.pe));
    const std::uint64_t length = std::min(part, count - start);
    if (length == 0) return;
    const T* mine = static_cast<const T*>(source) + start;
    T* result = static_cast<T*>(dest) + start;
    for (std::uint64_t done = 0; done < length; done += kAtATime<T>)
      ReduceSome(result + done, mine + done, std::min(kAtATime<T>, length - done), op);
  }
  /// What fits on the stack. An element is read everywhere before it is stored anywhere.
  template <typename T>
  static constexpr std::uint64_t kAtATime = 4096 / sizeof(T);
  template <typename T>
  void ReduceSome(T* dest, const T* source, std::uint64_t count, ReduceOp op) const {
    const std::uint64_t bytes = count * sizeof(T);
    std::array<T, kAtATime<T>> values;
    std::memcpy(values.data(), At(source, bytes, 0), bytes);
    for (int pe = 1; pe < parts_.world_size; ++pe) {
      const T* theirs = At(source, bytes, pe);
      for (std::uint64_t i = 0; i < count; ++i) values[i] = Combine(op, values[i], theirs[i]);
    }
    for (int pe = 0; pe < parts_.world_size; ++pe)
      CopyElements(At(dest, bytes, pe), values.data(), bytes);
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
