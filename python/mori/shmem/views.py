"""Symmetric memory as arrays: numpy, torch, and whatever else reads DLPack.

A view is no copy: it reads and writes the memory of this PE, or of a peer in reach of load and
store. It keeps that memory mapped, so that one which outlives `shmem_free()` or `shmem_finalize()`
is stale, but never a crash; except in GPU memory that is unmapped by a free (modes vmm and
isolation), where a kernel that uses it ends with an error of the device. It does not keep the
block: a tensor on a peer may be another block's once that of `mori_shmem_create_tensor()` is
dropped everywhere. Making a view is local; making a tensor with memory of its own is collective.
Order between PEs comes from barriers and signals, as for any other access; what kernels of a
program do to a tensor is ordered with calls of the host once the program has synchronized their
stream, and with calls on that stream at once.

Views raise `ShmemError`: INVALID_ARGUMENT for a PE out of range, a shape or dtype that cannot
be, or a view that leaves the heap; UNSUPPORTED for a PE that is not in reach; NOT_INITIALIZED.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from mori import _core
from mori._core import ErrorCode
from mori.shmem.errors import ShmemError, failed, shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Shape = Union[int, Sequence[int]]

_MAX_BYTES = 2**63 - 1
_MAX_DIMENSIONS = 64

_DLPACK_CPU = 1
# DLPack type code and bits of what it calls a data type.
_DLPACK_TYPES = {
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "complex128": (5, 128),
}


class SymmetricArray:
    """An array in symmetric memory for consumers of DLPack, e.g. `torch.from_dlpack(array)`."""

    def __init__(self, view: _core.SymmetricView, shape: tuple[int, ...], dtype: str) -> None:
        self._view = view
        self.shape = shape
        self.dtype = dtype

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule over this memory; DLPack 1.0 where the consumer knows it, 0.x otherwise.

        Raises BufferError for another device and for a copy, which only the consumer can make.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on device {self.__dlpack_device__()}")
        if copy:
            raise BufferError("the array is a view; copy it after the import")
        code, bits = _DLPACK_TYPES[self.dtype]
        versioned = max_version is not None and max_version[0] >= 1
        return self._view.dlpack(code, bits, list(self.shape), versioned)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._view.dlpack_device()


def shmem_dlpack(ptr: int, shape: Shape, dtype: str, pe: int | None = None) -> SymmetricArray:
    """The array at symmetric address `ptr` on `pe` (default: this PE), for `from_dlpack()`.

    `dtype` is a name such as "float32" or "bfloat16"; `ptr` is a multiple of its size.
    """
    if not isinstance(dtype, str) or dtype not in _DLPACK_TYPES:
        raise _invalid(f"dtype is {shown(dtype)}; it must be one of {', '.join(_DLPACK_TYPES)}")
    element_bytes = _DLPACK_TYPES[dtype][1] // 8
    dimensions = _dimensions(shape, element_bytes)
    _require_aligned(ptr, element_bytes, dtype)
    return SymmetricArray(_view(ptr, dimensions, element_bytes, pe), dimensions, dtype)


def shmem_numpy(
    ptr: int, shape: Shape, dtype: npt.DTypeLike, pe: int | None = None
) -> np.ndarray[Any, Any]:
    """The numpy array at symmetric address `ptr` on `pe` (default: this PE). C order, writable."""
    import numpy as np

    try:
        element = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise _invalid(f"dtype is {shown(dtype)}; numpy has no such type") from error
    if element.hasobject:
        raise _invalid(f"dtype is {element}; Python objects cannot be in symmetric memory")
    if element.itemsize == 0:
        raise _invalid(f"dtype is {element}, whose elements have no bytes")
    dimensions = _dimensions(shape, element.itemsize)
    view = _view(ptr, dimensions, element.itemsize, pe)
    if view.dlpack_device()[0] != _DLPACK_CPU:
        raise failed(
            f"numpy cannot reach this memory, which is that of GPU {view.dlpack_device()[1]}:"
            " use shmem_tensor() or shmem_dlpack(), or start with MORI_SHMEM_BACKEND=host, which"
            " takes the CPU's memory",
            ErrorCode.UNSUPPORTED,
        )
    try:
        array: np.ndarray[Any, Any] = np.ndarray(dimensions, element, buffer=memoryview(view))
    except (TypeError, ValueError) as error:
        raise _invalid(
            f"numpy has no array of shape {shown(dimensions)} and type {element}"
        ) from error
    return array


def shmem_tensor(ptr: int, shape: Shape, dtype: torch.dtype, pe: int | None = None) -> torch.Tensor:
    """The torch tensor at symmetric address `ptr` on `pe` (default: this PE). Contiguous.

    Any torch dtype, bfloat16 and the 8-bit floats too; `ptr` is a multiple of its size.
    """
    dimensions = _dimensions(shape, _element_bytes(dtype))
    _require_aligned(ptr, dtype.itemsize, dtype)
    return _tensor(_view(ptr, dimensions, dtype.itemsize, pe), dimensions, dtype)


def _element_bytes(dtype: torch.dtype) -> int:
    import torch

    if not isinstance(dtype, torch.dtype):
        raise _invalid(f"dtype is {shown(dtype)}; it must be a torch.dtype such as torch.float32")
    return dtype.itemsize


def _tensor(
    view: _core.SymmetricView, dimensions: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    import torch.utils.dlpack

    # As bytes, because torch has dtypes that DLPack does not name.
    array = SymmetricArray(view, (math.prod(dimensions) * dtype.itemsize,), "uint8")
    content: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    try:
        return content.view(dtype).view(dimensions)
    except (RuntimeError, TypeError) as error:
        raise _invalid(
            f"torch has no tensor of shape {shown(dimensions)} and {dtype} here"
        ) from error


def mori_shmem_create_tensor(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """A torch tensor in a block of its own, at the same offset on every PE. Collective.

    All PEs pass the same shape and dtype. Contents are unspecified. `mori_shmem_free_tensor()`
    frees the block; so does a garbage collector that drops the last tensor over it, without
    blocking: it is given back at the first collective call after all PEs have dropped theirs.
    A tensor without elements has no block. The tensor has the mark `__symm_tensor__ = True`.

    Raises what `shmem_malloc()` raises.
    """
    dimensions = _dimensions(shape, _element_bytes(dtype))
    size = math.prod(dimensions) * dtype.itemsize
    tensor = _empty(dimensions, dtype) if size == 0 else _owner(size, dimensions, dtype)
    tensor.__symm_tensor__ = True  # type: ignore[attr-defined]
    return tensor


def _owner(size: int, dimensions: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in a new block, which is freed with it."""
    ptr = _core.malloc(size)
    return _tensor(_core.SymmetricView(ptr, size, None, True), dimensions, dtype)


def _empty(dimensions: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without elements, on the device of this PE."""
    import torch

    device = _core.device()
    return torch.empty(dimensions, dtype=dtype, device="cpu" if device < 0 else f"cuda:{device}")


def mori_shmem_create_tensor_list_intra_node(
    shape: Shape, dtype: torch.dtype, num_ranks: int
) -> list[torch.Tensor]:
    """As `mori_shmem_create_tensor()`; a list with this PE's tensor and those of peers. Collective.

    Element i is the tensor on PE i, for the first `num_ranks` PEs. They are views, except that of
    this PE, which owns the block.

    Raises also INVALID_ARGUMENT, before anything is allocated, unless `num_ranks` is 1 to
    `shmem_npes()`; UNSUPPORTED for a PE that is not in reach.
    """
    if not 1 <= num_ranks <= _core.npes():
        raise _invalid(f"num_ranks is {shown(num_ranks)}; there are PEs 0 to {_core.npes() - 1}")
    tensor = mori_shmem_create_tensor(shape, dtype)
    return [symm_mori_shmem_tensor(tensor, pe) for pe in range(num_ranks)]


def symm_mori_shmem_tensor(tensor: torch.Tensor, peer: int) -> torch.Tensor:
    """The same tensor on `peer`: a view of its memory there; for this PE the tensor itself. Local.

    Raises what `mori_shmem_peer_tensor()` raises.
    """
    return tensor if peer == _core.mype() else mori_shmem_peer_tensor(tensor, peer)


def mori_shmem_free_tensor(tensor: torch.Tensor) -> None:
    """Gives the block of a tensor of `mori_shmem_create_tensor()` back at once. Collective.

    Kernels that use it have ended. The tensor and its views stay readable, but their contents are
    no longer defined; in GPU memory of modes vmm and isolation they must not be used any more.

    Raises what `shmem_free()` raises.
    """
    _core.free(tensor.untyped_storage().data_ptr())


def mori_shmem_peer_tensor(tensor: torch.Tensor, pe: int) -> torch.Tensor:
    """The same tensor on `pe`: a view of its memory there. Local.

    `tensor` is contiguous and in this PE's symmetric memory, a part of a larger one for example.
    Where it has no elements, so has the result.
    """
    if not tensor.is_contiguous():
        raise _invalid("the tensor is not contiguous; a view on a peer is")
    if tensor.is_conj() or tensor.is_neg():
        raise _invalid(
            "the tensor is conjugated or negated lazily; resolve_conj() and resolve_neg()"
        )
    if tensor.numel() == 0:  # torch gives it no address
        return tensor.new_empty(tensor.shape)
    return shmem_tensor(tensor.data_ptr(), tuple(tensor.shape), tensor.dtype, pe)


def _dimensions(shape: Shape, element_bytes: int) -> tuple[int, ...]:
    """`shape` as a tuple, once it can be one of an array."""
    lengths = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    try:
        dimensions = tuple(operator.index(length) for length in lengths)
    except TypeError:
        raise _invalid(
            f"shape is {shown(shape)}; it must be an int or a sequence of ints"
        ) from None
    if any(length < 0 for length in dimensions):
        raise _invalid(f"shape is {shown(dimensions)}; no dimension can be negative")
    # Strides are counted as if there was no 0 among the lengths.
    if math.prod(max(length, 1) for length in dimensions) * element_bytes > _MAX_BYTES:
        raise _invalid(
            f"shape is {shown(dimensions)}, of {element_bytes} bytes each; that is over 2**63"
        )
    if len(dimensions) > _MAX_DIMENSIONS:
        raise _invalid(f"shape has {len(dimensions)} dimensions; at most {_MAX_DIMENSIONS} can be")
    return dimensions


def _require_aligned(ptr: int, element_bytes: int, dtype: object) -> None:
    if ptr % element_bytes != 0:
        raise _invalid(f"address {ptr:#x} is no multiple of {element_bytes}, the size of {dtype}")


def _view(
    ptr: int, dimensions: tuple[int, ...], element_bytes: int, pe: int | None
) -> _core.SymmetricView:
    return _core.SymmetricView(ptr, math.prod(dimensions) * element_bytes, pe)


def _invalid(sentence: str) -> ShmemError:
    return failed(sentence, ErrorCode.INVALID_ARGUMENT)
