#include "shmem/library_kernels.hpp"

#include <string>
#include <vector>

namespace mori::shmem {

Result<std::unique_ptr<LibraryKernels>> LibraryKernels::Load(DeviceKernels* device) {
  if (device->LibraryImage() == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 "this build of the library has no kernels: it was made without nvcc and clang++");
  }
  MORI_ASSIGN_OR_RETURN(void* module, device->LoadModule(device->LibraryImage()));
  std::unique_ptr<LibraryKernels> kernels(new LibraryKernels(device, module));
  std::vector<std::string> names = {"Meet",      "MeetFew",         "Signal",      "Wait",
                                    "Fence",     "Atomic",          "Broadcast",   "FCollect",
                                    "AllToAll",  "SmallBroadcast",  "SmallGather", "RemotePut",
                                    "RemoteGet", "RemotePutSignal", "RemoteQuiet", "Collect"};
  for (const char* kind : {"Reduce_", "ReduceAtOnce_", "SmallReduce_", "RemoteReduce_"}) {
    for (const char* type : {"i32", "u32", "i64", "u64", "f32", "f64"})
      names.push_back(std::string(kind) + type);
  }
  for (std::size_t at = 0; at < kCount; ++at) {
    MORI_ASSIGN_OR_RETURN(kernels->kernels_[at],
                          device->FindKernel(module, ("MoriShmem" + names.at(at)).c_str()));
  }
  return kernels;
}

}  // namespace mori::shmem
