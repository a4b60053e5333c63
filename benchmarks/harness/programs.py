"""Builds the programs, and knows how each is started."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"
PEER_PROGRAMS = ("latency", "bandwidth", "collectives", "startup")

# Everything that opens a socket stays on this machine.
OSHMEM_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "UCX_NET_DEVICES": "lo",
}


@dataclass(frozen=True)
class Run:
    """One start of one program."""

    library: str
    program: str
    arguments: tuple[str, ...] = ()
    pes: int = 2
    heap: str = "256M"
    limit_s: float = 180
    #: name of the figure that the wall time of the whole launch becomes, if any
    wall_metric: str = ""
    #: environment beside the usual
    extra: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        words = [value for _, value in self.extra]
        words += [self.library, self.program, *self.arguments]
        return f"{' '.join(words)}, {self.pes} PEs"


def build_release(build: Path, *arguments: str) -> None:
    """Builds this project for benchmarks; the arguments are of `cmake --build`."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", "-DMORI_BUILD_BENCHMARKS=ON"]
    configure += ["-DMORI_BUILD_TESTS=OFF", "-DMORI_BUILD_EXAMPLES=OFF"]
    configure += [f"-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES={ROOT}/cmake/MoriCcache.cmake"]
    _call(configure)
    _call(["cmake", "--build", str(build), *arguments])


@dataclass
class Programs:
    """Where the built programs are."""

    build: Path
    jobs: int = 2
    mori: Path = field(init=False)

    def __post_init__(self) -> None:
        self.mori = self.build / "tools" / "mori"

    def make(self) -> None:
        """Builds ours as a release, the peer's with its compiler wrapper, the machine's plainly."""
        build_release(self.build, "-j", str(self.jobs))
        flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra"]
        self._compile(["cc", *flags], "machine", "machine")
        if self.has_peer():
            for program in PEER_PROGRAMS:
                self._compile(["oshcc", *flags], program, "oshmem")

    @staticmethod
    def has_peer() -> bool:
        return shutil.which("oshcc") is not None and shutil.which("oshrun") is not None

    def _compile(self, compiler: list[str], program: str, library: str) -> None:
        target = self._peer_binary(library, program)
        target.parent.mkdir(parents=True, exist_ok=True)
        source = str(PEERS / f"{program}.c")
        _call([*compiler, f'-DLIBRARY="{library}"', source, "-o", str(target)])

    def _peer_binary(self, library: str, program: str) -> Path:
        return self.build / "peers" / f"{program}.{library}"

    def command(self, run: Run) -> list[str]:
        if run.library == "mori":
            program = run.program
            if "/" not in program:
                program = str(self.build / "benchmarks" / f"bench_{program}")
            start = [str(self.mori), "run", "--no-prefix", "-n", str(run.pes), "--", program]
            return [*start, *run.arguments]
        binary = run.program
        if "/" not in binary:
            binary = str(self._peer_binary(run.library, run.program))
        if run.library == "machine":
            return [binary, *run.arguments]
        start = ["oshrun", "-n", str(run.pes), "--bind-to", "none", "--oversubscribe"]
        # Debian's build ends in a crash with its default one-sided component.
        return [*start, "--mca", "osc", "^rdma", binary, *run.arguments]

    @staticmethod
    def environment(run: Run) -> dict[str, str]:
        environment = {name: v for name, v in os.environ.items() if not name.startswith("MORI_")}
        if "MORI_BENCH_PIN" in os.environ:
            environment["MORI_BENCH_PIN"] = os.environ["MORI_BENCH_PIN"]
        environment["MORI_SHMEM_HEAP_SIZE"] = run.heap
        environment["MORI_SOCKET_IFNAME"] = "lo"
        environment["MORI_SHMEM_BACKEND"] = "host"
        environment["MORI_GLOBAL_LOG_LEVEL"] = "WARN"
        environment["SHMEM_SYMMETRIC_SIZE"] = run.heap
        return environment | OSHMEM_ENVIRONMENT | dict(run.extra)


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def commit() -> str:
    """That of this tree."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def plan(quick: bool, has_peer: bool, tasks: list[str]) -> list[Run]:
    """Every run of one repeat, ours beside the peer and the machine."""
    groups = {
        "latency": _latency(quick),
        "bandwidth": _bandwidth(quick),
        "barrier": _barrier(quick),
        "allocation": _allocation(quick),
        "heaps": _heaps(quick),
        "start": _start(quick),
        "growth": _growth(quick),
    }
    runs = [run for task in tasks for run in groups[task]]
    return [run for run in runs if has_peer or run.library != "oshmem"]


TASKS = ("latency", "bandwidth", "barrier", "allocation", "heaps", "start", "growth")


def _short(quick: bool, milliseconds: float, batches: int) -> tuple[str, ...]:
    if quick:
        milliseconds, batches = milliseconds / 5, max(3, batches // 3)
    return ("--batch-ms", f"{milliseconds:g}", "--batches", str(batches))


def _latency(quick: bool) -> list[Run]:
    batches = _short(quick, 20, 11)
    round_trips = ("--round-trips", "500" if quick else "4000")
    signals = ("--batches", "9" if quick else "33")
    return [
        Run("mori", "latency", batches),
        Run("oshmem", "latency", (*batches, *round_trips)),
        Run("machine", "machine", ("memory", *batches)),
        Run("mori", "signal", (*signals, *round_trips)),
    ]


def _bandwidth(quick: bool) -> list[Run]:
    batches = _short(quick, 12, 7)
    sizes = ("--sizes", "4096", "65521", str(1 << 20)) if quick else ()
    most = ("--max-bytes", str(1 << 20)) if quick else ()
    return [
        Run("mori", "bandwidth", (*batches, *sizes), limit_s=400),
        Run("oshmem", "bandwidth", (*batches, *most), limit_s=400),
    ]


def _barrier(quick: bool) -> list[Run]:
    batches = _short(quick, 80, 7)
    runs = [Run("machine", "machine", ("barriers", *batches))]
    for pes in (2, 4, 8, 16, 64):
        heap = "256M" if pes == 2 else "32M"
        runs.append(Run("mori", "barrier", batches, pes=pes, heap=heap))
        if pes < 64 or not quick:
            runs.append(Run("oshmem", "collectives", batches, pes=pes, heap=heap))
    return runs


def _allocation(quick: bool) -> list[Run]:
    batches = _short(quick, 60, 7)
    live = ("0", "10000") if quick else ("0", "100", "10000", "100000")
    return [
        Run("mori", "allocation", (*batches, "--live", *live), heap="512M"),
        Run("oshmem", "collectives", (*batches, "--live", "10000"), heap="512M"),
    ]


def _heaps(quick: bool) -> list[Run]:
    batches = _short(quick, 60, 7)
    runs = []
    for mode in ("static", "vmm", "isolation"):
        extra = (("MORI_SHMEM_MODE", mode),)
        # Each block of isolation is a mapping for every PE, of which a process has 65,530.
        live = ("0", "1000") if mode == "isolation" else ("0", "1000", "100000")
        small = (*batches, "--sizes", "64", "--live", *live)
        runs.append(Run("mori", "allocation", small, heap="512M", extra=extra))
        for pes in (8, 64):
            few = (*batches, "--sizes", "64", "--live", "0")
            runs.append(Run("mori", "allocation", few, heap="64M", pes=pes, extra=extra))
    for mode, piece in (("vmm", 64 << 20), ("isolation", 1 << 30)):
        extra = (("MORI_SHMEM_MODE", mode),)
        for pes in (2, 8):
            arguments = ("--piece", str(piece))
            runs.append(Run("mori", "heap_growth", arguments, heap="4G", pes=pes, extra=extra))
        runs.append(Run("mori", "heap_growth", ("--touch",), heap="4G", extra=extra))
    return runs


def _start(quick: bool) -> list[Run]:
    runs = [Run("machine", "machine", ("launch", *_short(quick, 40, 7)))]
    for pes in (2, 16, 64):
        launch = {"pes": pes, "heap": "32M"}
        runs.append(Run("mori", "startup", wall_metric="launch_to_exit", **launch))
        runs.append(Run("oshmem", "startup", wall_metric="launch_to_exit", **launch))
        runs.append(Run("mori", "/bin/true", wall_metric="launch_alone", **launch))
        runs.append(Run("mori", "startup", ("--bare",), **launch))
    for library in ("mori", "oshmem"):
        runs.append(Run(library, "startup", ("--memory",), pes=64, heap="32M"))
    return runs


def _growth(quick: bool) -> list[Run]:
    batches = _short(quick, 80, 5)
    runs = [Run("machine", "machine", ("network", *batches))]
    runs.append(Run("mori", "rendezvous_cost", ("--most", "500" if quick else "4000"), pes=1))
    for pes in (4, 8, 32, 128, 256):
        runs.append(
            Run("mori", "startup", pes=pes, heap="32M", wall_metric="launch_to_exit", limit_s=300)
        )
        if pes in (32, 128, 256):
            runs.append(Run("mori", "barrier", batches, pes=pes, heap="32M"))
    return runs
