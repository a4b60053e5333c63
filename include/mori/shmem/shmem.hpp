// Everything of the host API.
#pragma once

#include "mori/shmem/host_ops.hpp"
#include "mori/shmem/shmem_api.hpp"
#include "mori/shmem/types.hpp"
