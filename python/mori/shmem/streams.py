"""Calls that a stream of the PE's GPU makes when it comes to them.

`stream` is a stream of torch, of CuPy, or of whatever else has `__cuda_stream__`, or the vendor's
handle as an int. None is torch's current stream where torch is in use on the PE's GPU, and the
default stream otherwise, which torch's others do not wait for. A call returns once it is on the
stream, and is ordered as the stream is: after what was put there before, kernels included, and
ahead of what comes later. On the host backend the only stream is None, and a call is made at once.

Addresses are ints, symmetric where they name what another PE reaches; sizes are in bytes. What was
put on streams is complete, and visible to all PEs, after `shmem_barrier_all()`, too; but not what
a program put there by itself, and not what a graph puts that was captured from a stream. Such a
graph must not be launched after `shmem_finalize()`.

*Collective* calls are put on one stream each by all PEs, in the same order, one under way at a
time. `dest` is not in use on any PE when the first of them makes the call.

Calls raise `ShmemError`: INVALID_ARGUMENT for a PE out of range, an address outside the heap, a
stream on the host backend, of another device, or what is no stream; faults of the device come from
a later call.
"""

from __future__ import annotations

import sys
from typing import Any, Union

from mori import _core
from mori._core import Cmp, ErrorCode, ReduceOp, SignalOp
from mori.shmem.errors import failed, shown
from mori.shmem.host_ops import _comparison, _signal_op, _type_name

Stream = Union[int, Any, None]
"""A stream object of torch or CuPy, a handle, or None."""

_ELEMENT_TYPES = {
    name: number
    for number, name in enumerate(("int32", "uint32", "int64", "uint64", "float32", "float64"))
}


def _current_stream() -> int:
    """The handle of torch's current stream, if torch is in use on the PE's GPU; otherwise 0."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    device = _core.device()
    if device < 0 or cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_stream(device).cuda_stream)


def _handle(stream: Stream) -> int:
    """The vendor's handle; 0 for the default stream."""
    if stream is None:
        return _current_stream()
    if isinstance(stream, int):
        return stream
    device = getattr(getattr(stream, "device", None), "index", None)  # of torch
    if device is None:
        device = getattr(stream, "device_id", -1)  # of CuPy; -1: the current one
    if device >= 0 and _core.device() not in (-1, device):
        raise failed(
            f"the stream is on device {device}, and this PE is on device {_core.device()}",
            ErrorCode.INVALID_ARGUMENT,
        )
    for attribute in ("cuda_stream", "native_handle", "ptr"):  # of torch, of torch, of CuPy
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    raise failed(f"{shown(stream)} is no stream", ErrorCode.INVALID_ARGUMENT)


def shmem_putmem_on_stream(
    dest: int, source: int, size: int, pe: int, stream: Stream = None
) -> None:
    """Copies `size` bytes from local `source` to `dest` on `pe`."""
    _core.putmem_on_stream(dest, source, size, pe, _handle(stream))


def shmem_getmem_on_stream(
    dest: int, source: int, size: int, pe: int, stream: Stream = None
) -> None:
    """Copies `size` bytes from `source` on `pe` to local `dest`."""
    _core.getmem_on_stream(dest, source, size, pe, _handle(stream))


def shmem_putmem_signal_on_stream(
    dest: int,
    source: int,
    size: int,
    sig_addr: int,
    signal: int,
    sig_op: SignalOp | int,
    pe: int,
    stream: Stream = None,
) -> None:
    """Puts, then sets or adds `signal` on `pe`: who sees the signal sees the data."""
    _core.putmem_signal_on_stream(
        dest, source, size, sig_addr, signal, _signal_op(sig_op), pe, _handle(stream)
    )


def shmem_signal_op_on_stream(
    sig_addr: int, signal: int, sig_op: SignalOp | int, pe: int, stream: Stream = None
) -> None:
    """Sets or adds `signal` on `pe`; what the stream put before comes first."""
    _core.signal_op_on_stream(sig_addr, signal, _signal_op(sig_op), pe, _handle(stream))


def shmem_signal_wait_until_on_stream(
    sig_addr: int, cmp: Cmp | str, value: int, stream: Stream = None
) -> None:
    """The stream goes on once `*sig_addr cmp value` holds here."""
    _core.signal_wait_until_on_stream(sig_addr, _comparison(cmp), value, _handle(stream))


def shmem_quiet_on_stream(stream: Stream = None) -> None:
    """The stream goes on once what it put before is visible to all PEs."""
    _core.quiet_on_stream(_handle(stream))


def shmem_barrier_all_on_stream(stream: Stream = None) -> None:
    """The streams go on once those of all PEs have come to it. Collective.

    What any of them put before is then visible to all.
    """
    _core.barrier_all_on_stream(_handle(stream))


def shmem_barrier_on_stream(stream: Stream = None) -> None:
    """Another name of `shmem_barrier_all_on_stream()`. Collective."""
    _core.barrier_all_on_stream(_handle(stream))


def shmem_sync_all_on_stream(stream: Stream = None) -> None:
    """The streams go on once those of all PEs have come to it. Collective."""
    _core.sync_all_on_stream(_handle(stream))


def shmem_broadcast_on_stream(
    dest: int, source: int, size: int, root: int, stream: Stream = None
) -> None:
    """`size` bytes at `source` of `root`, to `dest` of all PEs. Collective."""
    _core.broadcast_on_stream(dest, source, size, root, _handle(stream))


def shmem_fcollect_on_stream(dest: int, source: int, size: int, stream: Stream = None) -> None:
    """All-gather: `size` bytes at `source` of each PE, to `dest + pe * size` of all. Collective."""
    _core.fcollect_on_stream(dest, source, size, _handle(stream))


def shmem_alltoall_on_stream(dest: int, source: int, size: int, stream: Stream = None) -> None:
    """`size` bytes at `source + pe * size`, to `dest + my_pe * size` of `pe`. Collective."""
    _core.alltoall_on_stream(dest, source, size, _handle(stream))


def shmem_reduce_on_stream(
    dest: int,
    source: int,
    count: int,
    dtype: Any = "float32",
    op: ReduceOp | str = ReduceOp.SUM,
    stream: Stream = None,
) -> None:
    """Combines `count` elements of all PEs, in the order of PEs. Collective.

    The result is the same, to the bit, on all. `dest` may be `source`. `dtype` is a name, or a
    numpy or torch dtype: integers and floats of 32 and 64 bits; `op` is a `ReduceOp`, or "sum",
    "min" or "max".
    """
    element = _ELEMENT_TYPES.get(_type_name(dtype))
    if element is None:
        raise failed(
            f"dtype is {shown(dtype)}; it must be one of {', '.join(_ELEMENT_TYPES)}",
            ErrorCode.INVALID_ARGUMENT,
        )
    try:
        combine = ReduceOp[op.upper()] if isinstance(op, str) else ReduceOp(op)
    except Exception:  # the sentence of the enumeration runs the object's own code
        raise failed(
            f"op is {shown(op)}; it must be a ReduceOp, 'sum', 'min' or 'max'",
            ErrorCode.INVALID_ARGUMENT,
        ) from None
    _core.reduce_on_stream(dest, source, count, element, combine, _handle(stream))
