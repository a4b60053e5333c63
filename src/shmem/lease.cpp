#include "shmem/lease.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "node/waiter.hpp"

namespace mori::shmem {
namespace {

/// What one thread uses. Never freed: who waits may read it after its thread has ended, and the
/// next thread takes it over.
struct alignas(64) Place {
  std::atomic<const World*> world{nullptr};
  std::atomic<bool> taken{true};
  Place* next = nullptr;
};
std::atomic<Place*> places{nullptr};

/// Initial-exec, as `detail::host_context_v2`: a plain load, in each call.
thread_local constinit Place* own_place __attribute__((tls_model("initial-exec"))) = nullptr;

Place* TakePlace() {
  for (Place* place = places.load(std::memory_order_acquire); place; place = place->next) {
    bool taken = false;
    // Acquire: the thread that had it has written its last.
    if (place->taken.compare_exchange_strong(taken, true, std::memory_order_acquire,
                                             std::memory_order_relaxed))
      return place;
  }
  auto* made = new Place;
  made->next = places.load(std::memory_order_relaxed);
  // Sequentially consistent: see Lease::Take().
  while (!places.compare_exchange_weak(made->next, made, std::memory_order_seq_cst)) {
  }
  return made;
}

bool Membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0) == 0; }

/// Whether the thread that waits can have a fence run in all others, so that they need none: a
/// lease is in the way of every barrier, the end of a world is not. Without it each lease is a
/// fence.
const bool kHasMembarrier = Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);

/// Every other thread's store to its place is visible, or its look at the generation is to come.
void FenceAllThreads() {
  if (!kHasMembarrier || Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // Refused by a filter that came later: stores do not stay invisible for longer than this.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// Gives the place back when the thread ends. A call that comes later still takes another one, for
/// good.
struct Returner {
  ~Returner() {
    if (own_place != nullptr) own_place->taken.store(false, std::memory_order_release);
    own_place = nullptr;
  }
};

Place* OwnPlace() {
  if (own_place == nullptr) {
    thread_local Returner returner;
    own_place = TakePlace();
  }
  return own_place;
}

}  // namespace

Lease::Lease(Lease&& other) noexcept
    : world_(std::exchange(other.world_, nullptr)),
      place_(std::exchange(other.place_, nullptr)),
      before_(other.before_) {}

Lease::~Lease() {
  // Release: what the call did in the world is done for who waits for it.
  if (place_ != nullptr) place_->store(before_, std::memory_order_release);
}

Lease Lease::Take(World* world) {
  std::atomic<const World*>* place = &OwnPlace()->world;
  const World* before = place->load(std::memory_order_relaxed);
  // Before the look at the registry's generation that follows, as the thread that takes the world
  // away moves the generation before it looks at the places: either that thread sees this store, or
  // this one sees that the generation has moved. The fence between is here, or in
  // FenceAllThreads().
  if (kHasMembarrier) {
    place->store(world, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    place->store(world, std::memory_order_seq_cst);
  }
  return {world, place, before};
}

void Lease::AwaitReturn(const World* world) {
  FenceAllThreads();
  Waiter waiter(/*may_spin=*/false);
  WaitClock clock(std::nullopt);
  for (Place* place = places.load(std::memory_order_seq_cst); place; place = place->next) {
    if (place == own_place) continue;
    while (place->world.load(std::memory_order_seq_cst) == world) {
      FaultPoint("finalize: a call is in flight");
      if (clock.Look() == WaitClock::Due::kLine) {
        LogWarn("still waiting in shmem_finalize, {:.3g} s: another thread of this PE is in a call",
                clock.ElapsedSeconds());
      }
      waiter.Pause();
    }
  }
}

}  // namespace mori::shmem
