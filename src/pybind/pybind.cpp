// The Python module `mori._core`.
#include "pybind/mori.hpp"

// Named apart from what Python looks for, so that the check below comes first.
PYBIND11_MODULE(_core_bindings, module, pybind11::multiple_interpreters::not_supported()) {
  module.doc() = "Bindings of MORI Shmem; use mori.shmem.";
  mori::shmem::RegisterMoriShmem(module);
}

/// What Python calls to import the module. In a sub-interpreter the bindings' own state would be
/// looked for with the lock that the import holds, which waits for ever.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__core_bindings();
  PyErr_SetString(PyExc_ImportError,
                  "mori works in the main interpreter only: import it there, not in a "
                  "sub-interpreter");
  return nullptr;
}
