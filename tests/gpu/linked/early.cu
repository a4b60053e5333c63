// Kernels whose unit becomes known only after init, which a global object of another unit has run.
#include "early_init.hpp"
#include "exchange.cuh"

bool ExchangeInSecondUnit();  // second_unit.cu

int main() {
  mori::shmem::testing::TwoPes* pes = InitializedPes();
  pes->Report("kernels of a unit made known after init", Exchange());
  pes->Report("kernels of another unit made known after init", ExchangeInSecondUnit());
  pes->Report("finalize", mori::shmem::ShmemFinalize() == 0);
  return pes->End();
}
