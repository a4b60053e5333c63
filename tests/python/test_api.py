"""Queries, symmetric memory, registration, peer addresses, barrier, shape of the package."""

from __future__ import annotations

import ast
import pathlib
import pickle
import re
import subprocess
import sys

from mori import _core, shmem
from pes import PES_DEADLINE_SECONDS, REPOSITORY, PeRunner, environment, needs_torch


def test_both_ways_to_import() -> None:
    code = """
import mori
from mori import shmem
assert mori.shmem is shmem and mori.__version__
assert sorted(set(shmem.__all__)) == sorted(shmem.__all__)
assert all(hasattr(shmem, name) for name in shmem.__all__)
import sys
assert not {"torch", "mpi4py", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


def test_public_names_are_documented() -> None:
    public = [getattr(shmem, name) for name in shmem.__all__ if name.startswith("shmem_")]
    assert len(public) > 40
    assert not [call.__name__ for call in public if not call.__doc__]


def test_package_says_that_it_is_typed() -> None:
    assert (pathlib.Path(shmem.__file__).parent.parent / "py.typed").exists()


def test_stub_declares_what_the_module_has() -> None:
    stub = ast.parse((REPOSITORY / "python/mori/_core.pyi").read_text())
    declared = set()
    for node in stub.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.add(node.target.id)
    # The stub's own names begin with an underscore.
    assert {name for name in declared if name[0] != "_"} == {
        name for name in dir(_core) if name[0] != "_"
    }


def test_flags_have_the_values_of_the_guide() -> None:
    assert shmem.MORI_SHMEM_INIT_WITH_MPI_COMM == 0
    assert shmem.MORI_SHMEM_INIT_WITH_UNIQUEID == 1


def _enumerators(enum_name: str) -> dict[str, int]:
    """Of a C++ enum in the public header, with Python's names."""
    header = (REPOSITORY / "include/mori/shmem/types.hpp").read_text()
    body = re.search(rf"enum class {enum_name} : int {{(.*?)}};", header, re.DOTALL)
    assert body, enum_name
    values = re.findall(r"\bk(\w+) = (\d+)", body.group(1))
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(): int(value) for name, value in values}


def test_enums_mirror_the_header() -> None:
    for enum in (shmem.ErrorCode, shmem.Cmp, shmem.SignalOp):
        assert {member.name: int(member) for member in enum} == _enumerators(enum.__name__)


def test_error_codes_have_names() -> None:
    for code in shmem.ErrorCode:
        assert _core.error_name(code).replace(" ", "_").upper().startswith(code.name)


def test_error_is_a_runtime_error_that_survives_pickling() -> None:
    error = shmem.ShmemError("PE 3 is gone", shmem.ErrorCode.PEER_LOST)
    assert isinstance(error, RuntimeError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code) == (shmem.ShmemError, str(error), error.code)


def test_unique_ids_have_128_bytes_and_differ() -> None:
    code = """
    ids = {shmem.shmem_get_unique_id() for _ in range(3)}
    assert len(ids) == 3 and {(type(i), len(i)) for i in ids} == {(bytes, 128)}
    """
    subprocess.run(
        [sys.executable, "-c", "from mori import shmem\nif True:" + code],
        env=environment(),
        check=True,
    )


def test_unique_id_may_be_any_bytes_like_object(run_pes: PeRunner) -> None:
    code = """
    for kind in (bytes, bytearray, memoryview):
        unique_id = kind(share(kind.__name__, shmem.shmem_get_unique_id))
        flag = shmem.MORI_SHMEM_INIT_WITH_UNIQUEID
        assert shmem.shmem_init_attr(flag, rank, world_size, unique_id) == 0
        assert shmem.shmem_finalize() == 0
    """
    run_pes(2, code).succeeded()


def test_queries(run_pes: PeRunner) -> None:
    code = """
    assert shmem.shmem_initialized() is False
    join()
    assert shmem.shmem_initialized() is True
    assert shmem.shmem_mype() == rank
    assert shmem.shmem_npes() == world_size
    assert shmem.shmem_num_qp_per_pe() == 4
    info = shmem.shmem_info()
    assert "MORI_NUM_QP_PER_PE" in info and "16 MiB" in info, info
    shmem.shmem_finalize()
    assert shmem.shmem_initialized() is False
    """
    run_pes(3, code, env={"MORI_NUM_QP_PER_PE": "4"}).succeeded()


def test_init_from_the_environment_without_a_launcher_is_one_pe(run_pes: PeRunner) -> None:
    code = """
    assert shmem.shmem_init() == 0
    assert (shmem.shmem_mype(), shmem.shmem_npes()) == (0, 1)
    assert shmem.shmem_init() == 0
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


@needs_torch
def test_init_from_the_environment_of_torchrun(run_pes: PeRunner) -> None:
    code = """
from mori import shmem
shmem.shmem_init()
assert shmem.shmem_npes() == 3
ptr = shmem.shmem_malloc(8)
shmem.shmem_p(ptr, 0, shmem.shmem_mype())
shmem.shmem_barrier_all()
shmem.shmem_atomic_add(ptr, 1 << shmem.shmem_mype(), 0)
shmem.shmem_barrier_all()
assert shmem.shmem_g(ptr, 0) == 0b111
shmem.shmem_finalize()
"""
    script = run_pes.script(code, support=False)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=3",
            script,
        ],
        env=environment(),
        cwd=script.parent,
        timeout=PES_DEADLINE_SECONDS,
        check=True,
    )


def test_init_again_after_finalize_with_another_size(run_pes: PeRunner) -> None:
    code = """
    join()
    shmem.shmem_malloc(4096)
    shmem.shmem_finalize()
    if rank < 2:
        unique_id = share("second", shmem.shmem_get_unique_id)
        shmem.shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, rank, 2, unique_id)
        assert shmem.shmem_npes() == 2
        assert shmem.shmem_heap_stats().live_blocks == 0
        shmem.shmem_barrier_all()
        shmem.shmem_finalize()
    """
    run_pes(3, code).succeeded()


def test_allocation(run_pes: PeRunner) -> None:
    code = """
    join()
    size_in_bytes = 3000
    before = shmem.shmem_heap_stats()
    assert before.total_bytes == 16 << 20 and before.live_blocks == 0

    ptr = shmem.shmem_malloc(size_in_bytes)
    aligned = [shmem.shmem_malloc_align(alignment=1 << k, size=size_in_bytes) for k in range(0, 13)]
    flagged = [shmem.shmem_ext_malloc_with_flags(size_in_bytes, flags) for flags in (0, 1, 3)]
    assert ptr % 4096 == 0, "2 KiB and more are page aligned"
    assert all(address % (1 << k) == 0 for k, address in enumerate(aligned))
    for pe in range(world_size):
        assert all(shmem.shmem_ptr_p2p(a, rank, pe) % (1 << k) == 0 for k, a in enumerate(aligned))
    blocks = [ptr, *aligned, *flagged]
    assert {type(block) for block in blocks} == {int} and len(set(blocks)) == len(blocks)

    during = shmem.shmem_heap_stats()
    assert during.live_blocks == len(blocks)
    assert during.used_bytes >= len(blocks) * size_in_bytes
    assert during.free_bytes == during.total_bytes - during.used_bytes
    for block in blocks:
        assert shmem.shmem_free(block) is None
    shmem.shmem_free(0)
    assert shmem.shmem_heap_stats() == before
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_same_offset_on_every_pe(run_pes: PeRunner) -> None:
    code = """
    join()
    blocks = [shmem.shmem_malloc(size) for size in (8, 100, 5000)]
    for block in blocks:
        shmem.shmem_p(block, rank + 100, rank)
    shmem.shmem_barrier_all()
    assert all(shmem.shmem_g(b, pe) == pe + 100 for b in blocks for pe in range(world_size))
    shmem.shmem_finalize()
    """
    run_pes(3, code).succeeded()


def test_registration_returns_a_status_code(run_pes: PeRunner) -> None:
    code = """
    join()
    import ctypes
    buffer = ctypes.create_string_buffer(1024 * 1024)
    address, size = ctypes.addressof(buffer), len(buffer)
    assert shmem.shmem_buffer_register(address, size) == 0
    assert shmem.shmem_buffer_register(address, size) == 0
    assert shmem.shmem_buffer_deregister(address, size) == 0
    assert shmem.shmem_buffer_deregister(address, size) == 0
    invalid = shmem.ErrorCode.INVALID_ARGUMENT
    assert shmem.shmem_buffer_deregister(address, size) == invalid
    assert shmem.shmem_buffer_register(0, size) == invalid
    assert shmem.shmem_buffer_register(address, 0) == invalid
    assert shmem.shmem_buffer_register(address, 2**64 - 1) == invalid
    shmem.shmem_finalize()
    assert shmem.shmem_buffer_register(address, size) == shmem.ErrorCode.NOT_INITIALIZED
    """
    run_pes(1, code).succeeded()


def test_peer_addresses(run_pes: PeRunner) -> None:
    code = """
    import ctypes
    join()
    ptr = shmem.shmem_malloc(64)
    assert shmem.shmem_ptr_p2p(ptr, rank, rank) == ptr
    other = 1 - rank
    remote_ptr = shmem.shmem_ptr_p2p(ptr + 8, rank, other)
    ctypes.c_uint64.from_address(remote_ptr).value = rank + 40
    shmem.shmem_barrier_all()
    assert ctypes.c_uint64.from_address(ptr + 8).value == other + 40
    assert shmem.shmem_ptr_p2p(id(other), rank, other) == 0, "no symmetric address"
    assert shmem.shmem_ptr_p2p(0, rank, other) == 0
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_barrier_orders_puts(run_pes: PeRunner) -> None:
    code = """
    join()
    ptr = shmem.shmem_malloc(8)
    for step in range(200):
        shmem.shmem_p(ptr, step * world_size + rank, (rank + 1) % world_size)
        assert shmem.shmem_barrier_all() is None
        assert shmem.shmem_g(ptr, rank) == step * world_size + (rank - 1) % world_size
        shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(3, code).succeeded()


def test_other_threads_run_while_a_barrier_blocks(run_pes: PeRunner) -> None:
    code = """
    import threading
    join()
    if rank == 0:
        waiter = threading.Thread(target=shmem.shmem_barrier_all)
        waiter.start()
        while not waiter.is_alive():
            pass
        (meeting_dir / "waiting").touch()
        waiter.join()
    else:
        wait_for(meeting_dir / "waiting")
        shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_pes_as_threads_of_one_process(run_pes: PeRunner) -> None:
    code = """
    import threading
    unique_id = shmem.shmem_get_unique_id()
    results = {}

    def pe(number, count=3):
        shmem.shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, number, count, unique_id)
        ptr = shmem.shmem_malloc(8)
        shmem.shmem_p(ptr, number, (number + 1) % count)
        shmem.shmem_barrier_all()
        results[number] = (shmem.shmem_mype(), shmem.shmem_g(ptr, number))
        shmem.shmem_barrier_all()
        shmem.shmem_finalize()

    threads = [threading.Thread(target=pe, args=(number,)) for number in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert results == {0: (0, 2), 1: (1, 0), 2: (2, 1)}, results
    """
    run_pes(1, code).succeeded()


def test_a_forked_child_has_no_pe_and_does_its_parent_no_harm(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    join()
    view = shmem.shmem_numpy(shmem.shmem_malloc(64), 8, np.uint64)
    child = os.fork()
    if child == 0:
        for call in (shmem.shmem_barrier_all, shmem.shmem_fence, shmem.shmem_quiet):
            expect_error(shmem.ErrorCode.NOT_INITIALIZED, call)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    shmem.shmem_barrier_all()
    view[:] = rank
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_late_pes_are_asked_for_while_a_barrier_waits(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    import threading, time
    join()
    shmem.shmem_barrier_all()
    assert shmem.shmem_late_pes() == []
    ptr = shmem.shmem_malloc(8)
    seen = shmem.shmem_numpy(ptr, 1, np.int64)
    seen[0] = 0
    shmem.shmem_barrier_all()
    if rank == 1:
        while seen[0] == 0:
            time.sleep(0.001)
        shmem.shmem_barrier_all()
    else:
        waiting = threading.Thread(target=shmem.shmem_barrier_all)
        waiting.start()
        while shmem.shmem_late_pes() != [1]:
            time.sleep(0.001)
        shmem.shmem_p(ptr, 1, 1)
        waiting.join()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_module_init_needs_a_gpu(run_pes: PeRunner) -> None:
    code = """
    join()
    expect_error(shmem.ErrorCode.UNSUPPORTED, shmem.shmem_module_init, 4096)
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


def test_a_successful_run_prints_one_line_for_the_world(run_pes: PeRunner) -> None:
    code = """
    join()
    shmem.shmem_free(shmem.shmem_malloc(1000))
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    for pe in run_pes(2, code).succeeded():
        assert pe.stdout == ""
        assert len(pe.stderr.splitlines()) == (1 if pe.rank == 0 else 0), pe.stderr
    for pe in run_pes(2, code, env={"MORI_GLOBAL_LOG_LEVEL": "WARN"}).succeeded():
        assert (pe.stdout, pe.stderr) == ("", "")
