// PEs as threads of one process: a whole job in one debugger, and the way for one thread per GPU.
//
//   export MORI_SHMEM_HEAP_SIZE=16M MORI_SHMEM_BACKEND=host
//   threads_as_pes          four PEs
//   threads_as_pes 16
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "mori/shmem/shmem.hpp"

using namespace mori::shmem;

namespace {

constexpr std::uint64_t kRounds = 1000;

/// What each PE does between init and finalize. @return whether all it saw was right.
bool CountAndLook() {
  const int me = ShmemMyPe();
  const int n_pes = ShmemNPes();

  // Symmetric addresses belong to a thread's own PE: `counter` is another address in each thread.
  auto* counter = static_cast<std::uint64_t*>(ShmemMalloc(sizeof(std::uint64_t)));
  if (counter == nullptr) return false;
  *counter = 0;
  if (ShmemBarrierAll() != 0) return false;

  // Everyone counts on everyone's counter at once; atomics lose nothing.
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    for (int pe = 0; pe < n_pes; ++pe) ShmemAtomicInc(counter, pe);
  }
  if (ShmemBarrierAll() != 0) return false;

  const std::uint64_t expected = kRounds * static_cast<std::uint64_t>(n_pes);
  bool is_right = *counter == expected;

  // A neighbour's memory is ordinary memory: its address here is all it takes.
  const int neighbour = (me + 1) % n_pes;
  const auto address = reinterpret_cast<std::uintptr_t>(counter);
  const auto* theirs = reinterpret_cast<const std::uint64_t*>(ShmemPtrP2p(address, me, neighbour));
  is_right &= theirs != nullptr && *theirs == expected;
  std::printf("PE %d of %d: counted to %llu, %s\n", me, n_pes,
              static_cast<unsigned long long>(*counter), is_right ? "right" : "WRONG");
  return ShmemFree(counter) == 0 && is_right;
}

/// The life of one PE. A thread is the PE whose init it ran.
void RunPe(const UniqueId& id, int pe, int n_pes, char& is_right) {
  if (ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe, n_pes, id) != 0) return;
  const bool was_right = CountAndLook();
  is_right = ShmemFinalize() == 0 && was_right;
}

}  // namespace

int main(int argc, char** argv) {
  const int n_pes = argc > 1 ? std::atoi(argv[1]) : 4;
  if (n_pes < 1) {
    std::fprintf(stderr, "usage: threads_as_pes [number of PEs]\n");
    return 2;
  }
  // One id for all; here it is just handed over.
  UniqueId id;
  if (ShmemGetUniqueId(&id) != 0) return 1;

  std::vector<char> is_right(static_cast<std::size_t>(n_pes), 0);
  std::vector<std::thread> threads;
  for (int pe = 0; pe < n_pes; ++pe) {
    threads.emplace_back([&, pe] { RunPe(id, pe, n_pes, is_right[static_cast<std::size_t>(pe)]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const char right : is_right) {
    if (!right) return 1;
  }
  return 0;
}
