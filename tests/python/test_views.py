"""numpy, torch and DLPack over symmetric memory, of this PE and of peers."""

from __future__ import annotations

from pes import PeRunner, needs_torch


def test_numpy_over_own_and_peer_memory(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    ptr = shmem.shmem_malloc(4096)
    mine = shmem.shmem_numpy(ptr, (8, 16), np.float32)
    assert (mine.shape, mine.dtype, mine.ctypes.data) == ((8, 16), np.float32, ptr)
    assert mine.flags.c_contiguous and mine.flags.writeable and not mine.flags.owndata
    mine[:] = rank
    shmem.shmem_barrier_all()
    for pe in range(world_size):
        theirs = shmem.shmem_numpy(ptr, (8, 16), "float32", pe=pe)
        assert (theirs == pe).all()
    shmem.shmem_barrier_all()
    for pe in range(world_size):
        shmem.shmem_numpy(ptr, (8, 16), "float32", pe=pe)[rank] = 100 + rank
    shmem.shmem_barrier_all()
    assert mine[:, 0].tolist() == [100.0, 101.0, 102.0] + [rank] * 5
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(3, code).succeeded()


def test_numpy_shapes_and_dtypes(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    ptr = shmem.shmem_malloc(1 << 20)
    record = np.dtype([("key", "<u4"), ("value", "<f8")])
    for dtype in (np.bool_, np.int8, np.uint16, np.complex128, "<i8", record, "S5"):
        for shape in ((), 7, (0,), (3, 0, 2), [2, 3], (np.int64(4),)):
            array = shmem.shmem_numpy(ptr, shape, dtype)
            assert array.dtype == np.dtype(dtype)
            assert array.shape == np.empty(shape).shape
    assert shmem.shmem_numpy(ptr + 1, 4, np.uint8).ctypes.data == ptr + 1
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_views_that_cannot_be(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    heap_bytes = 16 << 20
    ptr = shmem.shmem_malloc(4096)
    invalid = shmem.ErrorCode.INVALID_ARGUMENT
    numpy, dlpack = shmem.shmem_numpy, shmem.shmem_dlpack
    expect_error(invalid, numpy, ptr, heap_bytes + 1, np.uint8)
    expect_error(invalid, numpy, ptr, (2**40, 2**40), np.float64)
    expect_error(invalid, numpy, ptr - 8192 * 4096, 8, np.uint8)
    expect_error(invalid, numpy, id(ptr), 8, np.uint8)
    expect_error(invalid, numpy, 0, 8, np.uint8)
    expect_error(invalid, numpy, ptr, 8, np.uint8, 2, says="2")
    expect_error(invalid, numpy, ptr, 8, np.uint8, -1, says="-1")
    expect_error(invalid, numpy, ptr, (2, -3), np.uint8, says="(2, -3)")
    expect_error(invalid, numpy, ptr, 8, object, says="object")
    expect_error(invalid, dlpack, ptr, 8, "float33", says="float33")
    expect_error(invalid, dlpack, ptr + 2, 8, "float32", says="multiple of 4")
    for make, types in ((numpy, ("float32", np.uint8)), (dlpack, ("float32", "bool"))):
        for shape in (2.5, "4", b"x" * 3, (2, "3"), (None,), [[2]], 2**63, (2**62, 2), 2**200,
                      (0, 2**63), (0, 2**62, 2**62), (1,) * 65, np.zeros(2), object()):
            for dtype in types:
                if isinstance(shape, bytes):
                    shape = (shape,)
                expect_error(invalid, make, ptr, shape, dtype, says=f"{make.__name__}: ")
    for dtype in ("float33", 7, "S0", "V0", [("a", "no")], object(), "O", ("O", 3)):
        expect_error(invalid, numpy, ptr, 8, dtype, says="shmem_numpy: dtype is")
    for dtype in (np.float32, None, 7, "object", ["float32"]):
        expect_error(invalid, dlpack, ptr, 8, dtype, says="shmem_dlpack: dtype is")
    shmem.shmem_finalize()
    expect_error(shmem.ErrorCode.NOT_INITIALIZED, numpy, ptr, 8, np.uint8)
    """
    run_pes(2, code).succeeded()


def test_views_outlive_free_and_finalize(run_pes: PeRunner) -> None:
    code = """
    import gc
    import numpy as np
    join()
    ptr = shmem.shmem_malloc(1 << 20)
    other = 1 - rank
    mine = shmem.shmem_numpy(ptr, 1 << 20, np.uint8)
    theirs = shmem.shmem_numpy(ptr, 1 << 20, np.uint8, pe=other)
    mine[:] = rank + 1
    shmem.shmem_barrier_all()
    shmem.shmem_free(ptr)
    part = theirs[1000:2000]
    shmem.shmem_finalize()
    assert (mine == rank + 1).all() and (theirs == other + 1).all()
    del mine, theirs
    gc.collect()
    assert (part == other + 1).all()

    # A new world beside the leftovers of the old one.
    join("second")
    again = shmem.shmem_numpy(shmem.shmem_malloc(64), 8, np.uint64)
    again[:] = 5
    shmem.shmem_finalize()
    assert (again == 5).all() and (part == other + 1).all()
    """
    run_pes(2, code).succeeded()


def test_views_alive_at_exit_are_no_crash(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    kept = shmem.shmem_numpy(shmem.shmem_malloc(4096), 4096, np.uint8, pe=1 - rank)
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    for pe in run_pes(2, code, env={"MORI_GLOBAL_LOG_LEVEL": "WARN"}).succeeded():
        assert pe.stderr == ""


def test_dropped_views_give_their_memory_back(run_pes: PeRunner) -> None:
    code = """
    import gc
    import numpy as np

    def mappings():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(maps.readlines())

    def cycle(name):
        join(name)
        view = shmem.shmem_numpy(shmem.shmem_malloc(4096), 4096, np.uint8)
        shmem.shmem_finalize()
        view[:] = 1

    cycle("warm-up")
    before = mappings()
    for number in range(5):
        cycle(f"cycle{number}")
    assert mappings() <= before, (before, mappings())
    """
    run_pes(2, code).succeeded()


def test_dlpack_into_numpy(run_pes: PeRunner) -> None:
    code = """
    import ctypes, gc
    import numpy as np
    join()
    ptr = shmem.shmem_malloc(4096)
    source = shmem.shmem_dlpack(ptr, (4, 8), "int32")
    assert source.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(source)
    assert (array.shape, array.dtype, array.ctypes.data) == ((4, 8), np.int32, ptr)
    ctypes.c_int32.from_address(ptr + 4).value = 77
    assert array[0, 1] == 77

    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    assert name(source.__dlpack__()) == b"dltensor"
    assert name(source.__dlpack__(max_version=(0, 8))) == b"dltensor"
    assert name(source.__dlpack__(max_version=(1, 1))) == b"dltensor_versioned"
    for arguments in ({"dl_device": (2, 0)}, {"copy": True}):
        try:
            source.__dlpack__(**arguments)
        except BufferError:
            continue
        raise AssertionError(arguments)

    del source
    shmem.shmem_finalize()
    gc.collect()
    assert array[0, 1] == 77
    """
    run_pes(1, code).succeeded()


@needs_torch
def test_torch_tensors_over_own_and_peer_memory(run_pes: PeRunner) -> None:
    code = """
    import torch
    join()
    ptr, other = shmem.shmem_malloc(1 << 16), 1 - rank
    mine = shmem.shmem_tensor(ptr, (16, 32), torch.bfloat16)
    assert (mine.data_ptr(), mine.dtype, tuple(mine.shape)) == (ptr, torch.bfloat16, (16, 32))
    assert mine.is_contiguous() and mine.device.type == "cpu"
    mine.fill_(rank + 0.5)
    shmem.shmem_barrier_all()
    theirs = shmem.shmem_tensor(ptr, (16, 32), torch.bfloat16, pe=other)
    assert theirs.data_ptr() == shmem.shmem_ptr_p2p(ptr, rank, other)
    assert torch.equal(theirs, torch.full((16, 32), other + 0.5, dtype=torch.bfloat16))
    shmem.shmem_barrier_all()
    theirs.add_(1)
    shmem.shmem_barrier_all()
    assert (mine == rank + 1.5).all()

    dtypes = [getattr(torch, name) for name in dir(torch)
              if isinstance(getattr(torch, name), torch.dtype)]
    usable = [d for d in dtypes if d.is_floating_point or d.is_complex or d in
              (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)]
    assert torch.float8_e4m3fn in usable and torch.complex64 in usable
    for dtype in usable:
        for shape in ((3, 5), (), 7, (0, 4)):
            tensor = shmem.shmem_tensor(ptr, shape, dtype)
            assert (tensor.dtype, tensor.shape) == (dtype, torch.empty(shape).shape)

    invalid = shmem.ErrorCode.INVALID_ARGUMENT
    expect_error(invalid, shmem.shmem_tensor, ptr + 1, 4, torch.bfloat16, says="multiple of 2")
    expect_error(invalid, shmem.shmem_tensor, ptr, 1 << 30, torch.bfloat16)
    expect_error(invalid, shmem.shmem_tensor, ptr, 4, torch.bfloat16, 9, says="9")

    via_dlpack = torch.from_dlpack(shmem.shmem_dlpack(ptr, (2, 2), "bfloat16", pe=other))
    assert via_dlpack.dtype == torch.bfloat16 and via_dlpack.data_ptr() == theirs.data_ptr()

    shmem.shmem_barrier_all()
    shmem.shmem_free(ptr)
    shmem.shmem_finalize()
    assert (theirs == other + 1.5).all()
    """
    run_pes(2, code).succeeded()


@needs_torch
def test_tensors_that_cannot_be(run_pes: PeRunner) -> None:
    code = """
    import torch
    join()
    ptr = shmem.shmem_malloc(4096)
    invalid = shmem.ErrorCode.INVALID_ARGUMENT
    for make, start in ((shmem.shmem_tensor, (ptr,)), (shmem.mori_shmem_create_tensor, ())):
        for dtype in ("float32", None, float, 4):
            expect_error(invalid, make, *start, 8, dtype, says=f"{make.__name__}: dtype is")
        for shape in (-1, 2.5, "4", (2, None), 2**63, (0, 2**63), (1,) * 65):
            expect_error(invalid, make, *start, shape, torch.uint8, says=f"{make.__name__}: shape")
    expect_error(invalid, shmem.shmem_tensor, ptr + 1, 8, torch.float32, says="multiple of 4")
    expect_error(invalid, shmem.mori_shmem_create_tensor_list_intra_node, 4, torch.int8, 0)
    expect_error(invalid, shmem.mori_shmem_create_tensor_list_intra_node, 4, torch.int8, 2,
                 says="mori_shmem_create_tensor_list_intra_node: num_ranks is 2")
    assert shmem.shmem_heap_stats().live_blocks == 1
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_dlpack_names_every_type_as_numpy_does(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    from mori.shmem.views import _DLPACK_TYPES
    join()
    ptr = shmem.shmem_malloc(4096)
    shmem.shmem_numpy(ptr, 4096, np.uint8)[:] = 1
    for name in _DLPACK_TYPES:
        array = shmem.shmem_dlpack(ptr, (3, 2), name)
        if name == "bfloat16":  # numpy has none
            continue
        for request in ({}, {"max_version": (1, 0)}):
            class Forwarding:
                def __dlpack__(self, **asked):
                    return array.__dlpack__(**request)
                def __dlpack_device__(self):
                    return array.__dlpack_device__()
            taken = np.from_dlpack(Forwarding())
            assert taken.dtype == np.dtype(name), (name, taken.dtype)
            assert taken.shape == (3, 2) and taken.ctypes.data == ptr
            assert (taken == shmem.shmem_numpy(ptr, (3, 2), name)).all()
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


@needs_torch
def test_dlpack_names_every_type_as_torch_does(run_pes: PeRunner) -> None:
    code = """
    import torch
    from mori.shmem.views import _DLPACK_TYPES
    join()
    ptr = shmem.shmem_malloc(4096)
    for name in _DLPACK_TYPES:
        assert torch.from_dlpack(shmem.shmem_dlpack(ptr, 4, name)).dtype == getattr(torch, name)
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_a_capsule_that_nobody_takes_keeps_nothing_mapped(run_pes: PeRunner) -> None:
    code = """
    import gc
    def mappings():
        with open("/proc/self/maps") as maps:
            return sum("mori" in line for line in maps if "memfd:" in line)
    join()
    ptr = shmem.shmem_malloc(4096)
    mapped = mappings()
    assert mapped > 0
    array = shmem.shmem_dlpack(ptr, 8, "float32")
    for version in (None, (1, 0)):
        capsule = array.__dlpack__(max_version=version)
        taken = capsule  # by nobody
    del array, capsule, taken
    gc.collect()
    shmem.shmem_finalize()
    assert mappings() == 0, open("/proc/self/maps").read()
    """
    run_pes(1, code).succeeded()


@needs_torch
def test_helpers_that_programs_for_upstream_use(run_pes: PeRunner) -> None:
    code = """
    import torch
    from mori.shmem import tensor_utils
    join()
    tensors = shmem.mori_shmem_create_tensor_list_intra_node((2, 3), torch.float32, world_size)
    assert len(tensors) == world_size
    mine = tensors[rank]
    assert mine.__symm_tensor__ is True
    mine.fill_(rank)
    shmem.shmem_barrier_all()
    assert [tensor[1, 2].item() for tensor in tensors] == list(range(world_size))
    assert tensor_utils.symm_mori_shmem_tensor(mine, rank) is mine
    assert (tensor_utils.symm_mori_shmem_tensor(mine, 1 - rank) == 1 - rank).all()
    empty = shmem.mori_shmem_create_tensor((0, 4), torch.int64)
    assert empty.shape == (0, 4) and empty.__symm_tensor__ is True
    shmem.mori_shmem_free_tensor(empty)
    buffer = tensor_utils.MoriShmemBuffer(mine.data_ptr(), 24, torch.float32)
    assert torch.from_dlpack(buffer).tolist() == [rank] * 6
    shmem.shmem_barrier_on_stream()
    shmem.shmem_barrier_on_stream(stream=None)
    ptr = mine.data_ptr()
    assert shmem.shmem_ptr_p2p(dest_ptr=ptr, my_pe=rank, dest_pe=rank) == ptr
    shmem.mori_shmem_free_tensor(mine)
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()
