// Several processes of one test, each running a part of it, with a deadline.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace mori::shmem::testing {

/// One `T` that forked processes share.
template <typename T>
class Shared {
 public:
  template <typename... Args>
  explicit Shared(Args&&... args)
      : value_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0)) T(std::forward<Args>(args)...)) {}
  Shared(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }
  T* get() const { return value_; }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

/// Writes what went wrong, and exits as a program would: exit handlers run.
[[noreturn]] inline void RunAndExit(const std::function<std::string()>& body, int report) {
  std::string failure;
  try {
    failure = body();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const bool written =
      ::write(report, failure.data(), failure.size()) == static_cast<ssize_t>(failure.size());
  std::exit(written && !::testing::Test::HasFailure() ? 0 : 1);
}

/// Processes of a test that have come to some point.
using Counter = Shared<std::atomic<int>>;
inline void AwaitCount(const Counter& counter, int count) {
  while (counter->load() < count) ::usleep(100);
}

/// Forks. Under the address sanitizer of GCC before 14, whose allocator does not know of forks, a
/// child would wait for ever for a lock that another thread held at that moment: there the others
/// are waited for until each of them sleeps.
inline pid_t Fork() {
#if defined(__SANITIZE_ADDRESS__)
  const auto all_sleep = [] {
    const auto self = std::to_string(::gettid());
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string stat;
      std::getline(std::ifstream(entry.path() / "stat"), stat);
      const auto state = stat.find(") ");
      const bool sleeps = state == std::string::npos || stat.compare(state + 2, 1, "S") == 0;
      if (!sleeps && entry.path().filename() != self) return false;
    }
    return true;
  };
  for (int looks = 0; looks < 10'000 && !all_sleep(); ++looks)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
#endif
  return ::fork();
}

/// Runs `body` with 0 to `count` - 1 in a forked process each. The body returns what went wrong, or
/// "". Ends those that are not done after a minute.
/// @return one line per process that failed; "" if none did
inline std::string RunForked(int count, const std::function<std::string(int)>& body) {
  struct Child {
    pid_t pid;
    UniqueFd report;
  };
  std::vector<Child> children;
  std::fflush(nullptr);
  for (int i = 0; i < count; ++i) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    Child child{Fork(), UniqueFd(ends[0])};
    if (child.pid == 0) {
      children.clear();
      child.report.Reset();
      RunAndExit([&] { return body(i); }, ends[1]);
    }
    ::close(ends[1]);
    children.push_back(std::move(child));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::string failures;
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(children[i].pid, &status, WNOHANG)) == 0 &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (ended == 0) {
      ::kill(children[i].pid, SIGKILL);
      ::waitpid(children[i].pid, &status, 0);
      failures += fmt::format("process {}: did not end\n", i);
      continue;
    }
    char text[1024];
    const ssize_t got = ::read(children[i].report.get(), text, sizeof text);
    if (got > 0) {
      failures +=
          fmt::format("process {}: {}\n", i, std::string(text, static_cast<std::size_t>(got)));
    } else if (status != 0) {
      failures += fmt::format("process {}: wait status {:#x}\n", i, status);
    }
  }
  return failures;
}

}  // namespace mori::shmem::testing
