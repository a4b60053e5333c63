// Everything of the host API; for a GPU compiler the device API as well.
#pragma once

#include "mori/shmem/host_ops.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "mori/shmem/stream_ops.hpp"
#include "mori/shmem/types.hpp"
#if defined(__CUDACC__) || defined(__CUDA__) || defined(__HIP__)
#include "mori/shmem/shmem_device_api.hpp"
#endif
