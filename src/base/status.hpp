// Errors as values: `Status` says what went wrong, `Result<T>` is a value or such a `Status`.
//
// The function that first knows which error it is makes the status, with the numbers, the PE and
// the variable that matter; callers pass it on unchanged. Nothing here logs: the API edge does,
// once.
#pragma once

#include <cassert>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// Name of a code, e.g. "peer lost", for messages and the Python exception.
std::string_view ErrorCodeName(ErrorCode code);

/// Success, or a code with a sentence. Cheap to move; a success holds no allocation.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {
    assert(code != ErrorCode::kOk);
  }

  /// An error whose sentence ends with the system's text for `error_number`, e.g.
  /// `map 4096 bytes: Cannot allocate memory (errno 12)`.
  static Status FromErrno(int error_number, std::string_view what,
                          ErrorCode code = ErrorCode::kSystem);

  /// The error of a `std::bad_alloc`. Needs no memory itself.
  static Status NoHostMemory() { return {ErrorCode::kOutOfMemory, "no host memory"}; }

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

/// `Error(ErrorCode::kTimeout, "rank {} did not come", rank)`.
template <typename... Args>
Status Error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

/// A `T`, or the reason why there is none. Access to the absent one is a bug and asserts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit
    assert(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  /// The reason; success while there is a value.
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace mori::shmem

// The two macros of error passing: they return from the calling function, which no function can do.

/// Returns the status of `expression` from the calling function unless it succeeded.
#define MORI_RETURN_IF_ERROR(expression)                                                         \
  do {                                                                                           \
    if (::mori::shmem::Status mori_status = (expression); !mori_status.ok()) return mori_status; \
  } while (false)

#define MORI_CONCAT_INNER(a, b) a##b
#define MORI_CONCAT(a, b) MORI_CONCAT_INNER(a, b)

/// `MORI_ASSIGN_OR_RETURN(auto x, MakeX());` declares or assigns, or returns the status.
#define MORI_ASSIGN_OR_RETURN(target, expression) \
  MORI_ASSIGN_OR_RETURN_INNER(MORI_CONCAT(mori_result_, __LINE__), target, expression)
#define MORI_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) return result.status();                     \
  target = std::move(result).value()
