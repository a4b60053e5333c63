#include "common/pe.hpp"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace mori::bench {
namespace {

using namespace mori::shmem;

int CpuCount() { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

void PinTo(int cpu) {
  const char* choice = std::getenv("MORI_BENCH_PIN");
  if (choice != nullptr && std::string_view(choice) == "0") return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

void Require(bool holds, const char* what) {
  if (holds) return;
  std::printf("BAD %s (last error: %s)\n", what, ShmemLastError());
  std::fflush(stdout);
  ::_exit(1);
}

Pe::Pe() {
  Require(ShmemInit() == 0, "init failed");
  rank_ = ShmemMyPe();
  size_ = ShmemNPes();
  if (has_cpu_each()) PinTo(rank_);
  shared_word_ = static_cast<long*>(ShmemMalloc(sizeof(long)));
  Require(shared_word_ != nullptr, "no symmetric memory");
}

Pe::~Pe() {
  ShmemFree(shared_word_);
  Require(ShmemFinalize() == 0, "finalize failed");
}

void Pe::Barrier() const { Require(ShmemBarrierAll() == 0, "a barrier failed"); }

bool Pe::has_cpu_each() const { return size_ <= CpuCount(); }

long Pe::FromFirst(long value) const {
  if (is_first()) {
    for (int pe = 0; pe < size_; ++pe) {
      Require(ShmemP(shared_word_, value, pe) == 0, "a put failed");
    }
  }
  Barrier();
  const long result = *shared_word_;
  Barrier();
  return result;
}

}  // namespace mori::bench
