"""What a user reads when a call fails: one report, which names the call that the program made."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pes import PES_DEADLINE_SECONDS, PeRunner, environment, needs_torch

# Calls that fail, each in another layer: bindings, arguments, the library, another call inside.
FAILING = [
    "shmem_malloc(0)",
    "shmem_malloc(-1)",
    "shmem_malloc_align(3, 64)",
    "shmem_ext_malloc_with_flags(64, 7)",
    "shmem_free(ptr + 8)",
    "shmem_ptr_p2p(ptr, 0, 5)",
    "shmem_ptr_p2p(ptr, 3, 0)",
    "shmem_ptr_p2p(2**70, 0, 0)",
    "shmem_module_init(64)",
    "shmem_library_init(64)",
    "shmem_putmem(ptr, b'1', None, 5)",
    "shmem_putmem(ptr, ptr, None, 0)",
    "shmem_getmem(bytearray(1), 64, None, 0)",
    "shmem_putmem_signal(ptr, b'1', None, 64, 1, 0, 0)",
    "shmem_putmem_signal(ptr, b'1', None, ptr, 1, 7, 0)",
    "shmem_p(ptr, 1, 5)",
    "shmem_p(ptr, 1, 0, 'int8')",
    "shmem_g(ptr, 5)",
    "shmem_atomic_fetch(ptr + 1, 0)",
    "shmem_atomic_set(ptr, 2**70, 0)",
    "shmem_atomic_swap(64, 1, 0)",
    "shmem_atomic_compare_swap(64, 1, 2, 0)",
    "shmem_atomic_add(ptr, 1, 5)",
    "shmem_atomic_fetch_add(ptr, 1, 5)",
    "shmem_atomic_inc(ptr, 5)",
    "shmem_atomic_fetch_inc(ptr, 5)",
    "shmem_atomic_and(ptr, 1, 5)",
    "shmem_atomic_fetch_xor(ptr, 1, 5)",
    "shmem_signal_fetch(64)",
    "shmem_signal_wait_until(64, '==', 0)",
    "shmem_test(ptr, '=>', 0)",
    "shmem_wait_until(ptr + 1, '==', 0)",
    "shmem_numpy(ptr, -1, 'u1')",
    "shmem_numpy(ptr, 8, 'u1', 5)",
    "shmem_numpy(64, 8, 'u1')",
    "shmem_dlpack(ptr, 8, 'float33')",
    "shmem_putmem_on_stream(ptr, ptr, 8, 5)",
    "shmem_barrier_on_stream('no stream')",
    "shmem_barrier_all_on_stream(64)",
    "shmem_reduce_on_stream(ptr, ptr, 1, 'int8')",
    "shmem_init_attr(7, 0, 1, b'')",
    "shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, b'')",
]
FAILING_WITHOUT_A_PE = [
    "shmem_finalize()",
    "shmem_mype()",
    "shmem_npes()",
    "shmem_num_qp_per_pe()",
    "shmem_device()",
    "shmem_heap_stats()",
    "shmem_barrier_all()",
    "shmem_quiet_on_stream()",
    "shmem_ptr_p2p(64, 0, 0)",
    "shmem_g(64, 0)",
    "shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, 2, 0, bytes(128))",
]
NAMES_THE_CALL = """
def raises(call):
    try:
        eval("shmem." + call)
    except shmem.ShmemError as error:
        name = call.partition("(")[0]
        assert str(error).startswith(name + ": "), (name, str(error))
        assert str(error).count("shmem_") - str(error).count("shmem_get_unique_id") <= 1, str(error)
    else:
        raise AssertionError(call)
"""


def test_an_error_names_the_call_and_is_told_once(run_pes: PeRunner) -> None:
    code = f"""
join()
ptr = shmem.shmem_malloc(4096)
for call in {FAILING!r}:
    raises(call)
shmem.shmem_finalize()
for call in {FAILING_WITHOUT_A_PE!r}:
    raises(call)
"""
    (pe,) = run_pes(1, NAMES_THE_CALL + code).succeeded()
    assert "error:" not in pe.stderr  # raised, so not logged too
    (pe,) = run_pes(1, NAMES_THE_CALL + code, env={"MORI_GLOBAL_LOG_LEVEL": "DEBUG"}).succeeded()
    assert "debug: shmem_malloc: an allocation of 0 bytes" in pe.stderr


@needs_torch
def test_an_error_of_a_call_inside_names_the_outer_one(run_pes: PeRunner) -> None:
    code = """
join()
import torch
raises("mori_shmem_create_tensor(2**40, torch.int8)")
raises("mori_shmem_peer_tensor(torch.zeros(2), 0)")
raises("symm_mori_shmem_tensor(torch.zeros(2), 5)")
raises("shmem_putmem(0, torch.zeros(2, device='meta'), None, 0)")
shmem.shmem_finalize()
"""
    run_pes(1, NAMES_THE_CALL + code).succeeded()


def test_registration_returns_a_status_whatever_the_numbers_are(run_pes: PeRunner) -> None:
    code = """
    import numpy as np
    calls = (shmem.shmem_buffer_register, shmem.shmem_buffer_deregister)
    join()
    for call in calls:
        for ptr, size in ((-1, 8), (2**70, 8), (4096, -1), (4096, 2**70), (0, 8), (-1, -1)):
            assert call(ptr, size) == shmem.ErrorCode.INVALID_ARGUMENT, (ptr, size)
    buffer = np.zeros(4)
    assert [call(buffer.ctypes.data, buffer.nbytes) for call in calls] == [0, 0]
    shmem.shmem_finalize()
    for call in calls:
        assert call(-1, 8) == shmem.ErrorCode.NOT_INITIALIZED
    """
    (pe,) = run_pes(1, code).succeeded()
    lines = [line.partition(" error: ")[2] for line in pe.stderr.splitlines() if "error" in line]
    assert len(lines) == 14  # nothing is raised, so each is logged
    assert lines[0] == "shmem_buffer_register: address is -1; it must be 0 to 18446744073709551615"
    assert lines[13].startswith("shmem_buffer_deregister: this thread has no PE")


def test_what_a_message_quotes_is_bounded_and_on_one_line(run_pes: PeRunner) -> None:
    code = """
    class Odd:
        def __repr__(self):
            return "odd\\n\\x1b[2J" + "x" * 10000
    class Worse:
        def __repr__(self):
            raise RuntimeError("no")
    join()
    ptr = shmem.shmem_malloc(4096)
    huge = 10**5000
    values = (Odd(), Worse(), "a\\nb\\xff\\udc80", huge, b"\\xff\\n" * 5000)
    calls = (
        lambda value: shmem.shmem_dlpack(ptr, 8, value),
        lambda value: shmem.shmem_dlpack(ptr, (value,), "int8"),
        lambda value: shmem.shmem_p(ptr, 1, 0, value),
        lambda value: shmem.shmem_test(ptr, value, 0),
        lambda value: shmem.shmem_putmem_signal(ptr, b"1", None, ptr, 1, value, 0),
        lambda value: shmem.shmem_reduce_on_stream(ptr, ptr, 1, "int32", value),
        lambda value: shmem.shmem_init_attr(value, 0, 1, b""),
    )
    numbers = (
        lambda value: shmem.shmem_malloc(value),
        lambda value: shmem.shmem_p(ptr, value, 0),
        lambda value: shmem.shmem_getmem(bytearray(1), ptr, None, value),
        lambda value: shmem.shmem_dlpack(ptr, value, "int8"),
    )
    tried = [(call, value) for call in calls for value in values]
    for call, value in tried + [(call, huge) for call in numbers]:
        try:
            call(value)
        except shmem.ShmemError as error:
            assert error.code is shmem.ErrorCode.INVALID_ARGUMENT
            assert str(error).isascii() and str(error).isprintable(), str(error)
            assert len(str(error)) < 500, str(error)
        else:
            raise AssertionError(call)
    shmem.shmem_finalize()
    """
    run_pes(1, code).succeeded()


SUB_INTERPRETERS = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
import sys
code = '''
import sys
sys.path = {path!r}
try:
    import mori
except ImportError as error:
    print("ImportError:", error, flush=True)
'''.format(path=sys.path)
before = {before}
interpreter = interpreters.create()
interpreters.run_string(interpreter, code)
import mori.shmem
print(mori.shmem.shmem_initialized())
"""


@pytest.mark.parametrize("before", ["None", "__import__('mori')"])
def test_a_sub_interpreter_cannot_import_and_says_so(before: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SUB_INTERPRETERS.replace("{before}", before)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PES_DEADLINE_SECONDS,
    )
    assert run.returncode == 0, run.stderr
    told, usable = run.stdout.splitlines()
    assert re.fullmatch(r"ImportError: .*sub-?interpreters?.*", told)
    assert usable == "False"  # the main interpreter is no worse for it
