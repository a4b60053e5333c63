"""Starts the programs in turns, ends what hangs, and collects their figures."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import machine
from .figures import Figures, Key, parse
from .programs import Programs, Run

_TAG = "MORI_BENCH_TAG"


def _kill_tagged(tag: str) -> None:
    """Ends every process of one run, wherever its launcher has put it."""
    wanted = f"{_TAG}={tag}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue  # gone, or not ours


class Failure(Exception):
    """A program that did not end well, or found its data wrong."""


def run_once(programs: Programs, run: Run, figures: Figures) -> None:
    """One start. Adds what it prints to `figures`."""
    tag = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = programs.environment(run) | {_TAG: tag}
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            programs.command(run),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status: object = process.wait(run.limit_s)
        except subprocess.TimeoutExpired:
            status = f"no end within {run.limit_s:g} s"
        wall_ms = (time.monotonic() - start) * 1e3
        _kill_tagged(tag)
        process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status != 0 or "BAD " in text:
        lines = [line for line in text.splitlines() if line.strip() and "FIG " not in line]
        raise Failure(f"{run}: status {status}: {' | '.join(lines)[:500]}")
    for key, value, best in parse(text):
        figures.add(key, value, best)
    if run.wall_metric:
        key = Key(run.library, run.wall_metric, 0, run.pes, "-", "ms")
        figures.add(key, wall_ms, wall_ms)


class Turns:
    """Repeats that go round all runs, so that a slow minute of the machine meets all of them."""

    def __init__(self, programs: Programs, runs: list[Run], repeats: int, patience_s: float):
        self.programs = programs
        self.runs = runs
        self.repeats = repeats
        self.patience_s = patience_s
        self.figures = Figures()
        self.failures: list[str] = []
        self.busy: list[float] = []

    def go(self, progress: Callable[[int, Run], None]) -> None:
        failed: dict[Run, int] = {}
        for repeat in range(self.repeats):
            for run in self.runs:
                progress(repeat, run)
                if failed.get(run, 0) >= 2:
                    continue
                self.busy.append(machine.wait_until_quiet(self.patience_s))
                try:
                    run_once(self.programs, run, self.figures)
                except Failure as failure:
                    failed[run] = failed.get(run, 0) + 1
                    self.failures.append(str(failure))
