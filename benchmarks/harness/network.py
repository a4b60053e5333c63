"""Programs between hosts that are network namespaces: how they are built, started and reported."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import machine
from .execute import Failure
from .figures import Figures, Series, parse, short
from .programs import ROOT, build_release
from .targets import paired_ratio

sys.path.append(str(ROOT / "tests" / "python"))
from hosts_support import Host

SOURCES = ROOT / "benchmarks" / "peers"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
PORT = 7000
UCX = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
OURS_ENVIRONMENT = {
    "MORI_SHMEM_BACKEND": "host",
    "MORI_SHMEM_HEAP_SIZE": "64M",
    "MORI_SOCKET_IFNAME": "eth0",
    "MORI_GLOBAL_LOG_LEVEL": "WARN",
}
OSHMEM_ENVIRONMENT = UCX | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_oob_tcp_if_include": "eth0",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "SHMEM_SYMMETRIC_SIZE": "64M",
}


@dataclass(frozen=True)
class Run:
    """One start of one library's program, a process on each of so many hosts."""

    library: str
    hosts: int
    arguments: tuple[str, ...]
    limit_s: float = 240

    def __str__(self) -> str:
        return f"{self.library} {' '.join(self.arguments)}, {self.hosts} hosts"


class Network:
    """The hosts, and the programs that run between them."""

    def __init__(self, build: Path, hosts: tuple[Host, ...], agent: Path, provider: str) -> None:
        self.build = build
        self.hosts = hosts
        self.agent = agent
        self.provider = provider
        self.missing: dict[str, str] = {"sandia": "no package of Debian has it"}

    def make(self, builds_ours: bool) -> None:
        """Builds ours as a release, and the others with what is installed."""
        if builds_ours:
            build_release(self.build, "--target", "bench_network", "mori")
        self._compile("libfabric", ["cc"], "libfabric.c", ["-lfabric"])
        self._compile("ucx", ["cc"], "ucx.c", ["-lucp", "-lucs"])
        self._compile("oshmem", ["oshcc"], "network.c", [])

    def _compile(self, library: str, compiler: list[str], source: str, links: list[str]) -> None:
        target = self._program(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        name = f'-DLIBRARY="{library}"'
        command = [*compiler, *FLAGS, name, str(SOURCES / source), "-o", str(target), *links]
        if shutil.which(compiler[0]) is None:
            self.missing[library] = f"{compiler[0]} is not installed"
            return
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            error = next((line for line in done.stderr.splitlines() if "error" in line), "")
            self.missing[library] = f"not built: {error}"

    def _program(self, library: str) -> Path:
        if library == "mori":
            return self.build / "benchmarks" / "bench_network"
        return self.build / "peers" / f"network.{library}"

    def has(self, library: str) -> bool:
        return library not in self.missing

    def _commands(self, run: Run) -> list[list[str]]:
        program = str(self._program(run.library))
        hosts = self.hosts[: run.hosts]
        names = ",".join(host.name for host in hosts)
        if run.library == "mori":
            start = [str(self.build / "tools" / "mori"), "run", "--hosts", names]
            start += ["--launch-agent", str(self.agent), "--no-prefix", "--"]
            return [[*start, program, *run.arguments]]
        if run.library == "oshmem":
            # Debian's build ends in a crash with its default one-sided component.
            start = ["oshrun", "--host", names, "-np", str(run.hosts), "--mca", "osc", "^rdma"]
            start += ["--bind-to", "none"]
            for name in OSHMEM_ENVIRONMENT:
                start += [] if name.startswith("OMPI_") else ["-x", name]
            return [hosts[0].command(*start, program, *run.arguments)]
        meeting = ["--size", str(run.hosts), "--address", hosts[0].address, "--port", str(PORT)]
        return [
            host.command(
                *(program, "--rank", str(rank), "--own", host.address),
                *("--provider", self.provider, *meeting, *run.arguments),
            )
            for rank, host in enumerate(hosts)
        ]

    def _environment(self, run: Run) -> dict[str, str]:
        kept = {name: v for name, v in os.environ.items() if not name.startswith("MORI_")}
        if "MORI_BENCH_PIN" in os.environ:
            kept["MORI_BENCH_PIN"] = os.environ["MORI_BENCH_PIN"]
        if run.library == "mori":
            return kept | OURS_ENVIRONMENT | {"MORI_OFI_PROVIDER": self.provider}
        if run.library == "oshmem":
            agent = {"OMPI_MCA_plm_rsh_agent": str(self.agent)}
            return kept | OSHMEM_ENVIRONMENT | agent
        return kept | UCX

    def run(self, run: Run, figures: Figures) -> None:
        """One start. Adds what it prints to `figures`."""
        with contextlib.ExitStack() as files:
            outputs, processes = [], []
            for command in self._commands(run):
                outputs.append(files.enter_context(tempfile.TemporaryFile()))
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=outputs[-1],
                        stderr=subprocess.STDOUT,
                        env=self._environment(run),
                        start_new_session=True,
                    )
                )
            end = time.monotonic() + run.limit_s
            status: object = 0
            for process in processes:
                try:
                    status = process.wait(max(0.0, end - time.monotonic())) or status
                except subprocess.TimeoutExpired:
                    status = f"no end within {run.limit_s:g} s"
            for host in self.hosts:
                host.signal(signal.SIGKILL)
            for process in processes:
                process.kill()
                process.wait()
            text = ""
            for output in outputs:
                output.seek(0)
                text += output.read().decode(errors="replace")
        if status != 0 or "BAD " in text or "FIG " not in text:
            lines = [line for line in text.splitlines() if line.strip() and "FIG " not in line]
            raise Failure(f"{run}: status {status}: {' | '.join(lines)[:500]}")
        for key, value, best in parse(text):
            figures.add(key, value, best)


def plan(quick: bool, network: Network) -> list[Run]:
    """Every run of one round."""
    batches = ("--batches", "3", "--batch-ms", "20") if quick else ()
    runs = [
        Run("mori", 2, batches),
        Run("libfabric", 2, batches),
        Run("libfabric", 2, (*batches, "--spins", "1")),
        Run("oshmem", 2, batches),
        Run("ucx", 2, batches),
    ]
    for hosts in (4, 8):
        runs += [Run(library, hosts, batches) for library in ("mori", "libfabric", "oshmem")]
    return [run for run in runs if network.has(run.library)]


# ---- what is made of the figures


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    id: str
    name: str
    unit: str
    ours: Series | None
    bare: Series | None
    spinning: Series | None
    oshmem: Series | None
    more_is_better: bool
    goal: str = ""
    is_reached: bool | None = None

    @property
    def over_bare(self) -> float | None:
        return paired_ratio(self.ours, self.bare) if self.ours and self.bare else None

    @property
    def over_oshmem(self) -> float | None:
        return paired_ratio(self.ours, self.oshmem) if self.ours and self.oshmem else None

    @property
    def is_ahead(self) -> bool | None:
        ratio = self.over_oshmem
        return None if ratio is None else (ratio >= 1) == self.more_is_better


# Metric, bytes, variant of ours and of OpenSHMEM, name, unit, and what it is to be beside the bare.
OPERATIONS = [
    ("net_put_bandwidth", 65536, "-", "put, 64 KiB", "GB/s", 0.95),
    ("net_put_bandwidth", 1 << 20, "-", "put, 1 MiB", "GB/s", 0.95),
    ("net_get_bandwidth", 65536, "-", "get, 64 KiB", "GB/s", 0.95),
    ("net_get_bandwidth", 1 << 20, "-", "get, 1 MiB", "GB/s", 0.95),
    ("net_put_quiet", 8, "-", "put 8 B + quiet", "µs", 1.15),
    ("net_get", 8, "-", "get 8 B", "µs", None),
    ("net_fetch_add", 8, "-", "fetch-add", "µs", None),
    ("net_put_rate", 8, "blocking", "puts of 8 B, apart, until quiet", "M/s", 0.9),
    ("net_put_rate", 8, "gathered", "puts of 8 B, side by side, until quiet", "M/s", 3),
    ("net_one_way", 8, "-", "word and its wait, one way", "µs", None),
]


def _operation(figures: Figures, row: tuple) -> Row:
    metric, size, variant, name, unit, goal = row
    ours = figures.find("mori", metric, bytes=size, variant=variant)
    bare = figures.find("libfabric", metric, bytes=size, variant="-")
    more = unit != "µs"
    reached = None
    if goal and ours and bare:
        ratio = paired_ratio(ours, bare)
        reached = ratio >= goal if more else ratio <= goal
    return Row(
        f"{metric}_{size}_{variant}".rstrip("_-"),
        name,
        unit,
        ours,
        bare,
        figures.find("libfabric", metric, bytes=size, variant="spinning"),
        figures.find("oshmem", metric, bytes=size, variant=variant),
        more,
        f"{'≥' if more else '≤'} {goal:g} x" if goal else "",
        reached,
    )


def _barrier(figures: Figures, hosts: int) -> Row:
    """Beside as many one-way latencies of bare libfabric as its rounds are."""
    ours = figures.find("mori", "net_barrier", pes=hosts)
    rounds = math.log2(hosts)
    one_way = [
        series.median
        for variant in ("-", "spinning")
        if (series := figures.find("libfabric", "net_one_way", variant=variant))
    ]
    limit = 1.3 * rounds * min(one_way) if one_way else None
    return Row(
        f"net_barrier_{hosts}",
        f"barrier, {hosts} hosts",
        "µs",
        ours,
        figures.find("libfabric", "net_barrier", pes=hosts, variant="-"),
        figures.find("libfabric", "net_barrier", pes=hosts, variant="spinning"),
        figures.find("oshmem", "net_barrier", pes=hosts),
        False,
        f"≤ {short(limit)} µs: 1.3 x {rounds:g} one-way" if limit else "",
        ours.median <= limit if ours and limit else None,
    )


def rows(figures: Figures) -> list[Row]:
    table = [_operation(figures, row) for row in OPERATIONS]
    return table + [_barrier(figures, hosts) for hosts in (2, 4, 8)]


HEADERS = (
    "figure",
    "ours",
    "libfabric",
    "libfabric, target spins",
    "oshmem",
    "ours/libfabric",
    "goal",
    "reached",
    "ours/oshmem",
    "ahead",
)


def cells(row: Row) -> list[str]:
    def said(value: bool | None) -> str:
        return {True: "yes", False: "no", None: "-"}[value]

    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{short(value)} x"

    values = [row.ours, row.bare, row.spinning, row.oshmem]
    return [
        f"{row.name}, {row.unit}",
        *("-" if series is None else str(series) for series in values),
        ratio(row.over_bare),
        row.goal or "-",
        said(row.is_reached),
        ratio(row.over_oshmem),
        said(row.is_ahead),
    ]


UCX_HEADERS = ("bare, both ends spin", "libfabric", "UCX", "UCX/libfabric")
UCX_ROWS = [
    ("net_put_bandwidth", 65536, "put, 64 KiB, GB/s"),
    ("net_put_bandwidth", 1 << 20, "put, 1 MiB, GB/s"),
    ("net_get_bandwidth", 65536, "get, 64 KiB, GB/s"),
    ("net_get_bandwidth", 1 << 20, "get, 1 MiB, GB/s"),
    ("net_put_quiet", 8, "put 8 B + flush, µs"),
    ("net_get", 8, "get 8 B, µs"),
    ("net_fetch_add", 8, "fetch-add, µs"),
    ("net_put_rate", 8, "puts of 8 B, M/s"),
    ("net_one_way", 8, "put that is polled for, one way, µs"),
    ("net_message_one_way", 8, "message of 8 B, one way, µs"),
]


def ucx_cells(figures: Figures) -> list[list[str]]:
    lines = []
    for metric, size, name in UCX_ROWS:
        both = [
            figures.find(library, metric, bytes=size, variant="spinning")
            for library in ("libfabric", "ucx")
        ]
        if None not in both:
            lines.append([name, *map(str, both), f"{short(paired_ratio(both[1], both[0]))} x"])
    return lines


def _markdown(headers: tuple[str, ...], lines: list[list[str]]) -> str:
    text = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    return "\n".join([*text, *(f"| {' | '.join(line)} |" for line in lines)])


def write_page(results: dict, figures: Figures, folder: Path, name: str, reasons: dict) -> None:
    facts = results["machine"]
    table = rows(figures)
    quick = " This was a quick run: for a look, not for comparison." if results["quick"] else ""
    busy = max(results["busy"], default=0)
    text = [
        "# Results between hosts",
        "",
        "```",
        results["command"],
        "```",
        "",
        f"{results['date']}, commit {results['commit']}. rounds: {results['repeats']}; median",
        f"(least-most) of the rounds.{quick}",
        f"Others used {100 * busy:.0f} % of the CPUs at most when a program was started.",
        f"All figures: [{name}.json]({name}.json). How: [benchmarks](../benchmarks.md#hosts).",
        "",
        f"- {facts['cpu']}, {facts['cpus']} CPUs; {facts['system']}, Linux {facts['kernel']}",
        f"- hosts are network namespaces of one machine, joined by veth and a bridge; provider"
        f" `{results['provider']}`",
        f"- {facts['peer'] or 'no Open MPI'} over UCX and TCP",
    ]
    missing = results["missing"].items()
    text += [f"- not measured: {library}: {why}" for library, why in missing]
    text += ["", _markdown(HEADERS, [cells(row) for row in table]), ""]
    text += ["Ratios are medians of those within a round. The target of ours and of `libfabric` is",
             "asleep while it is written to; that of `oshmem` spins.", ""]  # fmt: skip
    short_of = [row for row in table if False in (row.is_reached, row.is_ahead)]
    if short_of:
        text += ["## What limits the figures that are behind", ""]
        text += [f"- **{row.name}**: {reasons.get(row.id, 'not analysed yet')}" for row in short_of]
        text.append("")
    if lines := ucx_cells(figures):
        text += ["## libfabric and UCX", "", _markdown(UCX_HEADERS, lines), ""]
    text += [f"![network]({name}.svg)"]
    if results["failures"]:
        text += ["", "## Runs that failed", ""]
        text += [f"- {failure}" for failure in results["failures"]]
    (folder / f"{name}.md").write_text("\n".join(text) + "\n")


def draw(figures: Figures, path: Path) -> None:
    """Bandwidth, latency and the barrier over hosts."""
    from . import plots  # tables need no matplotlib
    from .plots import BARE, OURS, PEERS

    plots.style()
    figure, (left, middle, right) = plots.plt.subplots(1, 3, width_ratios=[4, 4, 3])
    table = rows(figures)
    series = (("ours", OURS), ("bare", BARE), ("oshmem", PEERS))
    for axes, unit, title in ((left, "GB/s", "bandwidth, GB/s"), (middle, "µs", "latency, µs")):
        shown = [row for row in table if row.unit == unit and "barrier" not in row.name]
        for shift, (attribute, color) in zip((-0.27, 0, 0.27), series):
            found = [(i, getattr(row, attribute)) for i, row in enumerate(shown)]
            at = [i + shift for i, one in found if one]
            values = [one.median for _, one in found if one]
            axes.barh(at, values, 0.27, color=color)
        axes.set_yticks(range(len(shown)), [row.name for row in shown])
        axes.invert_yaxis()
        axes.set_title(title)
    for library, label, color in (
        ("mori", "ours", OURS),
        ("libfabric", "libfabric", BARE),
        ("oshmem", "oshmem", PEERS),
    ):
        points = [
            (hosts, found.median)
            for hosts in (2, 4, 8)
            if (found := figures.find(library, "net_barrier", pes=hosts))
        ]
        if points:
            right.plot(*zip(*points), color=color, marker=".", label=label)
    right.set_xscale("log", base=2)
    right.set_xticks([2, 4, 8], ["2", "4", "8"])
    right.set_yscale("log")
    right.set_xlabel("hosts")
    right.set_title("barrier, µs")
    right.legend()
    plots.save(figure, path)


def measure(
    network: Network, quick: bool, repeats: int, patience_s: float, say: object
) -> tuple[Figures, list[str], list[float]]:
    """All runs in rounds, so that a slow minute of the machine meets all of them."""
    figures, failures, busy = Figures(), [], []
    for repeat in range(repeats):
        for run in plan(quick, network):
            say(f"{repeat + 1}/{repeats} {run}")
            busy.append(machine.wait_until_quiet(patience_s))
            try:
                network.run(run, figures)
            except Failure as failure:
                failures.append(str(failure))
    return figures, failures, busy
