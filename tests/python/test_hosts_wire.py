"""Worlds over a wire that delays, loses and reorders packets: all is as ever, but late."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

import pytest
from hosts_support import HostRunner, Wire
from launcher_support import lines_by_pe
from test_hosts_world import VARIABLES, check_run, script

REORDERS = Wire(delay=0.0005, reorder=0.1, seed=3)
ALL_AT_ONCE = Wire(delay=0.001, loss=0.01, reorder=0.05, seed=4)


def check_wire(hosts: HostRunner, wire: Wire) -> None:
    """It did what it is for."""
    counts = hosts.all[0].wire_counts()
    assert counts.carried > 0
    assert (counts.lost > 0, counts.overtaken > 0) == (wire.loss > 0, wire.reorder > 0), counts


# ---- the tests in C++, whose PEs go to the networks of these hosts by the names of their nodes


@pytest.mark.parametrize(
    ("wire", "tests"),
    [
        (Wire(delay=0.002), ["ASignalComesBehindItsData", "AFenceKeepsTheOrder"]),
        (
            Wire(delay=0.0005, loss=0.02, seed=2),
            ["EveryPePutsToAndGetsFromEveryOther", "WhatIsPutNbiIsThereAfterAQuietAndASignal"],
        ),
        (REORDERS, ["ASignalComesBehindItsData", "AFenceKeepsTheOrder"]),
        (
            ALL_AT_ONCE,
            [
                "EveryPePutsToAndGetsFromEveryOther",
                "WhatIsPutNbiIsThereAfterAQuietAndASignal",
                "ASignalComesBehindItsData",
                "AtomicsOfAllPesCountTogether",
                "ADisagreementNamesBothSides",
            ],
        ),
    ],
    ids=["late", "loses", "reorders", "all"],
)
def test_nodes_keep_data_order_and_counts(
    make_hosts: Callable[..., HostRunner], wire: Wire, tests: list[str]
) -> None:
    hosts = make_hosts(2, wire=wire)
    hosts.run_on_nodes([f"Placements/Nodes.{test}/OneEach" for test in tests])
    check_wire(hosts, wire)


def test_large_puts_leave_their_source_alone_after_a_quiet(
    make_hosts: Callable[..., HostRunner],
) -> None:
    hosts = make_hosts(2, wire=REORDERS)
    hosts.run_on_nodes(["Placements/Nodes.ASourceIsFreeAfterAQuiet/OneEach"])
    check_wire(hosts, REORDERS)


def test_unequal_nodes_of_three_hosts(make_hosts: Callable[..., HostRunner]) -> None:
    hosts = make_hosts(3, wire=ALL_AT_ONCE)
    tests = ("EveryPePutsToAndGetsFromEveryOther", "ASignalComesBehindItsData")
    hosts.run_on_nodes([f"Placements/Nodes.{test}/Unequal" for test in tests])
    check_wire(hosts, ALL_AT_ONCE)


def test_collectives_and_litmus_tests(make_hosts: Callable[..., HostRunner]) -> None:
    hosts = make_hosts(2, wire=ALL_AT_ONCE)
    tests = [
        "Pes/Collectives.DifferentSizesAreAnErrorOnEveryPeAndChangeNothing/Processes",
        "Pes/Operations.AtomicsOfAllTypesAddUpExactly/Processes2",
    ]
    hosts.run_on_nodes(tests, MORI_TEST_NODES="two")
    check_wire(hosts, ALL_AT_ONCE)


# ---- mori run over hosts

# What PE r puts to the next one is read by the one after that, once a quiet has said that it is
# there: a third host, which the network tells nothing of the order of the other two.
MEETINGS = """
def pattern(turn, count):
    return bytes((turn * 37 + i) % 251 for i in range(count))

most = 20_000
data = shmem.shmem_malloc(most)
words = shmem.shmem_malloc(64)
flag, count, ticket, beside = words, words + 8, words + 16, words + 24
ctypes.memset(words, 0, 64)
shmem.shmem_barrier_all()
for turn in range(1, 16):
    size_now = (8, 3000, most)[turn % 3]
    there, reader = (rank + 1) % size, (rank + 2) % size
    shmem.shmem_putmem(data, pattern(turn + rank, size_now), size_now, there)
    shmem.shmem_p(beside, turn, there)
    shmem.shmem_quiet()
    shmem.shmem_p(flag, turn, reader)
    shmem.shmem_wait_until(flag, "==", turn)
    from_pe, holder = (rank - 2) % size, (rank - 1) % size
    back = bytearray(size_now)
    shmem.shmem_getmem(back, data, size_now, holder)
    assert back == pattern(turn + from_pe, size_now)
    assert shmem.shmem_g(beside, holder) == turn
    shmem.shmem_barrier_all()

# Words whole and in the order of their fence, seen by who polls.
for turn in range(1, 101):
    shmem.shmem_p(beside, turn * 0x100000001, (rank + 1) % size)
    shmem.shmem_fence()
    shmem.shmem_p(flag, 1000 + turn, (rank + 1) % size)
shmem.shmem_quiet()
while (now := ctypes.c_uint64.from_address(flag).value) != 1100:
    low = ctypes.c_uint64.from_address(beside).value
    assert low % 0x100000001 in (0, 15), hex(low)
    assert now < 1000 or low // 0x100000001 >= now - 1000, (now, hex(low))
shmem.shmem_barrier_all()

tickets = [shmem.shmem_atomic_fetch_inc(ticket, 0) for _ in range(40)]
for pe in range(size):
    for _ in range(40):
        shmem.shmem_atomic_add(count, rank + 1, pe)
assert tickets == sorted(set(tickets))
shmem.shmem_barrier_all()
assert ctypes.c_uint64.from_address(count).value == 40 * size * (size + 1) // 2
assert shmem.shmem_g(ticket, 0) == 40 * size
for turn in range(1, 21):
    shmem.shmem_p(flag, turn, (rank + 1) % size)
    shmem.shmem_barrier_all()
    assert ctypes.c_uint64.from_address(flag).value == turn
    shmem.shmem_barrier_all()
shmem.shmem_finalize()
print("right")
"""


@pytest.mark.parametrize(
    ("places", "family", "mode", "seed"),
    [("a,b,c", 4, "static", 5), ("a:2,b:1,c:1", 6, "vmm", 6), ("a,b,c", 4, "isolation", 7)],
)
def test_three_hosts_start_work_and_end(
    make_hosts: Callable[..., HostRunner],
    tmp_path: pathlib.Path,
    places: str,
    family: int,
    mode: str,
    seed: int,
) -> None:
    wire = Wire(delay=0.001, loss=0.02, reorder=0.05, seed=seed)
    hosts = make_hosts(3, family, wire)
    done = check_run(hosts, places, script(tmp_path, MEETINGS), {"MORI_SHMEM_MODE": mode})
    lines = lines_by_pe(done.stdout)
    assert all(text == [b"right"] for text in lines.values()) and len(lines) >= 3
    check_wire(hosts, wire)


def test_a_wire_of_long_delay_starts_a_world(
    make_hosts: Callable[..., HostRunner], tmp_path: pathlib.Path
) -> None:
    """As between continents; every step of a start takes its round trips."""
    wire = Wire(delay=0.08)
    hosts = make_hosts(2, wire=wire)
    code = """
word = shmem.shmem_malloc(8)
shmem.shmem_p(word, 10 + rank, 1 - rank)
shmem.shmem_barrier_all()
assert ctypes.c_uint64.from_address(word).value == 11 - rank
shmem.shmem_finalize()
print("right")
"""
    done = check_run(hosts, "a,b", script(tmp_path, code))
    assert lines_by_pe(done.stdout) == {0: [b"right"], 1: [b"right"]}


def test_a_lost_pe_is_named_over_a_bad_wire(
    make_hosts: Callable[..., HostRunner], tmp_path: pathlib.Path
) -> None:
    code = """
import signal
shmem.shmem_barrier_all()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        shmem.shmem_barrier_all()
except shmem.ShmemError as error:
    print(f"{error.code.name}: {error}", flush=True)
    while True:
        signal.pause()
"""
    hosts = make_hosts(3, wire=ALL_AT_ONCE)
    done = hosts.run("a,b,c", *script(tmp_path, code), options=["--grace", "0.1"], env=VARIABLES)
    assert done.returncode == 137
    assert re.search(rb"mori run: PE 1 on host b failed first: killed by SIGKILL", done.stderr)
    for lines in lines_by_pe(done.stdout).values():
        named = rb"PEER_LOST: shmem_barrier_all: PE 1 \(host b, process \d+\) is lost"
        assert re.match(named, lines[0]), lines
