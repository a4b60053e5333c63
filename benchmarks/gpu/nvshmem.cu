// NVSHMEM in the shapes of shapes.cuh. Built and started by run.py.
#include "nvshmem.cuh"

#include "program.cuh"

int main(int argc, char** argv) { return mori::bench::Main<mori::bench::Nvshmem>(argc, argv); }
