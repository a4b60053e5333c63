#!/usr/bin/env python3
"""Builds and runs the benchmarks: ours, an OpenSHMEM library and the bare machine in turns.

Prints one table, and writes figures, table and plots into docs/results/.

    benchmarks/run.py                        everything (half an hour on a quiet machine)
    benchmarks/run.py --quick                a look at it, in a few minutes
    benchmarks/run.py --tasks latency start  a part
    benchmarks/run.py --show docs/results/cpu-2026-01-31.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path

import simulate_growth
from harness import machine, plots, report
from harness.execute import Turns
from harness.figures import Figures
from harness.programs import ROOT, TASKS, Programs, Run, commit, plan
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short batches, one repeat")
    parser.add_argument("--repeats", type=int, help="rounds over all programs [5, quick: 1]")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--patience",
        type=float,
        help="seconds to wait for a quiet machine, a tenth before each program [300, quick: 0]",
    )
    parser.add_argument("--no-build", action="store_true", help="run what is built already")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--show", type=Path, help="table, page and plots of a finished run")
    return parser.parse_args()


def measure(options: argparse.Namespace, console: Console) -> tuple[dict, Figures]:
    programs = Programs(options.build_dir)
    if not options.no_build:
        with console.status("building (release)"):
            programs.make()
    if not programs.has_peer():
        console.print("[yellow]no OpenSHMEM here (openmpi-bin, libopenmpi-dev): without a peer[/]")
    repeats = options.repeats or (1 if options.quick else 5)
    patience_s = options.patience if options.patience is not None else (0 if options.quick else 300)
    with console.status(f"waiting for a quiet machine (load {machine.load():.1f})"):
        machine.wait_until_quiet(patience_s, max_load=0.7)
    facts = machine.describe() | {"load_at_start": machine.load()}

    runs = plan(options.quick, programs.has_peer(), options.tasks)
    turns = Turns(programs, runs, repeats, patience_s / 10)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=repeats * len(runs))

        def show(repeat: int, run: Run) -> None:
            progress.update(task, description=f"{repeat + 1}/{repeats} {run}"[:60], advance=1)

        turns.go(show)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "command": " ".join(["benchmarks/run.py", *sys.argv[1:]]),
        "quick": options.quick,
        "repeats": repeats,
        "machine": facts,
        "busy": turns.busy,
        "failures": turns.failures,
        "figures": turns.figures.to_json(),
    }, turns.figures


def main() -> int:
    options = parse_arguments()
    console = Console()
    if not console.is_terminal:
        console.width = 150
    if options.show:
        results = json.loads(options.show.read_text())
        figures = Figures.from_json(results["figures"])
        name = options.show.stem
    else:
        results, figures = measure(options, console)
        name = f"cpu-{results['date'][:10]}"
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.show:
        (options.output / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    plots.draw(figures, options.output)
    if figures.select("mori", "rendezvous_server_cpu"):
        simulate_growth.write(options.output / f"{name}.json", options.output)
    report.write_page(results, figures, options.output, name)
    report.print_table(figures, console)
    for failure in results["failures"]:
        console.print(f"[red]{failure}[/]")
    console.print(f"written: {options.output}/{name}.json, README.md and plots")
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
