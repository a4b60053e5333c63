// What headers of this library need from it besides the public calls. Not for use by programs.
#pragma once

#include "mori/shmem/types.hpp"

namespace mori::shmem::detail {

/// Reports an error found in a header of this library as a failed call of the calling thread: one
/// line at ERROR, the sentence in `ShmemLastError()`, the code in `ShmemLastErrorCode()`. Local.
/// Never fails.
/// @return static_cast<int>(code), so that callers can `return ReportError(...)`.
MORI_SHMEM_API int ReportError(ErrorCode code, const char* sentence);

}  // namespace mori::shmem::detail
