// How the launcher and its agents wait for events.
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <span>
#include <thread>

namespace mori::launcher {

/// As poll(2), and where nothing happened, no entry has an event. Where it fails (short of memory,
/// or a limit of open files was lowered), each entry is looked at alone, after a rest: a launcher
/// that does not hear its PEs would never end.
inline void PollOrLook(std::span<pollfd> entries, int timeout_ms) {
  const int ready = poll(entries.data(), entries.size(), timeout_ms);
  if (ready > 0) return;
  const bool has_failed = ready < 0 && errno != EINTR;
  for (pollfd& entry : entries) entry.revents = 0;
  if (!has_failed) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (pollfd& entry : entries) {
    if (poll(&entry, 1, 0) <= 0) entry.revents = 0;
  }
}

}  // namespace mori::launcher
