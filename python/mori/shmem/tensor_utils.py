"""The helpers of torch tensors under one name, as programs for upstream MORI import them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mori.shmem.views import (
    SymmetricArray,
    mori_shmem_create_tensor,
    mori_shmem_create_tensor_list_intra_node,
    mori_shmem_free_tensor,
    shmem_dlpack,
    symm_mori_shmem_tensor,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "MoriShmemBuffer",
    "mori_shmem_create_tensor",
    "mori_shmem_create_tensor_list_intra_node",
    "mori_shmem_free_tensor",
    "symm_mori_shmem_tensor",
]


class MoriShmemBuffer:
    """`nbytes` of this PE's symmetric memory at `ptr`, as a flat array of `dtype` for DLPack."""

    def __init__(self, ptr: int, nbytes: int, dtype: torch.dtype) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.dtype = dtype

    def _array(self) -> SymmetricArray:
        name = str(self.dtype).removeprefix("torch.")
        return shmem_dlpack(self.ptr, self.nbytes // self.dtype.itemsize, name)

    def __dlpack__(self, **request: object) -> object:
        """As `SymmetricArray.__dlpack__()`."""
        return self._array().__dlpack__(**request)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array().__dlpack_device__()
