// Streams of a device: copies by its driver, everything else by the library's kernels.
#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>

#include "shmem/library_kernels.hpp"
#include "shmem/streams.hpp"

namespace mori::shmem {
namespace {

using Name = LibraryKernels::Name;

constexpr unsigned kThreads = 512;
constexpr unsigned kWarp = 32;
/// What one thread copies at least, if there are blocks for it.
constexpr std::uint64_t kBytesPerThread = 32;
/// Up to here the end of all blocks costs more than what more blocks copy in the same time.
constexpr std::uint64_t kMeetingBytes = std::uint64_t{2} << 20;
/// What a PE reads of all, at most, to combine all elements by itself.
constexpr std::uint64_t kAtOnceBytes = std::uint64_t{1} << 20;
/// What one block sends to all others at most, as small messages: twice that in words with tags.
constexpr std::uint64_t kSmallBytes = std::uint64_t{32} << 10;

class DeviceStreams final : public Streams {
 public:
  DeviceStreams(const LibraryKernels* kernels, const device::DeviceContext& context,
                unsigned multiprocessors)
      : kernels_(*kernels),
        device_(kernels->device()),
        pe_(context.my_pe),
        world_size_(context.n_pes),
        has_remote_pes_((context.flags & device::kHasRemotePes) != 0),
        meeting_blocks_(
            std::clamp(multiprocessors / 2, 1U, static_cast<unsigned>(device::kMeetingBlocks))) {
    few_.my_pe = context.my_pe;
    if (context.n_pes > device::kFewPes || has_remote_pes_) return;
    few_.n_pes = context.n_pes;
    for (std::uint32_t pe = 0; pe < context.n_pes; ++pe)
      few_.sync[pe] = reinterpret_cast<device::SyncWords*>(context.inline_pes[pe].sync);
  }

  Status Copy(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    MORI_RETURN_IF_ERROR(device_.CopyOnStream(to, from, bytes, stream));
    return device_.NotePosted(stream, "a put or get");
  }
  Status Signal(std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                void* stream) override {
    MORI_RETURN_IF_ERROR(
        kernels_.Launch(Name::kSignal, 1, 1, stream, sig_addr, signal, static_cast<int>(op), pe));
    return device_.NotePosted(stream, "a signal");
  }
  Status Wait(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value, void* stream) override {
    return kernels_.Launch(Name::kWait, 1, 1, stream, sig_addr, static_cast<int>(cmp), value);
  }
  Status Quiet(void* stream) override {
    return kernels_.Launch(has_remote_pes_ ? Name::kRemoteQuiet : Name::kFence, 1, 1, stream);
  }
  Status Meet(void* stream) override {
    if (few_.n_pes == 0) return kernels_.LaunchEarly(Name::kMeet, 1, kWarp, stream);
    return kernels_.LaunchEarly(Name::kMeetFew, 1, kWarp, stream, few_);
  }

  Status Broadcast(void* dest, const void* source, std::uint64_t bytes, int root,
                   void* stream) override {
    if (has_remote_pes_) {
      const bool is_root = pe_ == static_cast<std::uint64_t>(root);
      return LaunchCollect(dest, source, is_root ? bytes : 0, 0, stream);
    }
    if (IsSmall(bytes))
      return LaunchSmall(Name::kSmallBroadcast, stream, dest, source, bytes, root);
    return LaunchGrid(Name::kBroadcast, GridFor(bytes), stream, dest, source, bytes, root);
  }
  Status FCollect(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    if (has_remote_pes_) return LaunchCollect(PartOfMine(dest, bytes), source, bytes, 0, stream);
    if (IsSmall(bytes))
      return LaunchSmall(Name::kSmallGather, stream, dest, source, bytes, std::uint64_t{0});
    return LaunchGrid(Name::kFCollect, GridFor(bytes), stream, dest, source, bytes);
  }
  Status AllToAll(void* dest, const void* source, std::uint64_t bytes, void* stream) override {
    if (has_remote_pes_)
      return LaunchCollect(PartOfMine(dest, bytes), source, bytes, bytes, stream);
    if (IsSmall(bytes)) return LaunchSmall(Name::kSmallGather, stream, dest, source, bytes, bytes);
    return LaunchGrid(Name::kAllToAll, GridFor(bytes), stream, dest, source, bytes);
  }
  Status Reduce(void* dest, const void* source, std::uint64_t count, ElementType type, ReduceOp op,
                void* stream) override {
    const std::uint64_t bytes = count * ElementBytes(type);
    if (has_remote_pes_) {
      MORI_RETURN_IF_ERROR(kernels_.LaunchEarly(LibraryKernels::Of(Name::kRemoteReduce, type), 1,
                                                kThreads, stream, dest, source, count,
                                                static_cast<int>(op)));
      return device_.NotePosted(stream, "a collective");
    }
    if (IsSmall(bytes))
      return LaunchSmall(LibraryKernels::Of(Name::kSmallReduce, type), stream, dest, source, count,
                         static_cast<int>(op));
    if (const unsigned blocks = BlocksAtOnce(dest, source, bytes); blocks > 0) {
      return LaunchGrid(LibraryKernels::Of(Name::kReduceAtOnce, type), {blocks, true}, stream, dest,
                        source, count, static_cast<int>(op));
    }
    const Grid grid = GridFor(bytes / world_size_);
    if (!grid.meets) MORI_RETURN_IF_ERROR(Meet(stream));  // the sources are ready
    return LaunchGrid(LibraryKernels::Of(Name::kReduce, type), grid, stream, dest, source, count,
                      static_cast<int>(op));
  }
  Status RemotePut(void* dest, const void* source, std::uint64_t bytes, int pe,
                   void* stream) override {
    MORI_RETURN_IF_ERROR(kernels_.Launch(Name::kRemotePut, 1, 1, stream, dest, source, bytes, pe));
    return device_.NotePosted(stream, "a put or get");
  }
  Status RemoteGet(void* dest, const void* source, std::uint64_t bytes, int pe,
                   void* stream) override {
    MORI_RETURN_IF_ERROR(kernels_.Launch(Name::kRemoteGet, 1, 1, stream, dest, source, bytes, pe));
    return device_.NotePosted(stream, "a put or get");
  }
  Status RemotePutSignal(void* dest, const void* source, std::uint64_t bytes,
                         std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe,
                         void* stream) override {
    MORI_RETURN_IF_ERROR(kernels_.Launch(Name::kRemotePutSignal, 1, 1, stream, dest, source, bytes,
                                         sig_addr, signal, static_cast<int>(op), pe));
    return device_.NotePosted(stream, "a put with a signal");
  }
  Status Complete() override { return device_.AwaitPosted(); }

  Result<std::uint64_t> Atomic(detail::AtomicOp operation, int bytes, void* word,
                               std::uint64_t value, std::uint64_t expected) override {
    MORI_RETURN_IF_ERROR(result_.status());
    const std::lock_guard lock(atomic_mutex_);
    MORI_RETURN_IF_ERROR(kernels_.Launch(Name::kAtomic, 1, 1, device_.own_stream(),
                                         static_cast<int>(operation), bytes, word, value, expected,
                                         static_cast<std::uint64_t*>(result_->get())));
    MORI_RETURN_IF_ERROR(device_.SynchronizeOwn());
    return result_page_->value;
  }

 private:
  /// A page of its own: it is mapped for the device.
  struct alignas(4096) ResultPage {
    std::uint64_t value = 0;
  };

  struct Grid {
    unsigned blocks;
    bool meets;  ///< each block those of the same number, and not the last one for all
  };
  /// Blocks that meet wait for each other, so those of all PEs of the device must have room on it.
  Grid GridFor(std::uint64_t bytes) const {
    const auto wanted = static_cast<unsigned>(std::min<std::uint64_t>(
        bytes / (kThreads * kBytesPerThread) + 1, device_.multiprocessors()));
    if (few_.n_pes == 0 || bytes > kMeetingBytes) return {wanted, false};
    return {std::min(wanted, meeting_blocks_), true};
  }
  /// Blocks by which every PE combines `bytes` by itself, 16 a thread; 0 where that is not
  /// possible, or no gain.
  unsigned BlocksAtOnce(const void* dest, const void* source, std::uint64_t bytes) const {
    constexpr std::uint64_t kVector = 16;
    const auto addresses =
        reinterpret_cast<std::uintptr_t>(dest) | reinterpret_cast<std::uintptr_t>(source);
    if (few_.n_pes == 0 || addresses % kVector != 0 || bytes * few_.n_pes > kAtOnceBytes) return 0;
    // Elements behind the last vector have a thread each.
    const std::uint64_t threads = bytes / kVector + bytes % kVector / sizeof(std::uint32_t);
    const std::uint64_t blocks = threads / kThreads + 1;
    return blocks <= meeting_blocks_ ? static_cast<unsigned>(blocks) : 0;
  }
  /// Blocks that meet start early: they fill half the device at most, and the kernel before them
  /// was no larger, or leaves without waiting for anybody.
  template <typename... Arguments>
  Status LaunchGrid(Name name, const Grid& grid, void* stream, Arguments... arguments) {
    MORI_RETURN_IF_ERROR(
        grid.meets
            ? kernels_.LaunchEarly(name, grid.blocks, kThreads, stream, few_, arguments...)
            : kernels_.Launch(name, grid.blocks, kThreads, stream, device::FewPes{}, arguments...));
    return device_.NotePosted(stream, "a collective");
  }

  /// What is put to each PE is there when all have met.
  Status LaunchCollect(void* dest, const void* source, std::uint64_t bytes, std::uint64_t stride,
                       void* stream) {
    MORI_RETURN_IF_ERROR(kernels_.Launch(Name::kCollect, GridFor(bytes).blocks, kThreads, stream,
                                         dest, source, bytes, stride));
    return device_.NotePosted(stream, "a collective");
  }
  void* PartOfMine(void* dest, std::uint64_t bytes) const {
    return static_cast<std::byte*>(dest) + pe_ * bytes;
  }

  /// Whether small messages, `bytes` to each other PE, are the faster way.
  bool IsSmall(std::uint64_t bytes) const {
    return few_.n_pes != 0 && bytes <= device::kInboxWords * sizeof(std::uint32_t) &&
           bytes * (few_.n_pes - 1) <= kSmallBytes;
  }
  template <typename... Arguments>
  Status LaunchSmall(Name name, void* stream, Arguments... arguments) {
    MORI_RETURN_IF_ERROR(kernels_.LaunchEarly(name, 1, kThreads, stream, few_, arguments...));
    return device_.NotePosted(stream, "a collective");
  }

  const LibraryKernels& kernels_;
  DeviceKernels& device_;
  std::uint64_t pe_;
  std::uint64_t world_size_;
  bool has_remote_pes_;
  unsigned meeting_blocks_;
  device::FewPes few_{};

  std::mutex atomic_mutex_;
  std::shared_ptr<ResultPage> result_page_ = std::make_shared<ResultPage>();
  /// Where kernels reach it. From the start: mapping may wait for kernels that run.
  Result<std::shared_ptr<void>> result_ = device_.MapHost(result_page_, sizeof *result_page_);
};

}  // namespace

unsigned SmallestShare(const std::vector<DeviceOfPe>& devices) {
  std::map<std::string_view, unsigned> pes;
  for (const DeviceOfPe& device : devices) ++pes[device.id];
  unsigned smallest = std::numeric_limits<unsigned>::max();
  for (const DeviceOfPe& device : devices)
    smallest = std::min(smallest, device.multiprocessors / pes[device.id]);
  return smallest;
}

std::unique_ptr<Streams> MakeDeviceStreams(const LibraryKernels* kernels,
                                           const device::DeviceContext& context,
                                           unsigned multiprocessors) {
  return std::make_unique<DeviceStreams>(kernels, context, multiprocessors);
}

}  // namespace mori::shmem
