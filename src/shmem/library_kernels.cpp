#include "shmem/library_kernels.hpp"

#include <string>

namespace mori::shmem {

Result<std::unique_ptr<LibraryKernels>> LibraryKernels::Load(DeviceKernels* device) {
  if (device->LibraryImage() == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 "this build of the library has no kernels: it was made without nvcc and clang++");
  }
  MORI_ASSIGN_OR_RETURN(void* module, device->LoadModule(device->LibraryImage()));
  std::unique_ptr<LibraryKernels> kernels(new LibraryKernels(device, module));
  std::size_t at = 0;
  for (const char* name : {"Meet", "MeetFew", "Signal", "Wait", "Fence", "Atomic", "Broadcast",
                           "FCollect", "AllToAll"}) {
    MORI_ASSIGN_OR_RETURN(kernels->kernels_[at++],
                          device->FindKernel(module, (std::string("MoriShmem") + name).c_str()));
  }
  for (const char* type : {"i32", "u32", "i64", "u64", "f32", "f64"}) {
    for (const char* operation : {"Sum", "Min", "Max"}) {
      const std::string name = std::string("MoriShmem") + operation + "_" + type;
      MORI_ASSIGN_OR_RETURN(kernels->kernels_[at++], device->FindKernel(module, name.c_str()));
    }
  }
  return kernels;
}

}  // namespace mori::shmem
