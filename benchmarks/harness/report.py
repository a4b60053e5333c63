"""The table: on the terminal, as JSON and as a page."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .figures import Figures, Series, short
from .targets import PEER, Row, rows, shares

UNITS = {"us": "µs"}
NOT_ANALYSED = "not analysed yet"


def _verdict(row: Row) -> str:
    return {True: "yes", False: "no", None: "not measured"}[row.is_reached]


def _number(series: Series | None) -> str:
    return "-" if series is None else str(series)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{short(value)} x"


def _cells(row: Row) -> list[str]:
    unit = UNITS.get(row.unit, row.unit)
    name = row.name if row.unit == "x" else f"{row.name}, {unit}"
    goal = row.goal.replace(" us", " µs")
    return [
        name,
        _number(row.ours),
        _number(row.peer),
        _number(row.bare),
        _ratio(row.over_peer),
        _ratio(row.over_bare),
        goal,
        _verdict(row),
        row.note,
    ]


HEADERS = ["figure", "ours", PEER, "bare", "ours/peer", "ours/bare", "goal", "reached", "note"]


def print_table(figures: Figures, console: Console) -> None:
    table = Table(title="median (least-most) over the repeats", header_style="bold")
    for index, header in enumerate(HEADERS[:-1]):
        is_text = index == 0 or index > 5
        table.add_column(header, justify="left" if is_text else "right", no_wrap=index > 0)
    style = {True: "green", False: "red", None: "dim"}
    for row in rows(figures):
        cells = _cells(row)
        cells[7] = f"[{style[row.is_reached]}]{cells[7]}[/]"
        table.add_row(*cells[:-1])
    console.print(table)


def _markdown_table(headers: list[str], lines: list[list[str]]) -> str:
    text = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    text += [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join(text)


def _bandwidth_lines(figures: Figures, operation: str) -> list[list[str]]:
    lines = []
    measured = shares(figures, operation)
    for size in sorted({share.bytes for share in measured}):
        of_size = [share for share in measured if share.bytes == size]
        least = min(of_size, key=lambda share: share.share)
        peers = [
            series.median
            for key, series in figures.select(PEER, f"{operation}_bandwidth").items()
            if key.bytes == size
        ]
        default = figures.find("mori", f"{operation}_bandwidth", bytes=size, variant="as_allocated")
        lines.append(
            [
                f"{size:,}",
                short(of_size[0].memcpy),
                _number(default),
                short(max(share.ours for share in of_size)),
                f"{short(least.ours)} (offset {least.variant})",
                f"{least.share:.2f} x",
                f"{short(min(peers))}-{short(max(peers))}" if peers else "-",
            ]
        )
    return lines


def _reasons(folder: Path) -> dict[str, str]:
    path = folder / "reasons.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _machine_lines(facts: dict) -> str:
    caches = ", ".join(f"{name} {size}" for name, size in facts["caches"].items())
    virtual = ", virtual" if facts["is_virtual"] else ""
    model = f"family/model {facts['cpu_family_model']}"
    system = f"{facts['system']}, Linux {facts['kernel']}"
    return "\n".join(
        [
            f"- {facts['cpu']} ({model}), {facts['cpus']} CPUs{virtual}",
            f"- {caches}; memory {facts['memory_gib']} GiB",
            f"- {system}, {facts['c_library']}, {facts['compiler']}",
            f"- peer: {facts['peer'] or 'not installed'} (OpenSHMEM)",
        ]
    )


def write_page(results: dict, figures: Figures, folder: Path, name: str) -> None:
    """docs/results/README.md: the table, the command, and what limits each figure not reached."""
    reasons = _reasons(folder)
    table = rows(figures)
    missed = [row for row in table if row.is_reached is False]
    reached = sum(row.is_reached is True for row in table)
    quick = " This was a quick run: for a look, not for comparison." if results["quick"] else ""
    busy = max(results["busy"], default=0)
    text = [
        "# Results on one machine",
        "",
        "```",
        results["command"],
        "```",
        "",
        f"{results['date']}, commit {results['commit']}. {results['repeats']} repeats in turns;",
        f"median (least-most) of the repeats.{quick}",
        f"Others used {100 * busy:.0f} % of the CPUs at most when a program was started.",
        f"All figures: [{name}.json]({name}.json). What each is: [benchmarks](../benchmarks.md).",
        "",
        _machine_lines(results["machine"]),
        "",
        f"{reached} of {len(table)} goals are reached.",
        "",
        _markdown_table(HEADERS, [_cells(row) for row in table]),
        "",
        "`bare` is what the machine does without a library, in the same program in turns with ours",
        "(launch: fork and exec). Ratios are of medians, those in notes within each repeat.",
        "",
    ]
    if missed:
        text += ["## What limits the figures that are not reached", ""]
        text += [f"- **{row.name}**: {reasons.get(row.id, NOT_ANALYSED)}" for row in missed]
        text.append("")
    for operation in ("put", "get"):
        lines = _bandwidth_lines(figures, operation)
        if not lines:
            continue
        headers = ["bytes", "memcpy, best offset", "ours, as allocated", "ours, best offset"]
        headers += ["ours, worst offset", "worst / memcpy", f"{PEER}, worst-best offset"]
        text += [f"## {operation.capitalize()} bandwidth, GB/s", ""]
        text += [_markdown_table(headers, lines), ""]
    text += ["## Plots", ""]
    for plot in ("bandwidth", "latency", "barrier", "growth"):
        if (folder / f"{plot}.svg").exists():
            text.append(f"![{plot}]({plot}.svg)")
    if results["failures"]:
        text += ["", "## Runs that failed", ""]
        text += [f"- {failure}" for failure in results["failures"]]
    (folder / "README.md").write_text("\n".join(text) + "\n")
