// The library's own kernels, as the build compiled them (cmake/MoriKernels.cmake).
#pragma once

namespace mori::shmem::cuda {

/// What `cuModuleLoadData` takes; null in a build that had no compiler for them.
const void* KernelImage();

}  // namespace mori::shmem::cuda
