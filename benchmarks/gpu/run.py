#!/usr/bin/env python3
"""Our device API beside NVSHMEM and the bare GPU: builds all three, runs them in turns.

Prints one table, and writes figures and plots into the output folder. Needs nvcc, an NVIDIA driver,
CMake and ninja, and NVSHMEM as a Python package (torch brings it); for plots, matplotlib.

    benchmarks/gpu/run.py                        two PEs, on two GPUs where there are two
    benchmarks/gpu/run.py --gpus 1               both on one GPU, under a daemon of MPS of its own
    benchmarks/gpu/run.py --library build/cuda/src/libmori_shmem.so --repeats 1
    benchmarks/gpu/run.py --only words,barrier   words, put, get, bandwidth, signal, barrier,
                                                 malloc, collectives
    benchmarks/gpu/run.py --show docs/results/gpu1-2026-01-31.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys

import machine
import report
from machine import Mps
from programs import Program, Series, Workshop, add_arguments, command_line, to_json


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, repeats=3)
    parser.add_argument("--pes", type=int, default=2)
    return parser.parse_args()


class Turns:
    """Rounds over the programs, so that a slow minute of the machine meets all of them."""

    def __init__(self, workshop: Workshop, programs: list[Program], mps: Mps | None):
        self.workshop = workshop
        self.programs = programs
        self.mps = mps
        self.series = Series()
        self.failures: list[str] = []

    def go(self, repeats: int) -> None:
        options = self.workshop.options
        arguments = ["--pes", str(options.pes)]
        arguments += ["--only", options.only] if options.only else []
        for repeat in range(repeats):
            for program in self.programs:
                print(f"{repeat + 1}/{repeats} {program.name}", file=sys.stderr, flush=True)
                failure = self.series.run(self.workshop, program, arguments, options.limit)
                if failure:
                    self.failures.append(f"{program.name}: {failure}")
                    print(f"   {failure}", file=sys.stderr, flush=True)
                    if self.mps:  # it may not be well either
                        self.mps.end()
                        self.mps.start()


def describe(workshop: Workshop, series: Series) -> dict[str, str]:
    versions = {
        library: series.facts.get(library, {}).get("version", "not measured")
        for library in ("nvshmem", "mori")
    }
    return machine.describe(workshop.nvcc) | versions


def measure(options: argparse.Namespace) -> dict:
    gpus = len(machine.use_gpus(min(options.gpus or options.pes, options.pes)))
    workshop = Workshop(options)
    programs = [Program("ours", "mori"), Program("nvshmem", "nvshmem"), Program("bare", "bare")]
    if not workshop.nvshmem:
        print("no NVSHMEM here (pip: nvidia-nvshmem-cu13): without it", file=sys.stderr)
        del programs[1]
    if not options.no_build:
        print("building", file=sys.stderr, flush=True)
        for program, failure in workshop.build(programs).items():
            sys.exit(f"{program.name}: {failure}")
    mps = Mps() if gpus < options.pes else None
    turns = Turns(workshop, programs, mps)
    try:
        if mps:
            mps.start()
        turns.go(options.repeats)
    finally:
        if mps:
            mps.end()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": options.commit or machine.commit(),
        "command": command_line("benchmarks/gpu/run.py"),
        "pes": options.pes,
        "gpus": gpus,
        "mps": mps is not None,
        "repeats": options.repeats,
        "nvshmem_environment": options.nvshmem_env,
        "machine": describe(workshop, turns.series),
        "failures": turns.failures,
        "figures": turns.series.rows(),
    }


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the daemon
    options = parse_arguments()
    results = json.loads(options.show.read_text()) if options.show else measure(options)
    name = options.show.stem if options.show else f"gpu{results['gpus']}-{results['date'][:10]}"
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.show:
        path = options.output / f"{name}.json"
        path.write_text(to_json(results))
    text = report.table(results)
    print(text)
    (options.output / f"{name}.txt").write_text(text + "\n")
    print(report.draw(results, options.output / f"gpu{results['gpus']}-put.svg"))
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
