// libsodium made ready.
#pragma once

#include <sodium.h>

namespace mori::shmem {

/// Called before the first use of libsodium in every function that may be the process's first:
/// without it random numbers are not safe to make from several threads. Thread-safe, cheap.
inline void InitSodium() {
  static const int done = ::sodium_init();
  static_cast<void>(done);
}

}  // namespace mori::shmem
