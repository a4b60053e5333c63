// The Python module `mori._core`.
#include "pybind/mori.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Bindings of MORI Shmem; use mori.shmem.";
  mori::shmem::RegisterMoriShmem(module);
}
