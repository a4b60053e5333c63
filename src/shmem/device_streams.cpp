// Streams of a device: copies by its driver, everything else by the library's kernels.
#include <algorithm>
#include <mutex>

#include "shmem/library_kernels.hpp"
#include "shmem/streams.hpp"

namespace mori::shmem {
namespace {

using Name = LibraryKernels::Name;

constexpr unsigned kThreads = 512;
constexpr unsigned kWarp = 32;
/// What one thread copies in a turn of its loop.
constexpr std::uint64_t kBytesPerThread = 128;

class DeviceStreams final : public Streams {
 public:
  DeviceStreams(const LibraryKernels* kernels, const device::DeviceContext& context)
      : kernels_(*kernels), device_(kernels->device()), world_size_(context.n_pes) {
    few_.my_pe = context.my_pe;
    few_.n_pes = context.n_pes;
    for (std::uint32_t pe = 0; pe < std::min(context.n_pes, few_.kMostPes); ++pe)
      few_.sync[pe] = reinterpret_cast<device::SyncWords*>(context.near_pes[pe].sync);
  }

  Status Copy(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(device_.CopyOnStream(to, from, bytes, stream));
    return device_.NotePosted(stream);
  }
  Status Signal(std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                void* stream) override {
    MORI_RETURN_IF_ERROR(
        kernels_.Launch(Name::kSignal, 1, 1, stream, sig_addr, signal, static_cast<int>(op), pe));
    return device_.NotePosted(stream);
  }
  Status Wait(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value, void* stream) override {
    return kernels_.Launch(Name::kWait, 1, 1, stream, sig_addr, static_cast<int>(cmp), value);
  }
  Status Quiet(void* stream) override { return kernels_.Launch(Name::kFence, 1, 1, stream); }
  Status Meet(void* stream) override {
    if (few_.n_pes <= few_.kMostPes)
      return kernels_.LaunchEarly(Name::kMeetFew, kWarp, stream, few_);
    return kernels_.LaunchEarly(Name::kMeet, kWarp, stream);
  }

  Status Broadcast(void* dest, const void* source, std::uint64_t bytes, int root,
                   void* stream) override {
    return LaunchGrid(Name::kBroadcast, Blocks(bytes), stream, dest, source, bytes, root);
  }
  Status FCollect(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    return LaunchGrid(Name::kFCollect, Blocks(bytes), stream, dest, source, bytes);
  }
  Status AllToAll(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    return LaunchGrid(Name::kAllToAll, Blocks(bytes), stream, dest, source, bytes);
  }
  Status Reduce(void* dest, const void* source, std::uint64_t count, ElementType type, ReduceOp op,
                void* stream) override {
    const unsigned blocks = Blocks(count * ElementBytes(type) / world_size_);
    if (blocks > 1) MORI_RETURN_IF_ERROR(Meet(stream));  // the sources are ready
    return LaunchGrid(LibraryKernels::ReduceName(type, op), blocks, stream, dest, source, count);
  }
  Status Complete() override { return device_.AwaitPosted(); }

  Result<std::uint64_t> Atomic(detail::AtomicOp operation, int bytes, void* word,
                               std::uint64_t value, std::uint64_t expected) override {
    MORI_RETURN_IF_ERROR(result_.status());
    const std::lock_guard lock(atomic_mutex_);
    MORI_RETURN_IF_ERROR(kernels_.Launch(Name::kAtomic, 1, 1, device_.own_stream(),
                                         static_cast<int>(operation), bytes, word, value, expected,
                                         static_cast<std::uint64_t*>(result_->get())));
    MORI_RETURN_IF_ERROR(device_.Synchronize(device_.own_stream()));
    return result_word_.value;
  }

 private:
  /// A page of its own: it is mapped for the device.
  struct alignas(4096) ResultPage {
    std::uint64_t value = 0;
  };

  unsigned Blocks(std::uint64_t bytes) const {
    const std::uint64_t wanted = bytes / (kThreads * kBytesPerThread) + 1;
    return static_cast<unsigned>(std::min<std::uint64_t>(wanted, device_.multiprocessors()));
  }
  /// One block starts early. Many would take the multiprocessors, while they wait, from kernels of
  /// other PEs on this device, which what they wait for may need.
  template <typename... Arguments>
  Status LaunchGrid(Name name, unsigned blocks, void* stream, Arguments... arguments) {
    MORI_RETURN_IF_ERROR(blocks == 1
                             ? kernels_.LaunchEarly(name, kThreads, stream, arguments...)
                             : kernels_.Launch(name, blocks, kThreads, stream, arguments...));
    return device_.NotePosted(stream);
  }

  const LibraryKernels& kernels_;
  DeviceKernels& device_;
  std::uint64_t world_size_;
  device::MeetArguments few_{};

  std::mutex atomic_mutex_;
  ResultPage result_word_;
  /// Where kernels reach `result_word_`. From the start: mapping may wait for kernels that run.
  Result<std::shared_ptr<void>> result_ = device_.MapHost(&result_word_, sizeof result_word_);
};

}  // namespace

std::unique_ptr<Streams> MakeDeviceStreams(const LibraryKernels* kernels,
                                           const device::DeviceContext& context) {
  return std::make_unique<DeviceStreams>(kernels, context);
}

}  // namespace mori::shmem
