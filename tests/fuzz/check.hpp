// What a fuzzer expects of every outcome.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/status.hpp"

namespace mori::shmem::fuzz {

/// Ends the run with the place, so that the input is kept.
#define FUZZ_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

/// An error says something, on one line.
inline void CheckMessage(const Status& status) {
  if (status.ok()) return;
  const std::string& message = status.message();
  FUZZ_CHECK(!message.empty());
  FUZZ_CHECK(message.size() < 100'000);
  FUZZ_CHECK(std::none_of(message.begin(), message.end(), [](char c) { return c == '\n'; }));
}

}  // namespace mori::shmem::fuzz
