// The library's one logger: spdlog on standard error.
//
// The layer that names an error logs it; above it, silence (see docs/architecture.md).
// Lines read `[mori] PE 1/4 warn: text`; the PE part is there once the thread has a World.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace mori::shmem {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarn, kError };

/// Lines below `level` are dropped from now on, in the whole process.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

/// Names this thread's PE in later lines of this thread; `size` 0 removes the name.
void SetLogPe(int pe, int size);

/// Around a fork: no other thread is writing a line meanwhile, so that the child can.
void LockLog();
void UnlockLog();

/// Writes one line, also if `text` has several: it may quote what others wrote (`OneLine()`).
/// Thread-safe; never throws.
void LogLine(LogLevel level, std::string_view text) noexcept;

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) LogLine(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarn(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace mori::shmem
