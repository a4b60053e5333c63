#include "runtime/cuda/driver.hpp"

#include <dlfcn.h>

namespace mori::shmem::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Result<const Driver*> Open() {
  // Never closed: the driver has threads and exit handlers of its own.
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error(ErrorCode::kUnsupported, "there is no CUDA driver here: {}", ::dlerror());
  }
  static Driver driver;
#define MORI_CUDA_OPEN(field, name, arguments)                                               \
  driver.field = reinterpret_cast<decltype(driver.field)>(::dlsym(library, name));           \
  if (driver.field == nullptr) {                                                             \
    return Error(ErrorCode::kUnsupported, "the CUDA driver is too old: it has no {}", name); \
  }
  MORI_CUDA_DRIVER_FUNCTIONS(MORI_CUDA_OPEN)
#undef MORI_CUDA_OPEN
#define MORI_CUDA_OPEN_LATER(field, name, arguments) \
  driver.field = reinterpret_cast<decltype(driver.field)>(::dlsym(library, name));
  MORI_CUDA_LATER_DRIVER_FUNCTIONS(MORI_CUDA_OPEN_LATER)
#undef MORI_CUDA_OPEN_LATER
  int devices = 0;
  Status status = driver.Check(driver.init(0), "initialise the CUDA driver");
  if (status.ok()) status = driver.Check(driver.device_count(&devices), "count the CUDA devices");
  if (!status.ok()) return Error(ErrorCode::kUnsupported, "{}", status.message());
  if (devices == 0) return Error(ErrorCode::kUnsupported, "the CUDA driver sees no device");
  return static_cast<const Driver*>(&driver);
}

}  // namespace

Status Driver::Check(Code result, std::string_view what) const {
  if (result == kSuccess) return Status();
  const char* name = nullptr;
  const char* text = nullptr;
  error_name(result, &name);
  error_text(result, &text);
  return Error(result == kErrorOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kSystem,
               "{}: {} ({} {})", what, text != nullptr ? text : "unknown error",
               name != nullptr ? name : "CUresult", result);
}

Result<const Driver*> OpenDriver() {
  static const auto* const opened = new Result<const Driver*>(Open());
  return *opened;
}

}  // namespace mori::shmem::cuda
