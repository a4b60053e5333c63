#include "base/log.hpp"

#include <cstdio>
#include <memory>
#include <mutex>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/fault_point.hpp"
#include "base/text.hpp"

namespace mori::shmem {
namespace {

thread_local int log_pe = 0;
thread_local int log_size = 0;

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return spdlog::level::trace;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

/// Lives until the process is gone: threads may log while static objects are being destroyed.
spdlog::logger& Logger() {
  static auto* const logger = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
    auto* made = new spdlog::logger("mori", std::move(sink));
    made->set_pattern("%v");
    made->set_level(spdlog::level::info);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

/// Guards the sink. Lives as long as the logger.
std::mutex& Mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return "trace: ";
    case LogLevel::kDebug: return "debug: ";
    case LogLevel::kInfo: return "";
    case LogLevel::kWarn: return "warning: ";
    case LogLevel::kError: return "error: ";
  }
  return "";
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void SetLogPe(int pe, int size) {
  log_pe = pe;
  log_size = size;
}

void LockLog() {
  Logger();  // made by now, or made here: a child must not find it half made
  Mutex().lock();
}
void UnlockLog() { Mutex().unlock(); }

void LogLine(LogLevel level, std::string_view text) noexcept try {
  const std::lock_guard lock(Mutex());
  FaultPoint("logging");
  if (log_size > 0) {
    Logger().log(ToSpdlog(level), "[mori] PE {}/{} {}{}", log_pe, log_size, LevelName(level),
                 OneLine(text));
  } else {
    Logger().log(ToSpdlog(level), "[mori] {}{}", LevelName(level), OneLine(text));
  }
} catch (...) {  // a full disk or a closed stream must not end the program
}

}  // namespace mori::shmem
