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

thread_local constinit LastError* own_last = nullptr;

/// Takes it away when the thread ends. A call that comes later still, from the destructor of a
/// static object, makes another one for good.
struct Remover {
  ~Remover() {
    delete own_last;
    own_last = nullptr;
  }
};

LastError& Last() {
  if (own_last == nullptr) {
    thread_local Remover remover;
    own_last = new LastError;
  }
  return *own_last;
}

/// The sentence may quote what others wrote; whoever reads it gets one line of valid UTF-8.
int Keep(ErrorCode code, std::string_view call, std::string_view sentence) noexcept try {
  LastError& last = Last();
  last.code = code;
  last.text = "no memory";  // short enough to need none
  last.text = OneLine(call.empty() ? std::string(sentence) : fmt::format("{}: {}", call, sentence));
  Log(detail::errors_are_raised ? LogLevel::kDebug : LogLevel::kError, "{}", last.text);
  return static_cast<int>(code);
} catch (...) {
  if (!detail::errors_are_raised) LogLine(LogLevel::kError, sentence);
  return static_cast<int>(code);
}

}  // namespace

int Report(std::string_view call, const Status& status) noexcept {
  return status.ok() ? 0 : Keep(status.code(), call, status.message());
}

const std::string& LastErrorText() { return Last().text; }
ErrorCode LastErrorCode() { return Last().code; }

__thread bool detail::errors_are_raised = false;

int detail::ReportError(ErrorCode code, const char* sentence) { return Keep(code, "", sentence); }

}  // namespace mori::shmem
