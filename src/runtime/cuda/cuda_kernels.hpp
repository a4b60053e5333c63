// Modules, streams and host words of an NVIDIA GPU.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/cuda/kernel_image.hpp"
#include "runtime/device_kernels.hpp"

namespace mori::shmem {

class CudaKernels final : public DeviceKernels {
 public:
  static Result<std::unique_ptr<CudaKernels>> Create(std::shared_ptr<CudaDevice> device);
  ~CudaKernels() override;
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  Result<Symbol> FindSymbol(void* module, const char* name) const override;
  Result<Symbol> FindSymbolInLibrary(void* library, const char* name) const override;
  const void* LibraryImage() const override { return cuda::KernelImage(); }
  Result<void*> LoadModule(const void* image) override;
  Result<Kernel> FindKernel(void* module, const char* name) const override;
  Status Launch(const Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
                void* stream) const override;
  Status LaunchEarly(const Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
                     void* stream) const override;
  Status CopyOnStream(void* to, const void* from, std::uint64_t bytes, void* stream) const override;
  void* own_stream() const override { return device_->stream(); }
  Status SynchronizeOwn() const override;
  bool IsCaptured(void* stream) const override;
  unsigned multiprocessors() const override { return multiprocessors_; }
  Status NotePosted(void* stream, const char* call) override;
  Status AwaitPosted() override;
  Status AwaitDevice() const override { return device_->Await(); }
  Result<std::shared_ptr<DeviceMark>> Mark() const override { return device_->Mark(); }
  Status ReplaceIfHolds(void* address, const void* expected, const void* instead,
                        std::uint64_t bytes) const override;
  Result<std::shared_ptr<void>> MapHost(std::shared_ptr<void> memory, std::uint64_t bytes) override;
  void OnDevice(const std::function<void()>& call) const override;

 private:
  explicit CudaKernels(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  const cuda::Driver& driver() const { return device_->driver(); }
  /// Through the driver's function for that kind of container.
  template <typename Container>
  Result<Symbol> FindIn(Container container, const char* kind,
                        cuda::Code (*find)(cuda::DevicePointer*, std::size_t*, Container,
                                           const char*),
                        const char* name) const;

  std::shared_ptr<CudaDevice> device_;
  unsigned multiprocessors_ = 0;
  int driver_version_ = 0;
  std::vector<cuda::Module> modules_;

  /// An event behind what a call has put on a stream last.
  struct Posted {
    cuda::Event event = nullptr;
    void* stream = nullptr;
    const char* call = "";
  };
  using PostedById = std::map<unsigned long long, Posted>;

  Result<cuda::Event> SpareEvent();  ///< needs the lock
  /// Streams that are done, which may exist no more: a program that makes one for each call would
  /// add to them until its next barrier. Needs the lock.
  void ForgetPassed();
  /// Those that were not waited for, to be waited for again unless something came behind them.
  void PutBack(PostedById posted);

  std::mutex mutex_;
  /// By the driver's number of the stream: one handle means a stream of each thread
  /// (CU_STREAM_PER_THREAD), and handles come again.
  PostedById posted_;
  std::vector<cuda::Event> spare_events_;
  static constexpr std::size_t kForgetAt = 64;
  std::size_t forget_at_ = kForgetAt;  ///< streams, until those that are done are looked for
};

}  // namespace mori::shmem
