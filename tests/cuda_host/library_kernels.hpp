// The library's own kernels as functions of the host: a grid is one thread.
#pragma once

namespace mori::shmem::testing {

/// From now on the driver of the tests runs the library's kernels, in the thread that launches
/// them: the calling thread is the stream.
void RunLibraryKernels();

}  // namespace mori::shmem::testing
