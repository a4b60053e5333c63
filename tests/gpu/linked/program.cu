// Kernels that nvcc linked into a program, into two units of it and into a shared library, find
// their PE without shmem_module_init(), in each world anew. Built and started by run.sh.
//
//   program <shared library of plugin.cu>
#include <dlfcn.h>

#include "exchange.cuh"
#include "pes.hpp"

bool ExchangeInSecondUnit();  // second_unit.cu

namespace {

__global__ void Barrier() { mori::shmem::device::ShmemBarrierAllBlock(); }

/// A shared library with kernels of its own.
class Plugin {
 public:
  explicit Plugin(const char* path) : library_(::dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) std::printf("%s\n", ::dlerror());
  }
  bool is_open() const { return library_ != nullptr; }
  bool Exchange() const {
    auto* exchange = reinterpret_cast<bool (*)()>(::dlsym(library_, "ExchangeInPlugin"));
    return exchange != nullptr && exchange();
  }
  bool Close() { return ::dlclose(library_) == 0; }

 private:
  void* library_;
};

}  // namespace

int main(int argc, char** argv) {
  using mori::shmem::ShmemBarrierAll;
  using mori::shmem::ShmemFinalize;
  if (argc != 2) return 100;
  mori::shmem::testing::TwoPes pes;

  pes.Init();
  pes.Report("kernels of the program", Exchange());
  pes.Report("kernels of another unit of the program", ExchangeInSecondUnit());
  Plugin plugin(argv[1]);
  pes.Report("a library is opened after init", plugin.is_open());
  pes.Report("kernels of a library opened after init", plugin.is_open() && plugin.Exchange());
  pes.Report("finalize", ShmemFinalize() == 0);

  pes.Init();
  pes.Report("kernels of the program in a new world", Exchange());
  pes.Report("kernels of another unit in a new world", ExchangeInSecondUnit());
  pes.Report("kernels of a library opened before init", plugin.is_open() && plugin.Exchange());
  pes.Report("a library is closed", plugin.is_open() && plugin.Close());
  pes.Report("barrier after a library was closed", ShmemBarrierAll() == 0);
  pes.Report("kernels of the program after a library was closed", Exchange());
  pes.Report("finalize after a library was closed", ShmemFinalize() == 0);

  // The last: the device's context is dead afterwards.
  Barrier<<<1, 32>>>();
  pes.Report("a kernel after finalize ends with an error",
             cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() != cudaSuccess);
  return pes.End();
}
