// A failed call on its way to Python.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "mori/shmem/detail.hpp"
#include "mori/shmem/shmem_api.hpp"

namespace mori::shmem {

/// Thrown by bindings only; one translator turns it into `mori.shmem.ShmemError`, and puts the name
/// of the Python call in front of the sentence.
class Failure : public std::runtime_error {
 public:
  Failure(ErrorCode code, const std::string& sentence) : runtime_error(sentence), code_(code) {}
  /// Of the call that just failed on this thread with `code`.
  explicit Failure(int code)
      : Failure(static_cast<ErrorCode>(code), WithoutName(ShmemLastError())) {}

  ErrorCode code() const { return code_; }

 private:
  /// The sentence of "call: sentence".
  static std::string WithoutName(std::string_view text) {
    const std::size_t colon = text.find(": ");
    return std::string(colon == std::string_view::npos ? text : text.substr(colon + 2));
  }

  ErrorCode code_;
};

/// While it lives, failed calls of this thread are logged at DEBUG: they are raised.
class ErrorsAreRaised {
 public:
  ErrorsAreRaised() : before_(std::exchange(detail::errors_are_raised, true)) {}
  ErrorsAreRaised(const ErrorsAreRaised&) = delete;
  ErrorsAreRaised& operator=(const ErrorsAreRaised&) = delete;
  ~ErrorsAreRaised() { detail::errors_are_raised = before_; }

 private:
  bool before_;
};

/// Passes success, throws what `code` says otherwise.
inline void Check(int code) {
  if (code != 0) throw Failure(code);
}

}  // namespace mori::shmem
