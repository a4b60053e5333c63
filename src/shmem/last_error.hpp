// The edge of the API, where a failed call becomes a code: logged once, kept for
// `ShmemLastError()`.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "base/status.hpp"

namespace mori::shmem {

/// Logs a failure as `call: sentence`, at DEBUG where the caller shows errors by itself, keeps it
/// for this thread, and gives its code; 0 for a success, which leaves all as it is. Needs no memory
/// to give the code.
int Report(std::string_view call, const Status& status) noexcept;

/// The code of `work()`, which returns a `Status`. What the standard library throws becomes one,
/// too: nothing leaves the API as an exception.
template <typename Work>
int Reported(std::string_view call, Work work) noexcept {
  const auto outcome = [&]() -> Status {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      return Status::NoHostMemory();
    } catch (const std::exception& thrown) {
      return Error(ErrorCode::kInternal, "{}", thrown.what());
    }
  };
  return Report(call, outcome());
}

const std::string& LastErrorText();
ErrorCode LastErrorCode();

}  // namespace mori::shmem
