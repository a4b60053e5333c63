"""One row for each wrong input: its error, what the sentence names, and nothing is lost."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from mori.shmem import ErrorCode
from pes import BASE_ENVIRONMENT, PeRunner, environment

# Runs a row's `call` on one PE and prints what it raised, as the last line of standard output.
DRIVER = """
import json

{setup}

def outcome():
    try:
        {call}
    except shmem.ShmemError as error:
        return error.code.name, str(error)
    return "OK", ""

print(json.dumps(outcome()))

# Nothing is lost: the world works as before, or a new one can be made.
if not shmem.shmem_initialized():
    os.environ.update({good_environment})
    join("afterwards")
ptr = shmem.shmem_malloc(1000)
shmem.shmem_p(ptr, rank + 1, (rank + 1) % world_size)
shmem.shmem_barrier_all()
assert shmem.shmem_g(ptr, rank) == (rank - 1) % world_size + 1
shmem.shmem_free(ptr)
assert shmem.shmem_heap_stats().live_blocks == {live_blocks}
shmem.shmem_finalize()
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A wrong input. `call` runs on every PE after `setup`; all of `says` is in the sentence."""

    name: str
    code: ErrorCode
    call: str
    says: Sequence[str] = ()
    setup: str = "join()"
    pes: int = 1
    env: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    env_of_rank: Mapping[int, Mapping[str, str | None]] = dataclasses.field(default_factory=dict)
    code_of_rank: Mapping[int, ErrorCode] = dataclasses.field(default_factory=dict)
    live_blocks: int = 0


def bad_variable(name: str, value: str | None, *says: str, title: str = "", **more) -> Row:
    """A value that init refuses with a sentence that names the variable."""
    return Row(
        title or f"{name}={value}",
        more.pop("code", ErrorCode.INVALID_CONFIG),
        "join()",
        [name, *says],
        setup="",
        env={name: value},
        **more,
    )


HEAP = "MORI_SHMEM_HEAP_SIZE"
EXAMPLE = f"export {HEAP}=6G"
FLAG = "shmem.MORI_SHMEM_INIT_WITH_UNIQUEID"
DAMAGE = """
def with_byte(position, value):
    damaged = bytearray(shmem.shmem_get_unique_id())
    damaged[position] = value(damaged[position])
    return bytes(damaged)
"""
UNIQUE_ID = 'unique_id = share("id", shmem.shmem_get_unique_id)'
INVALID = ErrorCode.INVALID_ARGUMENT
MISMATCH = ErrorCode.MISMATCH

CONFIGURATION_ROWS = [
    bad_variable(HEAP, None, EXAMPLE, "static", title="heap size unset"),
    bad_variable(HEAP, "lots", "lots", EXAMPLE, title="heap size malformed"),
    bad_variable(HEAP, "6X", "6X", EXAMPLE, title="heap size with an unknown unit"),
    bad_variable(HEAP, "0", "zero", EXAMPLE, title="heap size zero"),
    bad_variable(HEAP, "-1G", "negative", EXAMPLE, title="heap size negative"),
    bad_variable(HEAP, "1.5G", "fraction", EXAMPLE, title="heap size fractional"),
    bad_variable(HEAP, "99999999999G", "64 bits", EXAMPLE, title="heap size overflowing"),
    bad_variable(HEAP, "1024T", "1 PiB", "memory", title="heap size larger than memory"),
    bad_variable("MORI_SHMEM_MODE", "dynamic", "dynamic", "static, vmm, isolation"),
    bad_variable("MORI_SHMEM_VMM_CHUNK_SIZE", "some", "some", "64M"),
    bad_variable("MORI_SHMEM_VMM_CHUNK_SIZE", "0", "64M"),
    bad_variable("MORI_SHMEM_VMM_CHUNK_SIZE", "4096T", "4 PiB", "memory"),
    bad_variable("MORI_SHMEM_HEAP_TYPE", "fast", "fast", "normal, uncached"),
    bad_variable("MORI_GLOBAL_LOG_LEVEL", "LOUD", "LOUD", "TRACE, DEBUG, INFO, WARN, ERROR"),
    bad_variable("MORI_SOCKET_IFNAME", "nosuch0", "nosuch0", "lo"),
    Row(
        "bad variable on one PE only",
        ErrorCode.PEER_LOST,
        "join()",
        [HEAP, "6X"],
        setup="",
        pes=3,
        env_of_rank={1: {HEAP: "6X"}},
        code_of_rank={1: ErrorCode.INVALID_CONFIG},
    ),
    Row(
        "heap sizes that differ",
        MISMATCH,
        "join()",
        [HEAP, "16 MiB", "8 MiB", "PE 1"],
        setup="",
        pes=2,
        env_of_rank={1: {HEAP: "8M"}},
    ),
]

INIT_ROWS = [
    Row(
        "id too short",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, 0, 1, bytes(64))",
        ["64", "128"],
        "",
    ),
    Row("id too long", INVALID, f"shmem.shmem_init_attr({FLAG}, 0, 1, bytes(129))", ["129"], ""),
    Row("id of zeros", INVALID, f"shmem.shmem_init_attr({FLAG}, 0, 1, bytes(128))", ["id"], ""),
    Row(
        "id of another version",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, 0, 1, with_byte(4, lambda version: version + 1))",
        ["version 2"],
        DAMAGE,
    ),
    Row(
        "id damaged",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, 0, 1, with_byte(30, lambda byte: byte ^ 1))",
        ["damaged"],
        DAMAGE,
    ),
    Row(
        "id already used",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, rank, 2, unique_id)",
        ["already", "new one"],
        f"{UNIQUE_ID}\nshmem.shmem_init_attr({FLAG}, rank, 2, unique_id)\nshmem.shmem_finalize()",
        pes=2,
    ),
    Row(
        "unknown flag",
        INVALID,
        "shmem.shmem_init_attr(7, 0, 1, unique_id)",
        ["7", "MORI_SHMEM_INIT_WITH_UNIQUEID"],
        UNIQUE_ID,
    ),
    Row(
        "rank above the world",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, 2, 2, unique_id)",
        ["rank 2", "0 to 1"],
        UNIQUE_ID,
    ),
    Row(
        "rank negative",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, -1, 2, unique_id)",
        ["rank -1"],
        UNIQUE_ID,
    ),
    Row(
        "world of none",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, 0, 0, unique_id)",
        ["0"],
        UNIQUE_ID,
    ),
    Row(
        "rank beyond an int",
        INVALID,
        f"shmem.shmem_init_attr({FLAG}, 2**40, 2, unique_id)",
        [str(2**40)],
        UNIQUE_ID,
    ),
    Row(
        "rank used twice",
        MISMATCH,
        f"shmem.shmem_init_attr({FLAG}, 0, 2, unique_id)",
        ["rank 0", "twice"],
        UNIQUE_ID,
        pes=2,
    ),
    Row(
        "sizes that differ",
        MISMATCH,
        f"shmem.shmem_init_attr({FLAG}, rank, 2 + rank, unique_id)",
        ["says that there are", "rank 0", "rank 1"],
        UNIQUE_ID,
        pes=2,
    ),
    Row(
        "init twice, with another id",
        ErrorCode.ALREADY_INITIALIZED,
        f"shmem.shmem_init_attr({FLAG}, 0, 1, shmem.shmem_get_unique_id())",
        ["already initialized"],
    ),
    Row(
        "init twice, with another size",
        ErrorCode.ALREADY_INITIALIZED,
        f"shmem.shmem_init_attr({FLAG}, 0, 2, unique_id)",
        ["already initialized"],
        f"{UNIQUE_ID}\nshmem.shmem_init_attr({FLAG}, 0, 1, unique_id)",
    ),
    Row(
        "init twice, alike, is fine",
        ErrorCode.OK,
        f"shmem.shmem_init_attr({FLAG}, rank, 2, unique_id)",
        (),
        f"{UNIQUE_ID}\nshmem.shmem_init_attr({FLAG}, rank, 2, unique_id)",
        pes=2,
    ),
    Row(
        "finalize twice",
        ErrorCode.NOT_INITIALIZED,
        "shmem.shmem_finalize()",
        ["finalize"],
        "join()\nshmem.shmem_finalize()",
        pes=2,
    ),
]

ONE_BLOCK = "join()\nptr = shmem.shmem_malloc(4096)"
MEMORY_ROWS = [
    Row("alignment 3", INVALID, "shmem.shmem_malloc_align(3, 64)", ["3", "power of two"], pes=2),
    Row("alignment 0", INVALID, "shmem.shmem_malloc_align(0, 64)", ["0", "power of two"]),
    Row("alignment negative", INVALID, "shmem.shmem_malloc_align(-8, 64)", ["-8"]),
    Row("allocation of 0", INVALID, "shmem.shmem_malloc(0)", ["0 bytes"], pes=2),
    Row("allocation negative", INVALID, "shmem.shmem_malloc(-64)", ["-64"]),
    Row("allocation beyond 64 bits", INVALID, "shmem.shmem_malloc(2**64)", [str(2**64)]),
    Row("unknown flags", INVALID, "shmem.shmem_ext_malloc_with_flags(64, 8)", ["0x8"], pes=2),
    Row(
        "allocation of more than is free",
        ErrorCode.OUT_OF_MEMORY,
        "shmem.shmem_malloc(12 << 20)",
        ["12 MiB", "16 MiB", "8 MiB", "largest free block", HEAP],
        "join()\nshmem.shmem_malloc(8 << 20)",
        pes=2,
        live_blocks=1,
    ),
    Row(
        "allocations of different sizes",
        MISMATCH,
        "shmem.shmem_malloc(64 + rank)",
        ["64 bytes", "65 bytes", "PE 0", "PE 1"],
        pes=2,
    ),
    Row("free of null is fine", ErrorCode.OK, "shmem.shmem_free(0)", (), pes=2),
    Row(
        "free of an unknown address",
        INVALID,
        "shmem.shmem_free(4096)",
        ["0x1000"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "free of an interior pointer",
        INVALID,
        "shmem.shmem_free(ptr + 8)",
        ["8 bytes inside"],
        ONE_BLOCK,
        pes=2,
        live_blocks=1,
    ),
    Row(
        "free twice",
        INVALID,
        "shmem.shmem_free(ptr)",
        ["freed already"],
        f"{ONE_BLOCK}\nshmem.shmem_free(ptr)",
        pes=2,
    ),
    Row(
        "free of different blocks",
        MISMATCH,
        "shmem.shmem_free((ptr, second)[rank])",
        ["PE 0", "PE 1"],
        f"{ONE_BLOCK}\nsecond = shmem.shmem_malloc(64)",
        pes=2,
        live_blocks=2,
    ),
]

PEER_ROWS = [
    Row(
        f"PE {pe} out of range: {call}",
        INVALID,
        call.format(pe=pe),
        [str(pe)],
        ONE_BLOCK,
        pes=2,
        live_blocks=1,
    )
    for pe in (2, -1)
    for call in (
        "shmem.shmem_ptr_p2p(ptr, rank, {pe})",
        "shmem.shmem_ptr_p2p(ptr, {pe}, rank)",
        "shmem.shmem_putmem(ptr, b'1234', None, {pe})",
        "shmem.shmem_atomic_fetch_add(ptr, 1, {pe})",
        "shmem.shmem_numpy(ptr, 8, 'u1', pe={pe})",
    )
] + [
    Row(
        "PE beyond an int",
        INVALID,
        "shmem.shmem_p(ptr, 1, 2**33)",
        [str(2**33)],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "put that leaves the heap",
        INVALID,
        "shmem.shmem_putmem(ptr, bytes(17 << 20), None, 0)",
        ["heap"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "put to no symmetric address",
        INVALID,
        "shmem.shmem_putmem(8, b'1234', None, 0)",
        ["0x8", "symmetric"],
    ),
    Row(
        "put of more than the buffer has",
        INVALID,
        "shmem.shmem_putmem(ptr, b'1234', 5, 0)",
        ["5 bytes", "4"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "put of an address without a size",
        INVALID,
        "shmem.shmem_putmem(ptr, ptr, None, 0)",
        ["size"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "word that is not aligned",
        INVALID,
        "shmem.shmem_atomic_inc(ptr + 4, 0)",
        ["aligned"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "wait on no symmetric address",
        INVALID,
        "shmem.shmem_wait_until(64, '==', 0)",
        ["0x40", "symmetric"],
    ),
    Row(
        "value that does not fit its type",
        INVALID,
        "shmem.shmem_atomic_set(ptr, -1, 0, dtype='uint32')",
        ["-1", "4294967295"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "type that has no atomics",
        INVALID,
        "shmem.shmem_atomic_inc(ptr, 0, dtype='float32')",
        ["float32", "int32, uint32, int64, uint64"],
        ONE_BLOCK,
        live_blocks=1,
    ),
    Row(
        "unknown comparison",
        INVALID,
        "shmem.shmem_test(ptr, '=>', 0)",
        ["'=>'", "=="],
        ONE_BLOCK,
        live_blocks=1,
    ),
]

CALLS_THAT_NEED_A_PE = [
    "shmem.shmem_finalize()",
    "shmem.shmem_mype()",
    "shmem.shmem_npes()",
    "shmem.shmem_num_qp_per_pe()",
    "shmem.shmem_malloc(64)",
    "shmem.shmem_malloc_align(64, 64)",
    "shmem.shmem_ext_malloc_with_flags(64, 0)",
    "shmem.shmem_free(64)",
    "shmem.shmem_heap_stats()",
    "shmem.shmem_ptr_p2p(64, 0, 0)",
    "shmem.shmem_barrier_all()",
    "shmem.shmem_module_init(64)",
    "shmem.shmem_putmem(64, b'1', None, 0)",
    "shmem.shmem_getmem(bytearray(1), 64, None, 0)",
    "shmem.shmem_putmem_signal(64, b'1', None, 128, 1, 0, 0)",
    "shmem.shmem_p(64, 1, 0)",
    "shmem.shmem_g(64, 0)",
    "shmem.shmem_atomic_fetch(64, 0)",
    "shmem.shmem_atomic_add(64, 1, 0)",
    "shmem.shmem_signal_fetch(64)",
    "shmem.shmem_signal_wait_until(64, '==', 0)",
    "shmem.shmem_wait_until(64, '==', 0)",
    "shmem.shmem_test(64, '==', 0)",
    "shmem.shmem_numpy(64, 1, 'u1')",
    "shmem.shmem_dlpack(64, 1, 'uint8')",
]

ROWS = [*CONFIGURATION_ROWS, *INIT_ROWS, *MEMORY_ROWS, *PEER_ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_wrong_input(run_pes: PeRunner, row: Row) -> None:
    changed = [*row.env, *(name for env in row.env_of_rank.values() for name in env)]
    driver = DRIVER.format(
        setup=row.setup,
        call=row.call,
        live_blocks=row.live_blocks,
        good_environment={name: BASE_ENVIRONMENT.get(name, "") for name in changed},
    )
    pes = run_pes(row.pes, driver, env=row.env, env_of_rank=row.env_of_rank).succeeded()
    for pe in pes:
        name, sentence = json.loads(pe.stdout)
        assert name == row.code_of_rank.get(pe.rank, row.code).name, str(pe)
        for part in row.says:
            assert part in sentence, f"{part!r} is not in {sentence!r}"
        if name != "OK":
            assert _errors_logged(pe.stderr) <= 1, pe.stderr


def _errors_logged(stderr: str) -> int:
    return len(re.findall(r"^\[mori\].*\berror: ", stderr, re.MULTILINE))


@pytest.mark.parametrize("when", ["before init", "after finalize"])
def test_calls_without_a_pe(run_pes: PeRunner, when: str) -> None:
    code = """
    if when == "after finalize":
        join()
        shmem.shmem_finalize()
    for call in calls:
        expect_error(shmem.ErrorCode.NOT_INITIALIZED, eval, call)
    not_initialized = shmem.ErrorCode.NOT_INITIALIZED
    assert shmem.shmem_buffer_register(64, 64) == not_initialized
    assert shmem.shmem_buffer_deregister(64, 64) == not_initialized
    assert "0." in shmem.shmem_info()
    """
    names = f"when, calls = {when!r}, {CALLS_THAT_NEED_A_PE!r}\nif True:"
    (pe,) = run_pes(1, names + code).succeeded()
    assert "shmem_device" not in pe.stderr  # nobody called it


def test_init_by_eight_threads_at_once(run_pes: PeRunner) -> None:
    code = """
    import threading
    unique_id = share("id", shmem.shmem_get_unique_id)
    start, results = threading.Barrier(8), []

    def init():
        start.wait()
        results.append(shmem.shmem_init_attr(1, rank, world_size, unique_id))

    threads = [threading.Thread(target=init) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert results == [0] * 8
    assert (shmem.shmem_mype(), shmem.shmem_npes()) == (rank, world_size)
    shmem.shmem_barrier_all()
    shmem.shmem_finalize()
    """
    run_pes(2, code).succeeded()


def test_exit_without_finalize_is_silent_and_ends_with_0(run_pes: PeRunner) -> None:
    code = """
    join()
    shmem.shmem_malloc(4096)
    shmem.shmem_barrier_all()
    """
    for pe in run_pes(2, code, env={"MORI_GLOBAL_LOG_LEVEL": "WARN"}).succeeded():
        assert (pe.stdout, pe.stderr) == ("", "")


def test_a_barrier_with_a_pe_that_left_names_it(run_pes: PeRunner) -> None:
    code = """
    import sys
    join()
    if rank == 1:
        sys.exit(0)
    expect_error(shmem.ErrorCode.PEER_LOST, shmem.shmem_barrier_all, says="PE 1")
    expect_error(shmem.ErrorCode.PEER_LOST, shmem.shmem_finalize, says="PE 1")
    assert not shmem.shmem_initialized()
    """
    run_pes(3, code).succeeded()


def test_a_wait_for_a_pe_that_left_names_it(run_pes: PeRunner) -> None:
    code = """
    join()
    ptr = shmem.shmem_malloc(8)
    shmem.shmem_p(ptr, 0, rank)
    shmem.shmem_barrier_all()
    if rank == 0:
        wait = shmem.shmem_wait_until
        expect_error(shmem.ErrorCode.PEER_LOST, wait, ptr, "==", 1, says="PE 1")
    """
    run_pes(2, code).succeeded()


def test_unknown_variable_gets_one_warning_with_the_nearest_name(run_pes: PeRunner) -> None:
    code = """
    join()
    shmem.shmem_finalize()
    join("again")
    shmem.shmem_finalize()
    """
    (pe,) = run_pes(1, code, env={"MORI_SHMEM_HEAPSIZE": "1G"}).succeeded()
    warnings = [line for line in pe.stderr.splitlines() if "MORI_SHMEM_HEAPSIZE" in line]
    assert len(warnings) == 1 and f"{HEAP}?" in warnings[0], pe.stderr


def _may_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    probe = ["unshare", "--map-root-user", "--net", "ip", "link", "set", "lo", "up"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may_unshare(), reason="no right to make a network namespace")
def test_host_with_ipv6_only(run_pes: PeRunner) -> None:
    script = run_pes.script("join()\nshmem.shmem_barrier_all()\nshmem.shmem_finalize()\n")
    namespace = """
    set -e
    ip link set lo up
    ip address delete 127.0.0.1/8 dev lo
    PE_RANK=0 "$@" & first=$!
    PE_RANK=1 "$@" & second=$!
    wait $first
    wait $second
    """
    unshare = ["unshare", "--map-root-user", "--net", "sh", "-c", namespace, "sh"]
    subprocess.run(
        [*unshare, sys.executable, str(script)],
        env=environment({"PE_COUNT": "2", "PE_MEETING_DIR": str(script.parent)}),
        check=True,
    )
