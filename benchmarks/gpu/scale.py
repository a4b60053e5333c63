#!/usr/bin/env python3
"""The figures of two to eight GPUs of one host: ours, as processes and as threads, beside NVSHMEM,
NCCL and the bare machine, in turns.

Prints one table, and writes figures and plots into the output folder. Needs what run.py needs, and
NCCL as a Python package (torch brings it).

    benchmarks/gpu/scale.py                      2, 4 and 8 PEs, as far as there are GPUs
    benchmarks/gpu/scale.py --gpus 1             a smoke test: two PEs on one GPU, under MPS
    benchmarks/gpu/scale.py --only allreduce,barrier --library build/cuda/src/libmori_shmem.so
    benchmarks/gpu/scale.py --show docs/results/gpu8-scale-2026-01-31.json

Groups: copy (by the copy engine, each pair), put (by a kernel, each pair), all (all pairs at once),
barrier, allreduce, collectives (on a stream), latency (PE 0 with each).
"""

from __future__ import annotations

import argparse
import ctypes.util
import datetime
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import machine
import scale_plots
import scale_report
from machine import Mps
from programs import Program, Series, Workshop, add_arguments, command_line, to_json

GROUPS = ("copy", "put", "all", "barrier", "allreduce", "collectives", "latency")
#: between pairs of PEs: of the most PEs only
OF_PAIRS = frozenset({"copy", "put", "latency"})
ON_STREAMS = frozenset({"allreduce", "collectives"})
MOST_PES = 8
LEAST_SECONDS = 15  #: what is not started for less


@dataclass(frozen=True)
class Contestant:
    name: str
    program: Program
    groups: frozenset[str]
    arguments: tuple[str, ...] = ()


OURS = Program("scale_ours", "mori")
CONTESTANTS = (
    Contestant("ours", OURS, frozenset(GROUPS) - {"copy"}),
    Contestant("ours, threads", OURS, frozenset(GROUPS) - {"copy"}, ("--as", "threads")),
    Contestant("NVSHMEM", Program("scale_nvshmem", "nvshmem"), frozenset(GROUPS) - {"copy"}),
    Contestant("NCCL", Program("scale_nccl", "nccl"), ON_STREAMS),
    Contestant("bare", Program("scale_bare", "bare"), OF_PAIRS | {"all"}),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, repeats=1)
    parser.add_argument("--nccl", type=Path, help="folder with its lib")
    parser.add_argument(
        "--budget", type=int, default=540, help="seconds for all; nothing is begun after [540]"
    )
    options = parser.parse_args()
    wrong = set(options.only.split(",")) - {"", *GROUPS}
    if wrong:
        parser.error(f"--only: no group {', '.join(sorted(wrong))}; there are {', '.join(GROUPS)}")
    return options


def sizes_up_to(gpus: int) -> list[int]:
    """Numbers of PEs, the largest first: it has most to say if time runs out."""
    return [pes for pes in (8, 4, 2) if pes <= max(gpus, 2)]


def facts_of_links() -> dict[str, list[str]]:
    """How the GPUs are connected."""
    colours = re.compile(r"\x1b\[[0-9;]*m")
    text = colours.sub("", "\n".join(lines_or_note("topo", "-m")))
    topology = [line.rstrip() for line in text.partition("Legend:")[0].strip().splitlines()]
    found = re.findall(
        r"^GPU \d+|Link \d+: .*", "\n".join(lines_or_note("nvlink", "--status")), re.M
    )
    links: list[Counter[str]] = []
    for line in found:
        if line.startswith("GPU"):
            links.append(Counter())
        elif links:
            links[-1][line.partition(": ")[2].strip()] += 1
    alike = Counter(", ".join(f"{n} links of {rate}" for rate, n in gpu.items()) for gpu in links)
    return {
        "topology": topology,
        "nvlink": [f"{n} x {what or 'no links'}" for what, n in alike.items()],
    }


def lines_or_note(*arguments: str) -> list[str]:
    return machine.lines_of("nvidia-smi", *arguments) or [f"nvidia-smi {arguments[0]}: no answer"]


class Measurement:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.started = time.monotonic()
        gpus = machine.use_gpus(min(options.gpus or MOST_PES, MOST_PES))
        self.sizes = sizes_up_to(len(gpus))
        self.gpus = gpus[: self.sizes[0]]
        self.shares = len(self.gpus) < self.sizes[0]
        self.workshop = Workshop(options, options.nccl or machine.find_package("nvidia.nccl"))
        self.series = Series()
        self.notes: list[str] = []
        self.failures: list[str] = []
        self.machine = machine.describe(self.workshop.nvcc) | facts_of_links()
        self.contestants = [one for one in CONTESTANTS if self._takes_part(one)]

    def seconds_left(self) -> float:
        return self.options.budget - (time.monotonic() - self.started)

    def _takes_part(self, contestant: Contestant) -> bool:
        library = contestant.program.library
        if library == "nvshmem" and not self.workshop.nvshmem:
            return self._note("NVSHMEM is not here (pip: nvidia-nvshmem-cu13)")
        if library == "nccl" and self.shares:
            return self._note("NCCL takes no two PEs on one GPU: without it")
        if library == "nccl" and not (self.workshop.nccl or ctypes.util.find_library("nccl")):
            return self._note("NCCL is not here (pip: nvidia-nccl-cu13)")
        if contestant.arguments and self.shares:
            self._note(
                "threads that share a GPU share its linked kernels: of them, only what is put on "
                "streams"
            )
        return bool(self._groups(contestant, self.sizes[0]))

    def _note(self, text: str) -> bool:
        self.notes.append(text)
        print(text, file=sys.stderr, flush=True)
        return False

    def _groups(self, contestant: Contestant, pes: int) -> list[str]:
        wanted = set(self.options.only.split(",")) - {""} or set(GROUPS)
        if pes < self.sizes[0]:
            wanted -= OF_PAIRS
        if contestant.arguments and self.shares:
            wanted &= ON_STREAMS
        return [group for group in GROUPS if group in wanted & contestant.groups]

    def build(self) -> None:
        print("building", file=sys.stderr, flush=True)
        programs = dict.fromkeys(one.program for one in self.contestants)
        for program, failure in self.workshop.build(programs).items():
            self._fail(program.name, failure)
            self.contestants = [one for one in self.contestants if one.program != program]

    def _fail(self, what: str, failure: str) -> None:
        self.failures.append(f"{what}: {failure}")
        print(f"   {failure}", file=sys.stderr, flush=True)

    def turns(self) -> Iterator[tuple[Contestant, int, list[str]]]:
        """Rounds over the contestants, so that a slow minute of the machine meets all of them."""
        for repeat in range(self.options.repeats):
            for pes in self.sizes:
                for contestant in list(self.contestants):
                    groups = self._groups(contestant, pes)
                    if groups and contestant in self.contestants:
                        what = f"{repeat + 1}/{self.options.repeats} {pes} PEs {contestant.name}"
                        print(what, file=sys.stderr, flush=True)
                        yield contestant, pes, groups

    def go(self, mps: Mps | None, save: Callable[[], None]) -> None:
        if self.shares:
            self._note("a smoke test: two PEs share one GPU, and say nothing of several GPUs")
        for contestant, pes, groups in self.turns():
            limit = int(min(self.options.limit, self.seconds_left()))
            if limit < LEAST_SECONDS:
                self._fail(f"{contestant.name}, {pes} PEs, and what comes after", "time is up")
                return
            failure = self._run(contestant, pes, groups, limit)
            if failure:
                self._fail(f"{contestant.name}, {pes} PEs", failure)
                if mps:  # it may not be well either
                    mps.end()
                    mps.start()
            save()

    def _run(self, contestant: Contestant, pes: int, groups: list[str], limit: int) -> str:
        environment = {}
        if not self.shares:  # under MPS, the daemon sees to it
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[:pes])
        if contestant.program.library == "nvshmem":  # by itself: NCCL is measured, too
            environment["NVSHMEM_DISABLE_NCCL"] = "1"
        failure = self.series.run(
            self.workshop,
            contestant.program,
            ["--pes", str(pes), "--only", ",".join(groups), *contestant.arguments],
            limit,
            environment,
            pes=pes,
        )
        if "no end in" in failure:  # not again
            self.contestants.remove(contestant)
        return failure

    def results(self) -> dict:
        versions = {
            library: self.series.facts.get(library, {}).get("version", "not measured")
            for library in ("nvshmem", "nccl", "mori")
        }
        return {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "commit": self.options.commit or machine.commit(),
            "command": command_line("benchmarks/gpu/scale.py"),
            "pes": self.sizes,
            "gpus": len(self.gpus),
            "mps": self.shares,
            "repeats": self.options.repeats,
            "nvshmem_environment": self.options.nvshmem_env,
            "machine": self.machine | versions,
            "seconds": round(time.monotonic() - self.started),
            "notes": self.notes,
            "failures": self.failures,
            "figures": self.series.rows(),
        }


def measure(options: argparse.Namespace) -> dict:
    measurement = Measurement(options)
    options.output.mkdir(parents=True, exist_ok=True)
    partly = options.output / f"gpu{len(measurement.gpus)}-scale-partly.json"

    def save() -> None:
        partly.write_text(to_json(measurement.results()))

    if not options.no_build:
        measurement.build()
    mps = Mps() if measurement.shares else None
    try:
        if mps:
            mps.start()
        measurement.go(mps, save)
    finally:
        if mps:
            mps.end()
    partly.unlink(missing_ok=True)
    return measurement.results()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the daemon
    options = parse_arguments()
    results = json.loads(options.show.read_text()) if options.show else measure(options)
    stem = f"gpu{results['gpus']}-scale-{results['date'][:10]}"
    name = options.show.stem if options.show else stem
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.show:
        (options.output / f"{name}.json").write_text(to_json(results))
    text = scale_report.table(results)
    (options.output / f"{name}.txt").write_text(text + "\n")
    print(text)
    print(scale_plots.draw(results, options.output))
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    sys.exit(main())
