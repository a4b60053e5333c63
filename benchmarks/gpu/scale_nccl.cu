// NCCL on many GPUs. Built and started by scale.py.
#include "nccl.cuh"

#include "scale_program.cuh"

int main(int argc, char** argv) {
  using namespace mori::bench;
  return ScaleMain<Nccl>(argc, argv, NoMore());
}
