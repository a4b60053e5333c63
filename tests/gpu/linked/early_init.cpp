// Init by the constructor of a global object, ahead of those that make the kernels of other units
// known to the CUDA runtime and to the library.
#include "early_init.hpp"

namespace {

struct EarlyPes : mori::shmem::testing::TwoPes {
  EarlyPes() { Init(); }
};
__attribute__((init_priority(101))) EarlyPes early_pes;

}  // namespace

mori::shmem::testing::TwoPes* InitializedPes() { return &early_pes; }
