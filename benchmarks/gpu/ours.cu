// Our device API in the shapes of shapes.cuh. Built and started by run.py.
#include "ours.cuh"

#include "program.cuh"

int main(int argc, char** argv) { return mori::bench::Main<mori::bench::Ours>(argc, argv); }
