// NVSHMEM on many GPUs. Built and started by scale.py.
#include "nvshmem.cuh"

#include "scale_program.cuh"

int main(int argc, char** argv) {
  using namespace mori::bench;
  return ScaleMain<Nvshmem>(argc, argv, NoMore());
}
