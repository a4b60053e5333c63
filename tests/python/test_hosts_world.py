"""Worlds over several hosts: data, order and faults, between network namespaces."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from hosts_support import DEADLINE_SECONDS, HostRunner
from launcher_support import is_gone, lines_by_pe, numbers_in, wait_until
from pes import REPOSITORY, needs_torch
from pes import environment as pe_environment
from test_hosts_launchers import mpirun, needs_mpi, torchrun

VARIABLES = {
    **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    "MORI_SHMEM_HEAP_SIZE": "64M",
    "MORI_SHMEM_BACKEND": "host",
    "MORI_BOOTSTRAP_TIMEOUT": "60",
}

BEGIN = """
import ctypes, os, pathlib, sys
from mori import shmem
shmem.shmem_init()
rank, size = shmem.shmem_mype(), shmem.shmem_npes()
assert rank == int(os.environ["MORI_RANK"])
"""


def script(folder: pathlib.Path, code: str) -> list[str]:
    path = folder / "pe.py"
    path.write_text(BEGIN + code)
    return [sys.executable, str(path)]


def check_run(
    hosts: HostRunner,
    places: str,
    program: list[str],
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    done = hosts.run(places, *program, env={**VARIABLES, **(env or {})})
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done


# ---- data and order

OPERATIONS = """
def pattern(count, seed):
    return bytes((i * 7 + seed * 31) % 251 for i in range(256)) * (count // 256 + 1)

most = 4 << 20
data = shmem.shmem_malloc(most + 64)
for count in (1, 3, 8, 63, 4096, 65_537, 1 << 20, most):
    for offset in (0, 5):
        # To the next PE and the one after, from there by get.
        for step in (1, 2):
            peer, writer = (rank + step) % size, (rank - step) % size
            shmem.shmem_putmem(data + offset, pattern(count, rank)[:count], count, peer)
            shmem.shmem_barrier_all()
            assert ctypes.string_at(data + offset, count) == pattern(count, writer)[:count]
            back = bytearray(count)
            shmem.shmem_getmem(back, data + offset, count, peer)
            assert back == pattern(count, rank)[:count]
            shmem.shmem_barrier_all()

words = shmem.shmem_malloc(64)
ctypes.memset(words, 0, 64)
shmem.shmem_barrier_all()
for _ in range(100):
    for pe in range(size):
        shmem.shmem_atomic_add(words, 1, pe)
        shmem.shmem_atomic_fetch_add(words + 8, rank + 1, pe, "int32")
shmem.shmem_barrier_all()
assert ctypes.c_uint64.from_address(words).value == 100 * size
assert ctypes.c_int32.from_address(words + 8).value == 100 * size * (size + 1) // 2
assert shmem.shmem_g(words, (rank + 1) % size) == 100 * size

# Data comes before its signal.
signals = words + 16
for turn in range(1, 51):
    peer, writer = (rank + 1) % size, (rank - 1) % size
    shmem.shmem_putmem_signal(
        data, pattern(10_000, turn)[:10_000], 10_000, signals, turn, shmem.SignalOp.SET, peer
    )
    shmem.shmem_signal_wait_until(signals, "==", turn)
    assert ctypes.string_at(data, 10_000) == pattern(10_000, turn)[:10_000]
    shmem.shmem_barrier_all()
shmem.shmem_free(words)
shmem.shmem_free(data)
shmem.shmem_finalize()
print("right")
"""


@pytest.mark.parametrize(
    ("count", "places", "family", "mode"),
    [
        (2, "a:2,b:2", 4, "static"),
        (2, "a:1,b:1", 6, "static"),
        (3, "a:2,b:1,c:2", 4, "vmm"),
        (3, "c:1,a:1,b:1", 4, "isolation"),
    ],
)
def test_every_operation_reaches_pes_of_other_hosts(
    make_hosts: Callable[..., HostRunner],
    tmp_path: pathlib.Path,
    count: int,
    places: str,
    family: int,
    mode: str,
) -> None:
    hosts = make_hosts(count, family)
    done = check_run(hosts, places, script(tmp_path, OPERATIONS), {"MORI_SHMEM_MODE": mode})
    lines = lines_by_pe(done.stdout)
    assert all(text == [b"right"] for text in lines.values()) and len(lines) >= count


@pytest.mark.parametrize("call", ["Put", "PutNbi", "PutSignal", "Get", "GetNbi"])
def test_every_size_arrives_at_every_alignment(two: HostRunner, call: str) -> None:
    """From a byte to 64 MiB."""
    two.run_on_nodes([f"NodesSizes.{call}BringsAllOfThemAtEveryAlignment"])


def test_every_operation_of_the_cpp_tests_works_over_hosts(two: HostRunner) -> None:
    tests = [
        "EveryPePutsToAndGetsFromEveryOther",
        "WhatIsPutNbiIsThereAfterAQuietAndASignal",
        "ASourceIsFreeAfterAQuiet",
        "ASignalComesBehindItsData",
        "AtomicsOfAllPesCountTogether",
        "AFenceKeepsTheOrder",
        "WhatLeavesTheHeapIsRefusedBeforeItIsSent",
    ]
    two.run_on_nodes([f"Placements/Nodes.{test}/Halves" for test in tests])


def test_eight_hosts_are_one_world(
    make_hosts: Callable[..., HostRunner], tmp_path: pathlib.Path
) -> None:
    code = """
word = shmem.shmem_malloc(8)
ctypes.memset(word, 0, 8)
for _ in range(10):
    shmem.shmem_barrier_all()
    for pe in range(size):
        shmem.shmem_atomic_inc(word, pe)
shmem.shmem_barrier_all()
assert ctypes.c_uint64.from_address(word).value == 10 * size
shmem.shmem_finalize()
print("right")
"""
    hosts = make_hosts(8)
    done = check_run(hosts, "a,b,c,d,e,f,g,h", script(tmp_path, code))
    assert lines_by_pe(done.stdout) == {pe: [b"right"] for pe in range(8)}


def test_worlds_over_hosts_follow_each_other(two: HostRunner, tmp_path: pathlib.Path) -> None:
    code = """
for turn in range(1, 4):
    word = shmem.shmem_malloc(8)
    shmem.shmem_p(word, 10 * turn + rank, (rank + 1) % size)
    shmem.shmem_barrier_all()
    assert ctypes.c_uint64.from_address(word).value == 10 * turn + (rank - 1) % size
    shmem.shmem_finalize()
    assert not shmem.shmem_initialized()
    if turn < 3:
        shmem.shmem_init()
        assert (shmem.shmem_mype(), shmem.shmem_npes()) == (rank, size)
print("right")
"""
    done = check_run(two, "a:2,b:1", script(tmp_path, code))
    assert lines_by_pe(done.stdout) == {pe: [b"right"] for pe in range(3)}


def test_a_world_that_lost_a_pe_leaves_no_id_for_another(
    two: HostRunner, tmp_path: pathlib.Path
) -> None:
    code = """
shmem.shmem_barrier_all()
if rank == 1:
    os._exit(0)
try:
    while True:
        shmem.shmem_barrier_all()
except shmem.ShmemError:
    pass
for call in (shmem.shmem_finalize, shmem.shmem_init):
    try:
        call()
    except shmem.ShmemError as error:
        print(error)
"""
    done = check_run(two, "a,b", script(tmp_path, code))
    says = (
        b"shmem_init: MORI_UNIQUE_ID has served the first initialization, this is number 2, and the"
        b" world before left no id for it"
    )
    assert lines_by_pe(done.stdout)[0][1].startswith(says)


def test_hosts_that_have_one_node_name_are_told_on_every_pe(
    two: HostRunner, tmp_path: pathlib.Path
) -> None:
    program = script(tmp_path, "")
    done = two.run("a:2,b:2", *program, options=["-x", "MORI_NODE_ID=same"], env=VARIABLES)
    assert done.returncode == 1
    # One of them may hear of it by another that gave up before.
    named = (
        rb"shmem_init: (rank \d is lost: it gave up: )?PE 0 \(host a, process \d+\) and PE 2 "
        rb"\(host b, process \d+\) have one name of their node, \"same\", but they are on "
        rb"different machines"
    )
    assert len(re.findall(named, done.stderr)) == 4, done.stderr.decode()


def run_differing(
    two: HostRunner, folder: pathlib.Path, settings: dict[str, dict[str, str]]
) -> list[str]:
    """Init of two PEs a host, with variables of each host. @return what the four of them say."""
    path = folder / "differs.py"
    path.write_text(f"""
import os, sys
os.environ.update({settings!r}[os.uname().nodename])
from mori import shmem
try:
    shmem.shmem_init()
except shmem.ShmemError as error:
    print(f"{{error.code.name}}: {{error}}")
    assert not shmem.shmem_initialized()
else:
    sys.exit("it was initialized")
""")
    done = two.run("a:2,b:2", sys.executable, str(path), env=VARIABLES)
    assert done.returncode == 0, done.stderr.decode()
    lines = lines_by_pe(done.stdout)
    assert sorted(lines) == [0, 1, 2, 3] and not two.left()
    return [lines[pe][0].decode() for pe in range(4)]


DIFFERS = "must be the same on all PEs: PE 0 has {}, PE 2 has {}"
NO_ADDRESS = "={} matches no network interface that is up and has an address; there are: lo, eth0"
P2P = {"MORI_SHMEM_TRANSPORT": "p2p"}
NO_SUCH = {"MORI_OFI_PROVIDER": "nosuch"}
# What a and b have, and what each PE says of it.
WRONG = {
    "a provider that is not there": (NO_SUCH, NO_SUCH, "has no such provider with messages"),
    "another provider": ({}, NO_SUCH, "MORI_OFI_PROVIDER " + DIFFERS.format("none", "nosuch")),
    "an interface without addresses": (
        {},
        {"MORI_SOCKET_IFNAME": "bare0"},
        NO_ADDRESS.format("bare0"),
    ),
    "no such interface": ({}, {"MORI_SOCKET_IFNAME": "no0"}, NO_ADDRESS.format("no0")),
    "another heap": (
        {},
        {"MORI_SHMEM_HEAP_SIZE": "32M"},
        "MORI_SHMEM_HEAP_SIZE " + DIFFERS.format("64 MiB", "32 MiB"),
    ),
    "another mode": (
        {},
        {"MORI_SHMEM_MODE": "vmm"},
        "MORI_SHMEM_MODE " + DIFFERS.format("static", "vmm"),
    ),
    "another transport": ({}, P2P, "MORI_SHMEM_TRANSPORT " + DIFFERS.format("auto", "p2p")),
    "no network": (P2P, P2P, "MORI_SHMEM_TRANSPORT=p2p allows no network, and not all PEs are on"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_hosts_have_wrong_is_told_on_every_pe(
    two: HostRunner, tmp_path: pathlib.Path, case: str
) -> None:
    on_a, on_b, says = WRONG[case]
    two.all[1].run("ip", "link", "add", "bare0", "type", "veth", "peer", "bare1", check=True)
    two.all[1].run("ip", "link", "set", "bare0", "up", check=True)
    for text in run_differing(two, tmp_path, {"a": on_a, "b": on_b}):
        assert says in text


def test_the_demo_gives_the_same_weights_on_two_hosts_as_on_one(
    two: HostRunner, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "demo.py"
    path.write_text(f"""
import hashlib, sys
sys.path.insert(0, {str(REPOSITORY / "examples")!r})
import digits_training as demo
demo.EPOCHS = 20
train = demo.train_on_all_pes

def shown(*arguments):
    weights = train(*arguments)
    print(f"weights {{hashlib.sha256(weights.tobytes()).hexdigest()}}", flush=True)
    return weights

demo.train_on_all_pes = shown
demo.main()
""")

    def weights(done: subprocess.CompletedProcess[bytes]) -> list[bytes]:
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        assert b"to the last bit" in done.stdout
        return re.findall(rb"weights ([0-9a-f]{64})", done.stdout)

    here = weights(two.mori.run(4, sys.executable, str(path), env=VARIABLES))
    on_hosts = weights(two.run("a:2,b:2", sys.executable, str(path), env=VARIABLES))
    assert len(here) == 4 and len({*here, *on_hosts}) == 1 and len(on_hosts) == 4


# ---- other launchers

RING = """
word = shmem.shmem_malloc(8)
shmem.shmem_p(word, rank + 1, (rank + 1) % size)
shmem.shmem_barrier_all()
assert ctypes.c_uint64.from_address(word).value == (rank - 1) % size + 1
sys.stdout.write(f"rank {rank} of {size} is right\\n")
shmem.shmem_barrier_all()
shmem.shmem_finalize()
"""


@needs_mpi
def test_ranks_of_mpirun_are_one_world(two: HostRunner, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rank.py"
    path.write_text(BEGIN.replace("MORI_RANK", "OMPI_COMM_WORLD_RANK") + RING)
    shown = mpirun(two, sys.executable, str(path), before=(two.mori.path, "meet"))
    assert sorted(shown.splitlines()) == [f"rank {rank} of 4 is right" for rank in range(4)]


@needs_torch
def test_ranks_of_torchrun_are_one_world(two: HostRunner, tmp_path: pathlib.Path) -> None:
    begin = """
import ctypes, sys
import torch.distributed
from mori import shmem
torch.distributed.init_process_group("gloo")
group = torch.distributed.group.WORLD
torch._C._distributed_c10d._register_process_group("default", group)
shmem.shmem_torch_process_group_init("default")
rank, size = shmem.shmem_mype(), shmem.shmem_npes()
"""
    ends = torchrun(two, tmp_path, begin + RING + "torch.distributed.destroy_process_group()\n")
    for rank, done in enumerate(ends):
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout == f"rank {rank} of 2 is right\n"


# ---- faults

# Every PE leaves a mark once all of them are there, then meets the others again and again, until
# PE 0 finds that it is enough.
MEET = """
import signal
enough = shmem.shmem_malloc(8)
ctypes.memset(enough, 0, 8)
shmem.shmem_barrier_all()
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
try:
    while ctypes.c_uint64.from_address(enough).value == 0:
        shmem.shmem_barrier_all()
        if rank == 0 and pathlib.Path(sys.argv[1], "enough").exists():
            for pe in range(size):
                shmem.shmem_p(enough, 1, pe)
        shmem.shmem_barrier_all()
    shmem.shmem_finalize()
except shmem.ShmemError as error:
    print(f"{error.code.name}: {error}", flush=True)
    while True:
        signal.pause()
print("enough")
"""


class Meeting:
    """PEs 0 and 1 on host a, 2 and 3 on b, 4 on c, which meet until they cannot."""

    def __init__(self, hosts: HostRunner, folder: pathlib.Path, variables: dict[str, str]) -> None:
        marks = folder / "marks"
        marks.mkdir()
        self.hosts = hosts
        self.enough = marks / "enough"
        program = [*script(folder, MEET), str(marks)]
        self.run = subprocess.Popen(
            [hosts.mori.path, *hosts.arguments("a:2,b:2,c:1", program, ["--grace", "0.1"])],
            env=pe_environment({**VARIABLES, "MORI_SOCKET_IFNAME": None, **variables}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes = numbers_in(marks, 5)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        if self.run.poll() is None:
            self.run.kill()
        self.run.communicate()

    def check_enough(self) -> None:
        """All end as they should once it is enough."""
        self.enough.touch()
        out, err = self.run.communicate(timeout=DEADLINE_SECONDS)
        assert lines_by_pe(out) == {pe: [b"enough"] for pe in range(5)}, err.decode()
        assert self.run.returncode == 0

    def first_on(self, host: int) -> int:
        there = set(self.hosts.all[host].processes())
        return min(there.intersection(self.processes))

    def what_pes_say(self, count: int) -> dict[int, str]:
        """The first line of so many PEs."""
        said: dict[int, str] = {}
        while len(said) < count:
            (pe, lines), *_ = lines_by_pe(self.run.stdout.readline()).items()
            said[pe] = lines[0].decode()
        return said


@pytest.fixture
def meet(make_hosts: Callable[..., HostRunner], tmp_path: pathlib.Path) -> Callable[..., Meeting]:
    return lambda **variables: Meeting(make_hosts(3), tmp_path, variables)


def test_a_killed_pe_is_named_on_all_hosts(meet: Callable[..., Meeting]) -> None:
    with meet() as meeting:
        os.kill(meeting.first_on(1), signal.SIGKILL)
        out, err = meeting.run.communicate(timeout=DEADLINE_SECONDS)
    assert meeting.run.returncode == 137
    named = r"PEER_LOST: shmem_barrier_all: PE [23] \(host b, process \d+\) is lost"
    for pe, lines in lines_by_pe(out).items():
        assert re.match(named, lines[0].decode()), f"PE {pe}: {lines}"
    assert re.search(r"mori run: PE [23] on host b failed first: killed by SIGKILL", err.decode())


def test_a_pulled_cable_is_late_pes_by_name(meet: Callable[..., Meeting]) -> None:
    with meet(MORI_SHMEM_TIMEOUT="3") as meeting:
        meeting.hosts.all[1].set_link("down")
        said = meeting.what_pes_say(5)
        for pe in (0, 1, 4):
            assert re.search(r"PE [23] \(host b, process \d+\)", said[pe]), said
        for pe in (2, 3):
            assert re.match("TIMEOUT|PEER_LOST", said[pe]), said


def test_a_cable_that_stays_unplugged_is_lost_hosts(meet: Callable[..., Meeting]) -> None:
    """Without any time limit: by the silence of a host."""
    with meet() as meeting:
        meeting.hosts.all[1].set_link("down")
        said = meeting.what_pes_say(5)
        for pe, hosts in ((0, "b"), (1, "b"), (2, "ac"), (3, "ac"), (4, "b")):
            named = rf"PEER_LOST: shmem_barrier_all: PE \d \(host [{hosts}], .* has not answered"
            assert re.match(named, said[pe]), said


def test_a_cable_that_is_plugged_in_again_is_no_fault(meet: Callable[..., Meeting]) -> None:
    with meet() as meeting:
        for state in ("down", "up"):
            meeting.hosts.all[1].set_link(state)
        meeting.check_enough()


def test_a_paused_host_is_late_pes_by_name(meet: Callable[..., Meeting]) -> None:
    with meet(MORI_SHMEM_TIMEOUT="3") as meeting:
        meeting.hosts.all[1].pause()
        said = meeting.what_pes_say(3)
        assert sorted(said) == [0, 1, 4]
        # One of them may have come to the last barrier before it was stopped. Who gives up is lost
        # to those that still wait, and tells them for whom.
        late = r"PE [23] \(host b, .* did not come within"
        gave_up = rf"PE [014] \(host [ac], .* is lost: it gave up: {late}"
        for text in said.values():
            assert re.match(
                rf"TIMEOUT: shmem_barrier_all: {late}|PEER_LOST: shmem_barrier_all: {gave_up}", text
            ), said
        assert any(text.startswith("TIMEOUT") for text in said.values()), said
        meeting.hosts.all[1].resume()


def test_a_host_that_goes_on_is_waited_for(meet: Callable[..., Meeting]) -> None:
    with meet() as meeting:
        meeting.hosts.all[1].pause()
        wait_until(
            lambda: re.search(rb"waiting for PE [23] \(host b", meeting.run.stderr.readline()),
            "the others say whom they wait for",
        )
        meeting.hosts.all[1].resume()
        meeting.check_enough()


def test_a_host_that_vanishes_is_told_and_ends_the_run(meet: Callable[..., Meeting]) -> None:
    with meet() as meeting:
        meeting.hosts.all[1].vanish()
        _, err = meeting.run.communicate(timeout=DEADLINE_SECONDS)
    assert meeting.run.returncode != 0
    assert "host b" in err.decode()
    for process in meeting.processes:
        wait_until(lambda process=process: is_gone(process), "no PE is left")
