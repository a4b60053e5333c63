// Helper threads of the library.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>

#include "base/status.hpp"

namespace mori::shmem {

/// Starts a thread that no signal of the program is delivered to. @return kSystem when the system
/// has no more threads.
template <typename Body>
Status StartThread(Body body, std::thread* thread) {
  sigset_t all, before;
  sigfillset(&all);
  const bool is_masked =
      pthread_sigmask(SIG_SETMASK, &all, &before) == 0;  // inherited by the new thread
  Status status;
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    status = Status::FromErrno(error.code().value(), "start a helper thread");
  }
  if (is_masked) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace mori::shmem
