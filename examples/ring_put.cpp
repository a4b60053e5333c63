// A message travels round a ring of PEs by put-with-signal, and every PE adds its mark to it.
//
//   export MORI_SHMEM_HEAP_SIZE=16M MORI_SHMEM_BACKEND=host
//   mori run -n 4 ring_put                                  any of these starts four PEs;
//   torchrun --no-python --nproc-per-node 4 ring_put        ShmemInit() finds out which
//   mpirun -n 4 ring_put
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "mori/shmem/shmem.hpp"

using namespace mori::shmem;

namespace {

constexpr std::size_t kCount = 1000;

/// What PE `pe` must find in element `i`: PE 0 wrote `i`, every PE after it added its number.
std::int64_t Expected(std::size_t i, int pe) {
  std::int64_t value = static_cast<std::int64_t>(i);
  for (int adder = 1; adder < pe; ++adder) value += adder;
  return value;
}

bool RunRing() {
  const int me = ShmemMyPe();
  const int n_pes = ShmemNPes();
  const int right = (me + 1) % n_pes;

  // Symmetric memory: every PE has an inbox and a signal word, at the same offset of its heap. Each
  // PE names its own address, and with it means that of the PE to which it puts.
  auto* inbox = static_cast<std::int64_t*>(ShmemMalloc(kCount * sizeof(std::int64_t)));
  auto* signal = static_cast<std::uint64_t*>(ShmemMalloc(sizeof(std::uint64_t)));
  if (inbox == nullptr || signal == nullptr) return false;

  // Contents are unspecified at first. The barrier makes sure that nobody's signal comes before the
  // word has been cleared.
  *signal = 0;
  if (ShmemBarrierAll() != 0) return false;

  std::vector<std::int64_t> message(kCount);
  if (me == 0) {
    for (std::size_t i = 0; i < kCount; ++i) message[i] = static_cast<std::int64_t>(i);
  } else {
    if (ShmemSignalWaitUntil(signal, Cmp::kEq, 1) != 0) return false;
    // Who sees the signal sees the data.
    for (std::size_t i = 0; i < kCount; ++i) message[i] = inbox[i] + me;
  }
  if (ShmemPutMemSignal(inbox, message.data(), kCount * sizeof(std::int64_t), signal, 1,
                        SignalOp::kSet, right) != 0) {
    return false;
  }
  // PE 0 gets the message back after all others have had it.
  if (me == 0 && ShmemSignalWaitUntil(signal, Cmp::kEq, 1) != 0) return false;

  bool is_right = true;
  const int came_through = me == 0 ? n_pes : me;
  for (std::size_t i = 0; i < kCount; ++i) is_right &= inbox[i] == Expected(i, came_through);
  std::printf("PE %d of %d: the message from PE %d is %s\n", me, n_pes, (me + n_pes - 1) % n_pes,
              is_right ? "right" : "WRONG");

  // Freeing is collective, as allocating is.
  return ShmemFree(signal) == 0 && ShmemFree(inbox) == 0 && is_right;
}

}  // namespace

int main() {
  // Every failed call logs one sentence that says why, so that there is nothing to add here.
  if (ShmemInit() != 0) return 1;
  const bool is_right = RunRing();
  return ShmemFinalize() == 0 && is_right ? 0 : 1;
}
