// What the binding files share.
#pragma once

#include <pybind11/pybind11.h>

namespace mori::shmem {

/// Defines every Shmem binding in `module`. Failed calls raise `mori.shmem.ShmemError`.
void RegisterMoriShmem(pybind11::module_& module);

/// Defines the view of symmetric memory: buffer protocol and DLPack.
void RegisterSymmetricView(pybind11::module_& module);

/// Defines the calls on streams.
void RegisterStreams(pybind11::module_& module);

}  // namespace mori::shmem
