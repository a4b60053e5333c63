"""The heap modes from Python, and tensors that own their block."""

from __future__ import annotations

import pytest
from pes import PeRunner, needs_torch

MODES = ("static", "vmm", "isolation")


def in_mode(mode: str) -> dict[str, str]:
    return {"MORI_SHMEM_MODE": mode, "MORI_SHMEM_VMM_CHUNK_SIZE": "65536"}


@pytest.mark.parametrize("mode", MODES)
def test_views_of_freed_blocks_are_stale_and_no_crash(run_pes: PeRunner, mode: str) -> None:
    code = """
    import numpy as np
    join()
    ptrs = [shmem.shmem_malloc(200_000) for _ in range(4)]
    other = 1 - rank
    views = [shmem.shmem_numpy(ptr, 200_000, np.uint8, pe=pe) for ptr in ptrs for pe in (0, 1)]
    for ptr in ptrs:
        shmem.shmem_numpy(ptr, 200_000, np.uint8)[:] = rank + 1
    shmem.shmem_barrier_all()
    assert [int(view.sum()) for view in views] == [200_000, 400_000] * 4
    shmem.shmem_barrier_all()
    for ptr in ptrs:
        shmem.shmem_free(ptr)
    assert all(view.sum() >= 0 for view in views)
    ptr = shmem.shmem_malloc(500_000)
    fresh = shmem.shmem_numpy(ptr, 500_000, np.uint8)
    fresh[:] = 7
    shmem.shmem_barrier_all()
    assert (shmem.shmem_numpy(ptr, 500_000, np.uint8, pe=other) == 7).all()
    shmem.shmem_finalize()
    assert all(view.sum() >= 0 for view in views) and (fresh == 7).all()
    """
    run_pes(2, code, env=in_mode(mode)).succeeded()


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_say_what_they_are(run_pes: PeRunner, mode: str) -> None:
    code = """
    import os
    join()
    info = shmem.shmem_info()
    assert f"heap     {os.environ['MORI_SHMEM_MODE']} mode" in info, info
    assert "mapping  " in info
    shmem.shmem_finalize()
    """
    run_pes(1, code, env=in_mode(mode)).succeeded()


def test_flags_have_names(run_pes: PeRunner) -> None:
    code = """
    join()
    for flags in (shmem.MORI_SHMEM_MALLOC_DEFAULT, shmem.MORI_SHMEM_MALLOC_FINE_GRAINED):
        assert shmem.shmem_ext_malloc_with_flags(64, flags)
    uncached = shmem.MORI_SHMEM_MALLOC_UNCACHED
    unsupported = shmem.ErrorCode.UNSUPPORTED
    expect_error(unsupported, shmem.shmem_ext_malloc_with_flags, 64, uncached, says="isolation")
    shmem.shmem_finalize()
    """
    run_pes(2, code, env={"MORI_SHMEM_HEAP_TYPE": "normal"}).succeeded()


@needs_torch
@pytest.mark.parametrize("mode", MODES)
def test_tensors_own_their_block(run_pes: PeRunner, mode: str) -> None:
    code = """
    import gc
    import torch
    join()
    other = 1 - rank
    blocks = lambda: shmem.shmem_heap_stats().live_blocks

    tensor = shmem.mori_shmem_create_tensor((16, 1000), torch.bfloat16)
    assert (tensor.shape, tensor.dtype) == ((16, 1000), torch.bfloat16)
    tensor.fill_(rank + 1)
    shmem.shmem_barrier_all()
    theirs = shmem.mori_shmem_peer_tensor(tensor, other)
    assert (theirs == other + 1).all()
    part = shmem.mori_shmem_peer_tensor(tensor[3], other)
    assert part.shape == (1000,) and (part == other + 1).all()
    expect_error(shmem.ErrorCode.INVALID_ARGUMENT, shmem.mori_shmem_peer_tensor, tensor.t(), other)
    nothing = shmem.mori_shmem_peer_tensor(tensor[3:3], other)
    assert nothing.shape == tensor[3:3].shape and nothing.dtype == tensor.dtype
    waves = shmem.mori_shmem_create_tensor((4,), torch.complex64)
    for lazy in (waves.conj(), waves[:1].conj().imag):  # contiguous, both
        assert lazy.is_contiguous() and (lazy.is_conj() or lazy.is_neg())
        expect_error(shmem.ErrorCode.INVALID_ARGUMENT, shmem.mori_shmem_peer_tensor, lazy, other)
    local = torch.ones(4, dtype=torch.complex64)
    for lazy in (local.conj(), local[:1].conj().imag):
        expect_error(
            shmem.ErrorCode.INVALID_ARGUMENT,
            shmem.shmem_putmem,
            waves.data_ptr(),
            lazy,
            None,
            other,
        )
    shmem.mori_shmem_free_tensor(waves)
    shmem.shmem_barrier_all()
    shmem.mori_shmem_free_tensor(tensor)
    assert blocks() == 0
    del tensor, theirs, part  # nothing left to drop
    shmem.shmem_barrier_all()
    assert blocks() == 0

    # Dropped, and given back at the first collective call after all PEs have.
    tensor = shmem.mori_shmem_create_tensor(1000, torch.float32)
    view = tensor[10:20]
    del tensor
    gc.collect()
    shmem.shmem_barrier_all()
    assert blocks() == 1  # the view holds it
    if rank == 0:
        del view
        gc.collect()
    shmem.shmem_barrier_all()
    assert blocks() == 1  # on PE 1 it does still
    if rank == 1:
        del view
        gc.collect()
    assert blocks() == 1  # nothing blocks, nothing is freed behind anybody's back
    shmem.shmem_barrier_all()
    assert blocks() == 0

    # A block that was freed and is there again is another block.
    old = shmem.mori_shmem_create_tensor(1000, torch.float32)
    shmem.mori_shmem_free_tensor(old)
    new = shmem.mori_shmem_create_tensor(1000, torch.float32)
    assert new.data_ptr() == old.data_ptr()
    del old
    gc.collect()
    shmem.shmem_barrier_all()
    assert blocks() == 1

    tensors = [shmem.mori_shmem_create_tensor(1000, torch.float32) for _ in range(5)]
    del tensors[1], tensors[2]
    gc.collect()
    shmem.shmem_free(shmem.shmem_malloc(64))
    assert blocks() == 4
    assert shmem.mori_shmem_create_tensor((3, 0), torch.int8).shape == (3, 0)
    assert blocks() == 4  # without elements it has no block
    shmem.shmem_finalize()
    del new, tensors
    gc.collect()
    """
    run_pes(2, code, env=in_mode(mode)).succeeded()
