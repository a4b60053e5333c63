"""Calls on streams, on the host backend, where the calling thread is the stream."""

from __future__ import annotations

import sys
import types

import pytest
from mori import shmem
from mori.shmem import streams
from pes import PeRunner


def test_put_get_and_signal_on_the_only_stream(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    other = 1 - rank
    block, signal = shmem.shmem_malloc(4096), shmem.shmem_malloc(8)
    shmem.shmem_p(signal, 0, rank)
    mine = np.arange(512, dtype=np.int64) + 1000 * rank
    theirs = np.zeros_like(mine)
    shmem.shmem_barrier_all()
    shmem.shmem_putmem_signal_on_stream(
        block, mine.ctypes.data, 4096, signal, 7, shmem.SignalOp.SET, other
    )
    shmem.shmem_signal_wait_until_on_stream(signal, ">=", 7)
    shmem.shmem_getmem_on_stream(theirs.ctypes.data, block, 4096, rank)
    assert (theirs == np.arange(512) + 1000 * other).all()
    shmem.shmem_signal_op_on_stream(signal, 5, shmem.SignalOp.ADD, other)
    shmem.shmem_signal_wait_until_on_stream(signal, ">=", 12, None)
    shmem.shmem_putmem_on_stream(block, mine.ctypes.data, 8, rank)
    shmem.shmem_quiet_on_stream()
    shmem.shmem_barrier_all_on_stream()
    assert shmem.shmem_g(block, other, "int64") == 1000 * other
    shmem.shmem_sync_all_on_stream()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_collectives(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    n, size = 5, shmem.shmem_npes()
    dest, source = (shmem.shmem_malloc(8 * n * size) for _ in range(2))
    view = lambda ptr, count, dtype: shmem.shmem_numpy(ptr, (count,), dtype)
    view(source, n, np.float64)[:] = np.arange(n) + 10 * rank
    shmem.shmem_broadcast_on_stream(dest, source, 8 * n, 1)
    assert (view(dest, n, np.float64) == np.arange(n) + 10).all()
    shmem.shmem_barrier_all()
    shmem.shmem_fcollect_on_stream(dest, source, 8 * n)
    assert (view(dest, n * size, np.float64).reshape(size, n)
            == np.arange(n) + 10 * np.arange(size)[:, None]).all()
    shmem.shmem_barrier_all()
    view(source, n * size, np.float64)[:] = 100 * rank + np.arange(n * size)
    shmem.shmem_alltoall_on_stream(dest, source, 8 * n)
    for pe in range(size):
        assert (view(dest, n * size, np.float64)[pe * n:(pe + 1) * n]
                == 100 * pe + np.arange(rank * n, rank * n + n)).all()
    shmem.shmem_barrier_all()
    for dtype in ("int32", "uint32", "int64", "uint64", "float32", "float64"):
        for op, expected in (
            ("sum", size * (size - 1) // 2), ("min", 0), (shmem.ReduceOp.MAX, size - 1)
        ):
            view(source, n, np.dtype(dtype))[:] = rank
            shmem.shmem_reduce_on_stream(source, source, n, dtype, op)
            assert (view(source, n, np.dtype(dtype)) == expected).all(), (dtype, op)
            shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(3, code).succeeded()


def test_what_is_wrong_is_an_error_and_names_it(run_pes: PeRunner) -> None:
    code = """
    join()
    block = shmem.shmem_malloc(64)
    def refused(part, call, *arguments):
        try:
            call(*arguments)
        except shmem.ShmemError as error:
            assert error.code == shmem.ErrorCode.INVALID_ARGUMENT, error
            assert part in str(error), error
        else:
            raise AssertionError(f"{call.__name__}{arguments} succeeded")
    refused("only stream is null", shmem.shmem_barrier_all_on_stream, 4660)
    refused("PE 7", shmem.shmem_putmem_on_stream, block, block, 8, 7)
    refused("no symmetric address", shmem.shmem_getmem_on_stream, block, 64, 8, 0)
    refused("not aligned", shmem.shmem_signal_op_on_stream, block + 1, 1, shmem.SignalOp.SET, 0)
    refused("dtype", shmem.shmem_reduce_on_stream, block, block, 1, "float16")
    refused("op is 'mean'", shmem.shmem_reduce_on_stream, block, block, 1, "float32", "mean")
    refused("more than the heap", shmem.shmem_fcollect_on_stream, block, block, 1 << 40)
    assert shmem.shmem_device() == -1
    try:
        shmem.shmem_library_init(4096)
    except shmem.ShmemError as error:
        assert error.code == shmem.ErrorCode.UNSUPPORTED, error
    else:
        raise AssertionError("a library was taken")
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def stream(**attributes: object) -> object:
    return types.SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("given", "handle"),
    [
        (None, 0),
        (4660, 4660),
        (stream(cuda_stream=1, device=stream(type="cuda", index=1)), 1),  # of torch
        (stream(native_handle=2, device=stream(type="cuda", index=1)), 2),
        (stream(ptr=3, device_id=1), 3),  # of CuPy
        (stream(ptr=3, device_id=-1), 3),
        (stream(__cuda_stream__=lambda: (0, 4)), 4),
        (stream(__cuda_stream__=(0, 5)), 5),
    ],
)
def test_streams_of_every_library_are_known(
    given: object, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams._core, "device", lambda: 1)
    assert streams._handle(given) == handle


@pytest.mark.parametrize(
    ("device", "initialized", "handle"), [(1, True, 4660), (1, False, 0), (-1, True, 0)]
)
def test_none_is_the_current_stream_of_torch_where_that_is_in_use(
    device: int, initialized: bool, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = types.SimpleNamespace(
        is_initialized=lambda: initialized,
        current_stream=lambda of: types.SimpleNamespace(cuda_stream=4660 if of == device else 1),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(streams._core, "device", lambda: device)
    assert streams._handle(None) == handle


def test_none_is_the_default_stream_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(streams._core, "device", lambda: 1)
    assert streams._handle(None) == 0


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (stream(cuda_stream=0, device=stream(type="cuda", index=1)), "on device 1, and this PE is"),
        (stream(ptr=0, device_id=2), "on device 2, and this PE is on device 0"),
        ("default", "'default' is no stream"),
    ],
)
def test_a_stream_of_another_device_is_refused(
    given: object, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams._core, "device", lambda: 0)
    with pytest.raises(shmem.ShmemError, match=part) as raised:
        streams._handle(given)
    assert raised.value.code == shmem.ErrorCode.INVALID_ARGUMENT
