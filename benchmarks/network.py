#!/usr/bin/env python3
"""Operations between hosts: ours, bare libfabric, Open MPI's OpenSHMEM and bare UCX in rounds.

Hosts are network namespaces that this makes, so it needs root, or a kernel that lets users make
them. Prints one table, and writes network-DATE.{json,md,svg} into docs/results/.

    benchmarks/network.py            everything: ten minutes on a quiet machine
    benchmarks/network.py --quick    a look at it, in a minute or two
    benchmarks/network.py --show docs/results/network-2026-01-31.json

What is compared with is taken where it is installed: libfabric-dev, openmpi-bin and libopenmpi-dev,
libucx-dev.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

from harness import machine, network
from harness.figures import Figures
from harness.network import Network
from harness.programs import ROOT, commit
from hosts_support import launch_agent
from hosts_support import network as make_hosts
from rich.console import Console
from rich.table import Table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short batches, one round")
    parser.add_argument("--repeats", type=int, help="rounds over all programs [5, quick: 1]")
    parser.add_argument("--provider", default="tcp;ofi_rxm", help="of libfabric [%(default)s]")
    parser.add_argument(
        "--patience",
        type=float,
        help="seconds to wait for a quiet machine before each program [30, quick: 0]",
    )
    parser.add_argument("--no-build", action="store_true", help="run ours as it is built already")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--show", type=Path, help="table, page and plots of a finished run")
    return parser.parse_args()


def measure(options: argparse.Namespace, console: Console) -> tuple[dict, Figures]:
    repeats = options.repeats or (1 if options.quick else 5)
    patience_s = options.patience if options.patience is not None else (0 if options.quick else 30)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, make_hosts(8) as hosts:
        agent = launch_agent(Path(folder), hosts)
        here = Network(options.build_dir, hosts, agent, options.provider)
        with console.status("building (release)"):
            here.make(not options.no_build)
        for library, why in here.missing.items():
            console.print(f"[yellow]without {library}: {why}[/]")
        facts = machine.describe() | {"load_at_start": machine.load()}
        figures, failures, busy = network.measure(
            here, options.quick, repeats, patience_s, console.print
        )
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "command": " ".join(["benchmarks/network.py", *sys.argv[1:]]),
        "quick": options.quick,
        "repeats": repeats,
        "provider": options.provider,
        "missing": here.missing,
        "machine": facts,
        "busy": busy,
        "failures": failures,
        "figures": figures.to_json(),
    }, figures


def print_tables(figures: Figures, console: Console) -> None:
    lines = [network.cells(row) for row in network.rows(figures)]
    for headers, body in (
        (network.HEADERS, lines),
        (network.UCX_HEADERS, network.ucx_cells(figures)),
    ):
        table = Table(header_style="bold")
        for header in headers:
            table.add_column(header)
        for line in body:
            table.add_row(*line)
        console.print(table)


def main() -> int:
    options = parse_arguments()
    console = Console()
    if not console.is_terminal:
        console.width = 200
    if options.show:
        results = json.loads(options.show.read_text())
        figures = Figures.from_json(results["figures"])
        name = options.show.stem
    else:
        results, figures = measure(options, console)
        name = f"network-{results['date'][:10]}"
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.show:
        (options.output / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    reasons = ROOT / "docs" / "results" / "reasons.json"
    network.write_page(results, figures, options.output, name, json.loads(reasons.read_text()))
    print_tables(figures, console)
    network.draw(figures, options.output / f"{name}.svg")
    for failure in results["failures"]:
        console.print(f"[red]{failure}[/]")
    console.print(f"written: {options.output}/{name}.json, .md and .svg")
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
