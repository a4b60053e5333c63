// A failed call on its way to Python.
#pragma once

#include <stdexcept>
#include <string>

#include "mori/shmem/shmem_api.hpp"

namespace mori::shmem {

/// Thrown by bindings only; one translator turns it into `mori.shmem.ShmemError`.
class Failure : public std::runtime_error {
 public:
  Failure(ErrorCode code, const std::string& sentence) : runtime_error(sentence), code_(code) {}
  /// Of the call that just failed on this thread with `code`.
  explicit Failure(int code) : Failure(static_cast<ErrorCode>(code), ShmemLastError()) {}

  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Passes success, throws what `code` says otherwise.
inline void Check(int code) {
  if (code != 0) throw Failure(code);
}

}  // namespace mori::shmem
