#include "runtime/cuda/cuda_kernels.hpp"

#include <algorithm>
#include <cstring>

namespace mori::shmem {

using cuda::DevicePointer;

namespace {

using Use = CudaDevice::Use;

constexpr std::uint64_t kPageBytes = 4096;

DevicePointer Address(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

}  // namespace

Result<std::unique_ptr<CudaKernels>> CudaKernels::Create(std::shared_ptr<CudaDevice> device) {
  std::unique_ptr<CudaKernels> kernels(new CudaKernels(std::move(device)));
  int count = 0;
  MORI_RETURN_IF_ERROR(kernels->driver().Check(
      kernels->driver().device_attribute(&count, cuda::kAttributeMultiprocessors,
                                         kernels->device_->device()),
      "count a device's multiprocessors"));
  kernels->multiprocessors_ = static_cast<unsigned>(std::max(count, 1));
  MORI_RETURN_IF_ERROR(kernels->driver().Check(
      kernels->driver().driver_version(&kernels->driver_version_), "ask for the driver's version"));
  return kernels;
}

CudaKernels::~CudaKernels() {
  if (device_->IsGone()) return;
  if (!device_->BecomesIdle()) return;  // what still runs keeps its modules
  const Use use(*device_);
  if (!use.status().ok()) return;
  for (const auto& [id, posted] : posted_) driver().event_destroy(posted.event);
  for (cuda::Event event : spare_events_) driver().event_destroy(event);
  for (cuda::Module module : modules_) driver().module_unload(module);
}

template <typename Container>
Result<DeviceKernels::Symbol> CudaKernels::FindIn(Container container, const char* kind,
                                                  cuda::Code (*find)(DevicePointer*, std::size_t*,
                                                                     Container, const char*),
                                                  const char* name) const {
  if (container == nullptr) return Error(ErrorCode::kInvalidArgument, "the {} is null", kind);
  const Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  DevicePointer address = 0;
  std::size_t bytes = 0;
  const cuda::Code result = find(&address, &bytes, container, name);
  if (result == cuda::kErrorNotFound) {
    return Error(ErrorCode::kInvalidArgument,
                 "the {} has no {}: it does not include the device headers, or was compiled "
                 "with -rdc=true and not linked",
                 kind, name);
  }
  MORI_RETURN_IF_ERROR(driver().Check(result, fmt::format("find {} in a {}", name, kind)));
  return Symbol{reinterpret_cast<void*>(address), bytes};
}

Result<DeviceKernels::Symbol> CudaKernels::FindSymbol(void* module, const char* name) const {
  return FindIn(static_cast<cuda::Module>(module), "module", driver().module_global, name);
}

Result<DeviceKernels::Symbol> CudaKernels::FindSymbolInLibrary(void* library,
                                                               const char* name) const {
  return FindIn(static_cast<cuda::Library>(library), "library", driver().library_global, name);
}

Result<void*> CudaKernels::LoadModule(const void* image) {
  const Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  cuda::Module module = nullptr;
  MORI_RETURN_IF_ERROR(driver().Check(driver().module_load(&module, image), "load kernels"));
  const std::lock_guard lock(mutex_);
  modules_.push_back(module);
  return static_cast<void*>(module);
}

Result<DeviceKernels::Kernel> CudaKernels::FindKernel(void* module, const char* name) const {
  const Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  cuda::Function function = nullptr;
  MORI_RETURN_IF_ERROR(
      driver().Check(driver().module_function(&function, static_cast<cuda::Module>(module), name),
                     fmt::format("find the kernel {}", name)));
  // Code for earlier devices does not wait by itself.
  int compiled_for = 0;
  const cuda::Code asked =
      driver().function_attribute(&compiled_for, cuda::kFunctionPtxVersion, function);
  return Kernel{function, asked == cuda::kSuccess && compiled_for >= cuda::kEarlyLaunchPtxVersion};
}

Status CudaKernels::Launch(const Kernel& kernel, unsigned blocks, unsigned threads,
                           void** arguments, void* stream) const {
  const Use use(*device_, Use::For::kPosts);
  MORI_RETURN_IF_ERROR(use.status());
  return driver().Check(
      driver().launch(static_cast<cuda::Function>(kernel.function), blocks, 1, 1, threads, 1, 1, 0,
                      static_cast<cuda::Stream>(stream), arguments, nullptr),
      "launch a kernel");
}

Status CudaKernels::LaunchEarly(const Kernel& kernel, unsigned blocks, unsigned threads,
                                void** arguments, void* stream) const {
  if (!kernel.can_start_early ||
      (driver_version_ < cuda::kVersionOfEarlyCapture && IsCaptured(stream))) {
    return Launch(kernel, blocks, threads, arguments, stream);
  }
  const Use use(*device_, Use::For::kPosts);
  MORI_RETURN_IF_ERROR(use.status());
  cuda::LaunchAttribute early;
  early.id = cuda::kLaunchProgrammaticSerialization;
  early.value[0] = 1;
  cuda::LaunchConfig config;
  config.grid[0] = blocks;
  config.block[0] = threads;
  config.stream = static_cast<cuda::Stream>(stream);
  config.attributes = &early;
  config.attribute_count = 1;
  return driver().Check(
      driver().launch_ex(&config, static_cast<cuda::Function>(kernel.function), arguments, nullptr),
      "launch a kernel");
}

Status CudaKernels::CopyOnStream(void* to, const void* from, std::uint64_t bytes,
                                 void* stream) const {
  if (bytes == 0) return Status();
  const Use use(*device_, Use::For::kPosts);
  MORI_RETURN_IF_ERROR(use.status());
  return driver().Check(
      driver().copy_async(Address(to), Address(from), bytes, static_cast<cuda::Stream>(stream)),
      fmt::format("copy {} bytes on a stream", bytes));
}

Status CudaKernels::SynchronizeOwn() const {
  const Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  return device_->AwaitStream("a kernel of the library");
}

bool CudaKernels::IsCaptured(void* stream) const {
  const Use use(*device_, Use::For::kPosts);
  int capture = cuda::kCaptureNone;
  // An error: another stream is captured, which this one, the default stream, waits for.
  return use.status().ok() && (driver().stream_is_capturing(static_cast<cuda::Stream>(stream),
                                                            &capture) != cuda::kSuccess ||
                               capture != cuda::kCaptureNone);
}

Result<cuda::Event> CudaKernels::SpareEvent() {
  cuda::Event event = nullptr;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
    return event;
  }
  MORI_RETURN_IF_ERROR(
      driver().Check(driver().event_create(&event, cuda::kEventDisableTiming), "make an event"));
  return event;
}

Status CudaKernels::NotePosted(void* stream, const char* call) {
  const Use use(*device_, Use::For::kPosts);
  MORI_RETURN_IF_ERROR(use.status());
  auto* const handle = static_cast<cuda::Stream>(stream);
  int capture = 0;
  MORI_RETURN_IF_ERROR(
      driver().Check(driver().stream_is_capturing(handle, &capture), "look at a stream"));
  if (capture != cuda::kCaptureNone) return Status();
  unsigned long long id = 0;
  MORI_RETURN_IF_ERROR(driver().Check(driver().stream_id(handle, &id), "identify a stream"));
  const std::lock_guard lock(mutex_);
  if (posted_.size() >= forget_at_) ForgetPassed();
  Posted& posted = posted_[id];
  posted.stream = stream;
  posted.call = call;
  if (posted.event == nullptr) {
    auto event = SpareEvent();
    if (!event.ok()) {
      posted_.erase(id);
      return event.status();
    }
    posted.event = *event;
  }
  return driver().Check(driver().event_record(posted.event, handle), "record an event");
}

void CudaKernels::ForgetPassed() {
  const Use use(*device_);  // a look may not go into a capture of this thread
  if (!use.status().ok()) return;
  for (auto at = posted_.begin(); at != posted_.end();) {
    if (driver().event_query(at->second.event) != cuda::kSuccess) {
      ++at;
      continue;
    }
    spare_events_.push_back(at->second.event);
    at = posted_.erase(at);
  }
  forget_at_ = std::max(kForgetAt, 2 * posted_.size());
}

void CudaKernels::PutBack(PostedById posted) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, one] : posted) {
    if (!posted_.emplace(id, one).second) spare_events_.push_back(one.event);
  }
}

Status CudaKernels::AwaitPosted() {
  // Without the lock: others may post meanwhile, and what this thread waits for may need it.
  PostedById awaited;
  {
    const std::lock_guard lock(mutex_);
    awaited.swap(posted_);
  }
  if (awaited.empty()) return Status();
  if (device_->IsGone()) return Error(ErrorCode::kSystem, "the device has been reset");
  const Use use(*device_);
  Status waited = use.status();
  while (waited.ok() && !awaited.empty()) {
    const Posted next = awaited.begin()->second;
    waited = device_->WaitWhile([&] { return driver().event_query(next.event); },
                                [&] {
                                  return fmt::format("stream {}, on which the last call was {}",
                                                     next.stream, next.call);
                                });
    if (!waited.ok()) break;
    awaited.erase(awaited.begin());
    const std::lock_guard lock(mutex_);
    spare_events_.push_back(next.event);
  }
  // After a fault of the device there is nothing more to wait for, and each call would tell it.
  if (IsGivenUp(waited)) {
    PutBack(std::move(awaited));
  } else if (use.status().ok()) {
    for (const auto& [id, posted] : awaited) driver().event_destroy(posted.event);
  }
  return waited;
}

Status CudaKernels::ReplaceIfHolds(void* address, const void* expected, const void* instead,
                                   std::uint64_t bytes) const {
  if (device_->IsGone()) return Status();
  const Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  unsigned type = 0;
  if (driver().pointer_attribute(&type, cuda::kPointerMemoryType, Address(address)) !=
          cuda::kSuccess ||
      type != cuda::kMemoryTypeDevice) {
    return Status();
  }
  std::vector<std::byte> found(bytes);
  // On our own stream: the default one would wait for kernels of other PEs.
  const auto* const what = "look at a variable of a module";
  MORI_RETURN_IF_ERROR(driver().Check(
      driver().copy_from_device(found.data(), Address(address), bytes, device_->stream()), what));
  MORI_RETURN_IF_ERROR(device_->AwaitStream(what));
  if (std::memcmp(found.data(), expected, bytes) != 0) return Status();
  MORI_RETURN_IF_ERROR(driver().Check(
      driver().copy_async(Address(address), Address(instead), bytes, device_->stream()), what));
  return device_->AwaitStream(what);
}

Result<std::shared_ptr<void>> CudaKernels::MapHost(std::shared_ptr<void> memory,
                                                   std::uint64_t bytes) {
  const Use use(*device_);
  MORI_RETURN_IF_ERROR(use.status());
  const auto first = reinterpret_cast<std::uintptr_t>(memory.get());
  const std::uintptr_t start = first / kPageBytes * kPageBytes;
  const std::uint64_t offset = first - start;
  const std::uint64_t length = (offset + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* const pages = reinterpret_cast<void*>(start);
  MORI_RETURN_IF_ERROR(
      driver().Check(driver().host_register(
                         pages, length, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
                     "map memory of the host for kernels"));
  const std::shared_ptr<void> registered(pages, [device = device_, memory](void* at) {
    if (device->IsGone()) return;
    if (!device->BecomesIdle()) return KeepForProcess(memory);
    const Use use_device(*device);
    if (use_device.status().ok()) device->driver().host_unregister(at);
  });
  DevicePointer address = 0;
  MORI_RETURN_IF_ERROR(driver().Check(driver().host_device_pointer(&address, pages, 0),
                                      "map memory of the host for kernels"));
  return std::shared_ptr<void>(registered, reinterpret_cast<void*>(address + offset));
}

void CudaKernels::OnDevice(const std::function<void()>& call) const {
  if (device_->IsGone()) return;
  const Use use(*device_);
  if (use.status().ok()) call();
}

}  // namespace mori::shmem
