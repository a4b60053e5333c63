#include "fake_cuda/fake_cuda.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "mori/shmem/device/context.hpp"
#include "mori/shmem/host_ops.hpp"
#include "runtime/cuda/driver.hpp"

namespace {

using mori::shmem::cuda::AccessDescription;
using mori::shmem::cuda::AllocationProperties;
using mori::shmem::cuda::IpcHandle;
using mori::shmem::cuda::LaunchConfig;

constexpr int kOk = 0;
constexpr int kInvalid = 1;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kCaptureUnsupported = 900;
constexpr int kNotSupported = 801;
constexpr std::size_t kPage = std::size_t{2} << 20;

struct Stream {
  std::uint64_t id = 0;
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  bool is_blocked = false;
  void Post() {
    ++posted;
    if (!is_blocked) done = posted;
  }
};
struct Event {
  std::map<Stream*, std::uint64_t> behind;
};
struct Capture {
  fake_cuda::Capture mode;
  std::thread::id thread;
  bool is_spoilt = false;
};
struct Context {
  int device = 0;
};
struct Module {
  mori::shmem::device::DeviceContext state = mori::shmem::device::kStateOfNobody;
  std::byte more[1024] = {};
  std::size_t bytes = sizeof state;
};

struct Function {
  std::string name;
  Module* module = nullptr;
};

struct State {
  std::mutex mutex;
  std::uint64_t next_stream = 1;
  Stream legacy;
  std::map<std::thread::id, Stream> per_thread;
  std::vector<Stream*> streams;
  std::map<Stream*, Capture> captures;
  std::map<int, Context> contexts;
  std::map<std::uint64_t, std::size_t> mapped;
  std::map<std::pair<void*, std::string>, Function> functions;
  fake_cuda::Kernels kernels;
  std::set<void*> made;  ///< modules and events, as a driver knows those that are never given back
  std::vector<std::string> launches;
  bool pushes_fail = false;
  unsigned long long looks = 0;
  unsigned long long events = 0;
  unsigned long long limit = UINT64_MAX;
  int fault = kOk;

  Stream* Find(void* handle) {
    const auto known = [&](Stream& stream) {
      if (stream.id == 0) {
        stream.id = next_stream++;
        streams.push_back(&stream);
      }
      return &stream;
    };
    if (handle == nullptr || handle == reinterpret_cast<void*>(1)) return known(legacy);
    if (handle == fake_cuda::PerThreadStream())
      return known(per_thread[std::this_thread::get_id()]);
    return static_cast<Stream*>(handle);
  }
  int Spoil(Capture& capture) {
    capture.is_spoilt = true;
    return kCaptureUnsupported;
  }
  bool IsIdle() {
    return std::ranges::all_of(streams, [](const Stream* s) { return s->done == s->posted; });
  }
};
State& state() {
  static auto* const one = new State;
  return *one;
}
thread_local std::vector<Context*> stack;
thread_local int capture_mode = 0;

/// A call that is none of any stream, as an allocation: whether captures allow it in this thread.
int Unsafe() {
  int result = kOk;
  for (auto& [stream, capture] : state().captures) {
    const bool is_ours = capture.thread == std::this_thread::get_id();
    const bool is_forbidden =
        capture_mode == 0
            ? (is_ours ? capture.mode != fake_cuda::Capture::kRelaxed
                       : capture.mode == fake_cuda::Capture::kGlobal)
            : capture_mode == 1 && is_ours && capture.mode != fake_cuda::Capture::kRelaxed;
    if (is_forbidden) result = state().Spoil(capture);
  }
  return result;
}
/// A call about a whole context.
int UnsafeOfContext() {
  int result = kOk;
  for (auto& [stream, capture] : state().captures) result = state().Spoil(capture);
  return result;
}

/// As calls do that give something back.
void AwaitAll() {
  for (;; std::this_thread::yield()) {
    const std::lock_guard lock(state().mutex);
    if (state().IsIdle()) return;
  }
}

int Post(void* handle) {
  State& s = state();
  if (s.fault != kOk) return s.fault;
  Stream* stream = s.Find(handle);
  if (!s.captures.contains(stream)) stream->Post();
  return kOk;
}

/// Kernels of the tests are threads of the host, and change words by themselves.
template <typename T>
T AtomicOn(mori::shmem::detail::AtomicOp op, T* word, T value, T expected) {
  using mori::shmem::detail::AtomicOp;
  const std::atomic_ref<T> at(*word);
  switch (op) {
    case AtomicOp::kFetch: return at.load();
    case AtomicOp::kFetchAdd: return at.fetch_add(value);
    case AtomicOp::kFetchAnd: return at.fetch_and(value);
    case AtomicOp::kFetchOr: return at.fetch_or(value);
    case AtomicOp::kFetchXor: return at.fetch_xor(value);
    case AtomicOp::kCompareSwap: at.compare_exchange_strong(expected, value); return expected;
    case AtomicOp::kSet:
    case AtomicOp::kSwap: break;
  }
  return at.exchange(value);
}

void Atomic(void** arguments) {
  const auto op = static_cast<mori::shmem::detail::AtomicOp>(*static_cast<int*>(arguments[0]));
  const int bytes = *static_cast<int*>(arguments[1]);
  auto* word = *static_cast<std::uint64_t**>(arguments[2]);
  const std::uint64_t value = *static_cast<std::uint64_t*>(arguments[3]);
  const std::uint64_t expected = *static_cast<std::uint64_t*>(arguments[4]);
  **static_cast<std::uint64_t**>(arguments[5]) =
      bytes == 8
          ? AtomicOn(op, word, value, expected)
          : AtomicOn(op, reinterpret_cast<std::uint32_t*>(word), static_cast<std::uint32_t>(value),
                     static_cast<std::uint32_t>(expected));
}

/// An aligned word by one load and one store, as a device moves it.
void Copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  const auto move = [&]<typename T>(T) {
    std::atomic_ref<T>(*reinterpret_cast<T*>(to))
        .store(std::atomic_ref<T>(*reinterpret_cast<T*>(from)).load());
  };
  const bool is_aligned = bytes != 0 && (to | from) % bytes == 0;
  if (is_aligned && bytes == 8) return move(std::uint64_t{});
  if (is_aligned && bytes == 4) return move(std::uint32_t{});
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
}

int Launch(void* function, void* stream, void** arguments, bool is_early) {
  const auto& [name, module] = *static_cast<Function*>(function);
  {
    const std::lock_guard lock(state().mutex);
    if (const int code = Post(stream); code != kOk) return code;
    state().launches.push_back((is_early ? "early " : "") + name);
    if (name == "MoriShmemAtomic") return Atomic(arguments), kOk;
  }
  // Without the lock: it may wait for others.
  if (state().kernels) state().kernels(name, module->state, arguments);
  return kOk;
}

}  // namespace

namespace fake_cuda {

Machine& machine() {
  static auto* const one = new Machine;
  return *one;
}
void* MakeStream() {
  const std::lock_guard lock(state().mutex);
  auto* stream = new Stream;
  stream->id = state().next_stream++;
  state().streams.push_back(stream);
  return stream;
}
void Block(void* stream) {
  const std::lock_guard lock(state().mutex);
  state().Find(stream)->is_blocked = true;
}
void Release(void* stream) {
  const std::lock_guard lock(state().mutex);
  Stream* found = state().Find(stream);
  found->is_blocked = false;
  found->done = found->posted;
}
void Post(void* stream) {
  const std::lock_guard lock(state().mutex);
  state().Find(stream)->Post();
}
void BeginCapture(void* stream, Capture mode) {
  const std::lock_guard lock(state().mutex);
  state().captures[state().Find(stream)] = {mode, std::this_thread::get_id()};
}
bool EndCapture(void* stream) {
  const std::lock_guard lock(state().mutex);
  const auto at = state().captures.find(state().Find(stream));
  const bool is_spoilt = at->second.is_spoilt;
  state().captures.erase(at);
  return !is_spoilt;
}
void FailPushes(bool fail) { state().pushes_fail = fail; }
void SeeCopies() { const std::lock_guard lock(state().mutex); }
void SetKernels(Kernels kernels) { state().kernels = std::move(kernels); }
void SetFault(int code) { state().fault = code; }
std::vector<std::string> Launches() {
  const std::lock_guard lock(state().mutex);
  return state().launches;
}
unsigned long long Looks() {
  const std::lock_guard lock(state().mutex);
  return state().looks;
}
unsigned long long Events() {
  const std::lock_guard lock(state().mutex);
  return state().events;
}
void LimitMemory(unsigned long long bytes) {
  const std::lock_guard lock(state().mutex);
  state().limit = bytes;
}
void SetStateBytes(void* module, unsigned long long bytes) {
  static_cast<Module*>(module)->bytes = bytes;
}
unsigned long long MappedBytes() {
  const std::lock_guard lock(state().mutex);
  unsigned long long sum = 0;
  for (const auto& [at, bytes] : state().mapped) sum += bytes;
  return sum;
}

}  // namespace fake_cuda

using fake_cuda::machine;

// Signatures are those of src/runtime/cuda/driver.hpp, names those of the driver.
extern "C" {

int cuInit(unsigned) { return machine().init_result; }
int cuDriverGetVersion(int* version) { return *version = machine().version, kOk; }
int cuDeviceGetCount(int* count) { return *count = machine().devices, kOk; }
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal >= machine().devices) return 101;
  return *device = ordinal, kOk;
}
int cuDeviceGetName(char* name, int bytes, int) {
  return std::snprintf(name, static_cast<std::size_t>(bytes), "fake"), kOk;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{1} << 30, kOk; }
int cuDeviceGetAttribute(int* value, int, int) { return *value = 16, kOk; }
int cuDeviceGetPCIBusId(char* id, int bytes, int device) {
  return std::snprintf(id, static_cast<std::size_t>(bytes), "0000:0%d:00.0", device), kOk;
}
int cuDeviceGetByPCIBusId(int* device, const char* id) {
  int number = 0;
  if (std::sscanf(id, "0000:0%d:00.0", &number) != 1 || number >= machine().devices)
    return kInvalid;
  return *device = number, kOk;
}
int cuDeviceGetP2PAttribute(int* value, int, int, int) {
  return *value = machine().has_native_atomics ? 1 : 0, kOk;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  return *can = machine().can_access_peers ? 1 : 0, kOk;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(state().mutex);
  Context& made = state().contexts[device];
  made.device = device;
  return *context = &made, kOk;
}
int cuDevicePrimaryCtxRelease_v2(int) { return AwaitAll(), kOk; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  return *flags = 0, *active = 1, kOk;
}
int cuCtxGetId(void* context, unsigned long long* id) {
  return *id = static_cast<unsigned long long>(static_cast<Context*>(context)->device) + 1, kOk;
}
int cuCtxPushCurrent_v2(void* context) {
  if (state().pushes_fail) return 201;
  return stack.push_back(static_cast<Context*>(context)), kOk;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = stack.back();
  return stack.pop_back(), kOk;
}
int cuCtxGetCurrent(void** context) {
  return *context = stack.empty() ? nullptr : stack.back(), kOk;
}
int cuCtxGetDevice(int* device) { return *device = stack.back()->device, kOk; }
int cuCtxSynchronize() {
  for (;; std::this_thread::yield()) {
    const std::lock_guard lock(state().mutex);
    if (const int code = UnsafeOfContext(); code != kOk) return code;
    if (state().IsIdle()) return state().fault;
  }
}
int cuCtxRecordEvent(void*, void* event) {
  const std::lock_guard lock(state().mutex);
  if (const int code = UnsafeOfContext(); code != kOk) return code;
  auto& behind = static_cast<Event*>(event)->behind;
  behind.clear();
  for (Stream* stream : state().streams) behind[stream] = stream->posted;
  return state().fault;
}

int cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties*, int) {
  return *bytes = kPage, kOk;
}
int cuMemCreate(std::uint64_t* handle, std::size_t bytes, const AllocationProperties*,
                unsigned long long) {
  if (fake_cuda::MappedBytes() + bytes > state().limit) return 2;
  const int fd = ::memfd_create("fake cuda", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return 2;
  return *handle = static_cast<std::uint64_t>(fd), kOk;
}
int cuMemRelease(std::uint64_t handle) { return ::close(static_cast<int>(handle)), kOk; }
int cuMemExportToShareableHandle(void* fd, std::uint64_t handle, int, unsigned long long) {
  return *static_cast<int*>(fd) = ::dup(static_cast<int>(handle)), kOk;
}
int cuMemImportFromShareableHandle(std::uint64_t* handle, void* fd, int) {
  const int copy = ::dup(static_cast<int>(reinterpret_cast<std::intptr_t>(fd)));
  return *handle = static_cast<std::uint64_t>(copy), copy < 0 ? kInvalid : kOk;
}
int cuMemAddressReserve(std::uint64_t* address, std::size_t bytes, std::size_t alignment,
                        std::uint64_t, unsigned long long) {
  // Address space is cheap: what is before and behind stays reserved.
  void* const base = ::mmap(nullptr, bytes + alignment, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return 2;
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  return *address = (start + alignment - 1) / alignment * alignment, kOk;
}
int cuMemAddressFree(std::uint64_t, std::size_t) { return kOk; }
int cuMemMap(std::uint64_t address, std::size_t bytes, std::size_t, std::uint64_t handle,
             unsigned long long) {
  const std::lock_guard lock(state().mutex);
  if (const int code = Unsafe(); code != kOk) return code;
  if (state().mapped.contains(address)) return kInvalid;
  if (::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, static_cast<int>(handle), 0) == MAP_FAILED)
    return kInvalid;
  return state().mapped[address] = bytes, kOk;
}
int cuMemUnmap(std::uint64_t address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const int code = Unsafe(); code != kOk) return code;
  if (state().mapped.erase(address) == 0) return kInvalid;
  void* const left = ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return left == MAP_FAILED ? kInvalid : kOk;
}
int cuMemSetAccess(std::uint64_t, std::size_t, const AccessDescription*, std::size_t) {
  return kOk;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const int code = Unsafe(); code != kOk) return code;
  void* const made = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  return *address = reinterpret_cast<std::uint64_t>(made), made == nullptr ? 2 : kOk;
}
int cuMemFree_v2(std::uint64_t address) {
  AwaitAll();
  return std::free(reinterpret_cast<void*>(address)), kOk;
}
/// Of use in this process only.
int cuIpcGetMemHandle(IpcHandle*, std::uint64_t) { return kOk; }
int cuIpcOpenMemHandle_v2(std::uint64_t*, IpcHandle, unsigned) { return kNotSupported; }
int cuIpcCloseMemHandle(std::uint64_t) { return kNotSupported; }
int cuCtxEnablePeerAccess(void*, unsigned) { return kNotSupported; }

int cuStreamCreate(void** stream, unsigned) { return *stream = fake_cuda::MakeStream(), kOk; }
int cuStreamDestroy_v2(void*) { return kOk; }
int cuStreamQuery(void* handle) {
  const std::lock_guard lock(state().mutex);
  if (const int code = Unsafe(); code != kOk) return code;
  if (state().fault != kOk) return state().fault;
  Stream* stream = state().Find(handle);
  if (const auto at = state().captures.find(stream); at != state().captures.end())
    return state().Spoil(at->second);
  if (stream->done == stream->posted) return kOk;
  return ++state().looks, kNotReady;
}
int cuStreamSynchronize(void* handle) {
  int code = kNotReady;
  while ((code = cuStreamQuery(handle)) == kNotReady) std::this_thread::yield();
  return code;
}
int cuStreamGetId(void* handle, unsigned long long* id) {
  const std::lock_guard lock(state().mutex);
  Stream* stream = state().Find(handle);
  if (state().captures.contains(stream)) return kCaptureUnsupported;
  return *id = stream->id, kOk;
}
int cuStreamIsCapturing(void* handle, int* status) {
  const std::lock_guard lock(state().mutex);
  return *status = state().captures.contains(state().Find(handle)) ? 1 : 0, kOk;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), kOk; }
int cuEventCreate(void** event, unsigned) {
  const std::lock_guard lock(state().mutex);
  ++state().events;
  state().made.insert(*event = new Event);
  return kOk;
}
int cuEventDestroy_v2(void* event) {
  const std::lock_guard lock(state().mutex);
  --state().events;
  state().made.erase(event);
  return delete static_cast<Event*>(event), kOk;
}
int cuEventRecord(void* event, void* handle) {
  const std::lock_guard lock(state().mutex);
  if (state().fault != kOk) return state().fault;
  Stream* stream = state().Find(handle);
  static_cast<Event*>(event)->behind = {{stream, stream->posted}};
  return kOk;
}
int cuEventQuery(void* event) {
  const std::lock_guard lock(state().mutex);
  if (const int code = Unsafe(); code != kOk) return code;
  if (state().fault != kOk) return state().fault;
  for (const auto& [stream, posted] : static_cast<Event*>(event)->behind) {
    if (stream->done < posted) return ++state().looks, kNotReady;
  }
  return kOk;
}
int cuEventSynchronize(void* event) {
  int code = kNotReady;
  while ((code = cuEventQuery(event)) == kNotReady) std::this_thread::yield();
  return code;
}

int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
  const std::lock_guard lock(state().mutex);
  const int code = Post(stream);
  if (code == kOk) Copy(to, from, bytes);
  return code;
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<std::uint64_t>(to), from, bytes, stream);
}
int cuPointerGetAttribute(void* value, int, std::uint64_t) {
  return *static_cast<unsigned*>(value) = 2, kOk;
}
int cuMemHostRegister_v2(void*, std::size_t, unsigned) {
  const std::lock_guard lock(state().mutex);
  return Unsafe();
}
int cuMemHostUnregister(void*) {
  AwaitAll();
  const std::lock_guard lock(state().mutex);
  return Unsafe();
}
int cuMemHostGetDevicePointer_v2(std::uint64_t* at, void* memory, unsigned) {
  return *at = reinterpret_cast<std::uint64_t>(memory), kOk;
}

int cuModuleLoadData(void** module, const void*) {
  const std::lock_guard lock(state().mutex);
  if (const int code = Unsafe(); code != kOk) return code;
  state().made.insert(*module = new Module{});
  return kOk;
}
int cuModuleUnload(void* module) {
  AwaitAll();
  const std::lock_guard lock(state().mutex);
  state().made.erase(module);
  return delete static_cast<Module*>(module), kOk;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::lock_guard lock(state().mutex);
  Function& found = state().functions[{module, name}];
  found = {name, static_cast<Module*>(module)};
  return *function = &found, kOk;
}
int cuModuleGetGlobal_v2(std::uint64_t* address, std::size_t* bytes, void* module,
                         const char* name) {
  if (std::string(name) != "globalGpuStates") return kNotFound;
  auto* const found = static_cast<Module*>(module);
  return *address = reinterpret_cast<std::uint64_t>(&found->state), *bytes = found->bytes, kOk;
}
int cuLibraryGetGlobal(std::uint64_t* address, std::size_t* bytes, void* library,
                       const char* name) {
  return cuModuleGetGlobal_v2(address, bytes, library, name);
}
int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned, void* stream, void** arguments, void**) {
  return Launch(function, stream, arguments, false);
}
int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  return Launch(function, config->stream, arguments, true);
}
int cuFuncGetAttribute(int* value, int, void*) { return *value = 90, kOk; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_FAKE", kOk; }
int cuGetErrorString(int code, const char** text) {
  static thread_local std::string said;
  said = "fake error " + std::to_string(code);
  return *text = said.c_str(), kOk;
}
}
