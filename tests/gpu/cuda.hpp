// The driver's calls that tests of GPUs make by themselves.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/run_pes.hpp"

namespace mori::shmem::testing {

/// Where the kernels are, tests/gpu/NAME.cu as NAME.ptx; empty without any. GPU_TEST_KERNELS names
/// other ones than those of the build, as tools/gpu_litmus.sh has.
inline std::string KernelFolder() {
  const char* other = std::getenv("GPU_TEST_KERNELS");
  return other != nullptr ? other : MORI_GPU_KERNELS;
}

/// What the tests themselves need of the driver, on the device of one PE. Nothing is given back
/// before the process ends.
class Cuda {
 public:
  static constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

  /// Makes the device of the calling PE current: after init, the one that it has; before, PEs
  /// take them in turn.
  explicit Cuda(const Pe& pe) : Cuda() {
    device_ = ShmemInitialized() ? ShmemDevice() : pe.rank % Count();
    Call<void**, int>("cuDevicePrimaryCtxRetain", &context_, device_);
    SetCurrent(context_);
    stream_ = CreateStream();
    copies_ = CreateStream();
  }

  /// The same without streams, of which a device does not have many.
  static void TakeDevice(const Pe& pe) {
    const Cuda cuda;
    void* context = nullptr;
    cuda.Call<void**, int>("cuDevicePrimaryCtxRetain", &context, pe.rank % cuda.Count());
    cuda.SetCurrent(context);
  }

  /// How many devices there are; 0 without a driver.
  static int CountDevices() {
    try {
      return Cuda().Count();
    } catch (const PeFailure&) {
      return 0;
    }
  }

  int device() const { return device_; }
  void* context() const { return context_; }
  void* stream() const { return stream_; }

  void SetCurrent(void* context) const { Call<void*>("cuCtxSetCurrent", context); }
  void* Current() const {
    void* context = nullptr;
    Call<void**>("cuCtxGetCurrent", &context);
    return context;
  }

  /// One that does not wait for the default stream.
  void* CreateStream() const {
    void* stream = nullptr;
    Call<void**, unsigned>("cuStreamCreate", &stream, 1);
    return stream;
  }
  void Sync(void* stream) const { Call<void*>("cuStreamSynchronize", stream); }
  /// The `CUresult` of waiting for the stream.
  int TrySync(void* stream) const { return Try<void*>("cuStreamSynchronize", stream); }
  bool IsBusy(void* stream) const { return Try<void*>("cuStreamQuery", stream) == kNotReady; }

  /// The text of tests/gpu/`name`.cu, compiled to PTX.
  static std::string Ptx(const std::string& name) {
    std::ifstream file(KernelFolder() + "/" + name + ".ptx");
    std::stringstream text;
    text << file.rdbuf();
    PE_CHECK(!text.str().empty());
    return text.str();
  }
  /// A module whose kernels the next launches are.
  void* Load(const std::string& name) {
    Call<void**, const void*>("cuModuleLoadData", &module_, Ptx(name).c_str());
    return module_;
  }

  /// Puts a kernel on the stream. Arguments are of exactly the kernel's types.
  template <typename... Arguments>
  void LaunchOn(void* stream, const std::string& name, unsigned blocks, unsigned threads,
                Arguments... arguments) const {
    void* function = nullptr;
    Call<void**, void*, const char*>("cuModuleGetFunction", &function, module_, name.c_str());
    LaunchFunction(stream, function, blocks, threads, arguments...);
  }
  template <typename... Arguments>
  void LaunchFunction(void* stream, void* function, unsigned blocks, unsigned threads,
                      Arguments... arguments) const {
    void* addresses[] = {&arguments..., nullptr};
    Call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
         void**>("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses,
                 nullptr);
  }
  /// The same, and waits for it.
  template <typename... Arguments>
  void Launch(const std::string& name, unsigned blocks, unsigned threads,
              Arguments... arguments) const {
    LaunchOn(stream_, name, blocks, threads, arguments...);
    Sync(stream_);
  }

  /// Memory of the device outside the heap, zeroed. Not while kernels wait: it may wait for them.
  template <typename T>
  T* Allocate(std::size_t count) const {
    T* memory = nullptr;
    Call<T**, std::size_t>("cuMemAlloc_v2", &memory, count * sizeof(T));
    const std::vector<T> zeros(count, T{});
    Copy(memory, zeros.data(), count * sizeof(T));
    return memory;
  }
  /// Pinned memory of the host.
  template <typename T>
  T* AllocatePinned(std::size_t count) const {
    void* memory = nullptr;
    Call<void**, std::size_t, unsigned>("cuMemHostAlloc", &memory, count * sizeof(T), 0);
    return static_cast<T*>(memory);
  }
  /// Between the host and this device; returns when it is done.
  void Copy(void* to, const void* from, std::size_t bytes) const {
    Call<void*, const void*, std::size_t, void*>("cuMemcpyAsync", to, from, bytes, copies_);
    Sync(copies_);
  }

  /// What `post` puts on the stream, as a graph, instead of on the stream.
  template <typename Post>
  void* Capture(void* stream, Post post) const {
    constexpr int kThreadLocal = 1;  // other PEs may be threads of this process
    void* graph = nullptr;
    Call<void*, int>("cuStreamBeginCapture_v2", stream, kThreadLocal);
    post();
    Call<void*, void**>("cuStreamEndCapture", stream, &graph);
    return graph;
  }
  std::size_t CountNodes(void* graph) const {
    std::size_t count = 0;
    Call<void*, void*, std::size_t*>("cuGraphGetNodes", graph, nullptr, &count);
    return count;
  }
  void* Instantiate(void* graph) const {
    void* executable = nullptr;
    Call<void**, void*, unsigned long long>("cuGraphInstantiateWithFlags", &executable, graph, 0);
    return executable;
  }
  void LaunchGraph(void* executable, void* stream) const {
    Call<void*, void*>("cuGraphLaunch", executable, stream);
  }

  /// Calls a function of the driver, and fails the PE if that does.
  template <typename... Arguments>
  void Call(const char* name, Arguments... arguments) const {
    const int result = Try<Arguments...>(name, arguments...);
    if (result != 0) throw PeFailure(fmt::format("{}: CUresult {}", name, result));
  }
  template <typename... Arguments>
  int Try(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
    if (function == nullptr) throw PeFailure(fmt::format("the driver has no {}", name));
    return function(arguments...);
  }

 private:
  Cuda() : library_(::dlopen("libcuda.so.1", RTLD_NOW)) {
    PE_CHECK(library_ != nullptr);
    Call<unsigned>("cuInit", 0);
  }
  int Count() const {
    int count = 0;
    Call<int*>("cuDeviceGetCount", &count);
    return count;
  }

  void* library_;
  int device_ = -1;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* copies_ = nullptr;
  void* module_ = nullptr;
};

}  // namespace mori::shmem::testing
