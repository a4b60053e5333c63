// The one place where a failed call becomes a code: logged once, kept for `ShmemLastError()`.
#pragma once

#include <string_view>

#include "base/status.hpp"

namespace mori::shmem {

/// Logs a failure as `call: sentence`, at DEBUG where the caller shows errors by itself, keeps it
/// for this thread, and gives its code; 0 for a success, which leaves all as it is.
int Report(std::string_view call, const Status& status);

const std::string& LastErrorText();
ErrorCode LastErrorCode();

}  // namespace mori::shmem
