// Leak checking of forked children. Linked into every test program; used where a sanitizer looks.
#include <pthread.h>

#include <filesystem>
#include <iterator>

namespace {

bool forked_beside_threads = false;
thread_local long threads_of_parent = 1;  // both handlers run in the thread that forks

long CountThreads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 2 : std::distance(begin(tasks), end(tasks));  // unknown: as if there were others
}

void BeforeFork() { threads_of_parent = CountThreads(); }
void InChild() { forked_beside_threads |= threads_of_parent > 1; }

[[maybe_unused]] const int registered = ::pthread_atfork(BeforeFork, nullptr, InChild);

}  // namespace

/// Asked by the leak sanitizer before it looks. In a child that was forked beside other threads,
/// what only their stacks point to looks leaked: no answer is better than a wrong one.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return forked_beside_threads; }
