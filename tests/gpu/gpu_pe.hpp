// What tests of kernels and streams share: the driver's calls, and PEs with their kernels loaded.
#pragma once

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/cuda_pes.hpp"
#include "support/forked.hpp"

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
  /// spread over those there are.
  explicit Cuda(const Pe& pe) : library_(::dlopen("libcuda.so.1", RTLD_NOW)) {
    PE_CHECK(library_ != nullptr);
    Call<unsigned>("cuInit", 0);
    int count = 0;
    Call<int*>("cuDeviceGetCount", &count);
    device_ = ShmemInitialized() ? ShmemDevice() : pe.rank % count;
    Call<void**, int>("cuDevicePrimaryCtxRetain", &context_, device_);
    SetCurrent(context_);
    stream_ = CreateStream();
    copies_ = CreateStream();
  }

  /// How many devices there are; 0 without a driver.
  static int CountDevices() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return 0;
    const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"));
    const auto get_count = reinterpret_cast<int (*)(int*)>(::dlsym(library, "cuDeviceGetCount"));
    int count = 0;
    if (init == nullptr || get_count == nullptr || init(0) != 0 || get_count(&count) != 0) return 0;
    return count;
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
  void* library_;
  int device_ = -1;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* copies_ = nullptr;
  void* module_ = nullptr;
};

/// A PE with the kernels of tests/gpu/`kernels`.cu loaded and its state published.
class GpuPe {
 public:
  GpuPe(const Pe& pe, const char* kernels) : cuda(pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemDevice(), cuda.device());
    PE_CHECK_EQ(ShmemModuleInit(cuda.Load(kernels)), 0);
    errors = Zeroed<std::uint64_t>(1);
  }

  /// Symmetric memory of zeros, on all PEs.
  template <typename T>
  T* Zeroed(std::size_t count) {
    return Filled(std::vector<T>(count, T{}));
  }
  /// Symmetric memory with what each PE wants in it.
  template <typename T>
  T* Filled(const std::vector<T>& values) {
    auto* block = static_cast<T*>(ShmemMalloc(values.size() * sizeof(T)));
    PE_CHECK(block != nullptr);
    Write(block, values);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    return block;
  }
  template <typename T>
  void Write(T* block, const std::vector<T>& values) {
    PE_CHECK_EQ(ShmemPut(block, values.data(), values.size(), ShmemMyPe()), 0);
  }
  template <typename T>
  std::vector<T> Read(const T* block, std::size_t count) {
    std::vector<T> values(count);
    PE_CHECK_EQ(ShmemGet(values.data(), block, count, ShmemMyPe()), 0);
    return values;
  }
  template <typename T>
  T ReadOne(const T* word) {
    return ShmemG(word, ShmemMyPe());
  }

  /// What the kernels of all PEs have counted. Collective: all find the same, so that none of them
  /// goes on alone.
  std::uint64_t ErrorsOfAll() {
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::uint64_t sum = 0;
    for (int pe = 0; pe < ShmemNPes(); ++pe) sum += ShmemG(errors, pe);
    return sum;
  }
  void ExpectNoErrors() { PE_CHECK_EQ(ErrorsOfAll(), 0u); }

  /// Kernels have counted no errors, and all PEs leave.
  void End() {
    ExpectNoErrors();
    PE_CHECK_EQ(ShmemFinalize(), 0);
  }

  Cuda cuda;
  std::uint64_t* errors;
};

/// How many GPUs there are, asked once. By a process of its own: the driver does not work in the
/// child of a process that has used it.
inline int GpuCount() {
  static const int gpus = [] {
    const Shared<int> count(0);
    RunAlone([&] { *count = Cuda::CountDevices(); });
    return *count;
  }();
  return gpus;
}

/// Adds one PE for each GPU to every mode and kind that the shapes have, where there are more than
/// two GPUs: two PEs are there anyway.
inline std::vector<CudaShape> WithEachGpu(std::vector<CudaShape> shapes) {
  const int gpus = GpuCount();
  if (gpus <= 2) return shapes;
  const auto has = [&shapes](const CudaShape& wanted) {
    return std::any_of(shapes.begin(), shapes.end(), [&wanted](const CudaShape& shape) {
      return shape.mode == std::string_view(wanted.mode) && shape.as == wanted.as &&
             shape.size == wanted.size;
    });
  };
  for (std::size_t i = 0, count = shapes.size(); i < count; ++i) {
    const CudaShape for_each{shapes[i].mode, shapes[i].as, gpus};
    if (!has(for_each)) shapes.push_back(for_each);
  }
  return shapes;
}

/// PEs whose kernels wait for each other.
class CudaKernelPes : public CudaPes {
 protected:
  void SetUp() override {
    CudaPes::SetUp();
    if (IsSkipped()) return;
    if (KernelFolder().empty()) GTEST_SKIP() << "no nvcc to compile kernels with";
    const bool share_gpus = GetParam().size > std::max(GpuCount(), 1);
    if (GetParam().as == As::kProcesses && share_gpus &&
        std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr)
      GTEST_SKIP() << "kernels of processes that share a GPU and wait for each other need MPS";
  }
};

/// A scope of the device API, and how many threads the tests make it of.
struct Scope {
  const char* name;
  unsigned threads;
};
inline constexpr Scope kScopes[] = {{"thread", 1}, {"warp", 32}, {"block", 256}};

}  // namespace mori::shmem::testing
