// What headers of this library need from it besides the public calls. Not for use by programs.
#pragma once

#include "mori/shmem/types.hpp"

namespace mori::shmem::detail {

/// Whether who makes the calls of this thread shows errors by itself, as Python raises them: they
/// are then logged at DEBUG, so that nobody reads them twice.
extern MORI_SHMEM_API __thread bool errors_are_raised __attribute__((tls_model("initial-exec")));

/// Reports an error found in a header of this library as a failed call of the calling thread: one
/// line at ERROR (DEBUG where errors are raised), the sentence in `ShmemLastError()`, the code in
/// `ShmemLastErrorCode()`. Local. Never fails.
/// @return static_cast<int>(code), so that callers can `return ReportError(...)`.
MORI_SHMEM_API int ReportError(ErrorCode code, const char* sentence);

}  // namespace mori::shmem::detail
