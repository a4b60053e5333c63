#include "shmem/last_error.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "mori/shmem/detail.hpp"

namespace mori::shmem {
namespace {

struct LastError {
  ErrorCode code = ErrorCode::kOk;
  std::string text;
};

LastError& Last() {
  thread_local LastError last;
  return last;
}

/// The sentence may quote what others wrote; whoever reads it gets one line of valid UTF-8.
int Keep(ErrorCode code, std::string_view text) {
  Last() = {code, OneLine(text)};
  Log(detail::errors_are_raised ? LogLevel::kDebug : LogLevel::kError, "{}", Last().text);
  return static_cast<int>(code);
}

}  // namespace

int Report(std::string_view call, const Status& status) {
  if (status.ok()) return 0;
  return Keep(status.code(), fmt::format("{}: {}", call, status.message()));
}

const std::string& LastErrorText() { return Last().text; }
ErrorCode LastErrorCode() { return Last().code; }

__thread bool detail::errors_are_raised = false;

int detail::ReportError(ErrorCode code, const char* sentence) { return Keep(code, sentence); }

}  // namespace mori::shmem
