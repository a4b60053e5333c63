#include "base/status.hpp"

#include <cerrno>
#include <system_error>

namespace mori::shmem {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return "ok";
    case ErrorCode::kNotInitialized: return "not initialized";
    case ErrorCode::kAlreadyInitialized: return "already initialized";
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kInvalidConfig: return "invalid configuration";
    case ErrorCode::kOutOfMemory: return "out of memory";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kPeerLost: return "peer lost";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kSystem: return "system error";
    case ErrorCode::kInternal: return "internal error";
  }
  return "unknown error";
}

Status Status::FromErrno(int error_number, std::string_view what, ErrorCode code) {
  const bool descriptors = error_number == EMFILE || error_number == ENFILE;
  const std::string_view hint = descriptors ? "; raise the limit of open files (ulimit -n)" : "";
  return Status(
      code, fmt::format("{}: {} (errno {}){}", what, std::generic_category().message(error_number),
                        error_number, hint));
}

}  // namespace mori::shmem
