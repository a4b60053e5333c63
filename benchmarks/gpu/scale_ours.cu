// Our library on many GPUs. Built and started by scale.py.
#include "ours.cuh"

#include "one_shot.cuh"
#include "scale_program.cuh"

int main(int argc, char** argv) {
  using namespace mori::bench;
  return ScaleMain<Ours>(argc, argv, [](const Options& options, Pe<Ours>& pe) {
    if (options.Wants("allreduce")) OneShotFigures(pe).All();
  });
}
