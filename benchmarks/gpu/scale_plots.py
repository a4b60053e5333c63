"""Plots of a run of scale.py: all-reduce by size, barriers by number of PEs."""

from __future__ import annotations

from pathlib import Path

from report import pyplot
from scale_report import Figures

#: figure, library, what it is called, colour, dash
ALL_REDUCE = (
    ("sum_reduce", "nvshmem", "NVSHMEM", "#d1242f", "-"),
    ("sum_reduce", "nccl", "NCCL", "#9a6700", "-"),
    ("sum_reduce", "mori", "ours", "#1f6feb", "-"),
    ("sum_reduce", "mori-threads", "ours, threads", "#1f6feb", ":"),
    ("one_shot", "mori", "ours, one-shot kernel", "#1a7f37", "-"),
)
BARRIERS = (
    ("nvshmem", "NVSHMEM", "#d1242f", "-"),
    ("mori", "ours", "#1f6feb", "-"),
    ("mori-threads", "ours, threads", "#1f6feb", ":"),
)
WHERE = {
    "barrier/block/1024": "in a kernel, 1024 threads",
    "barrier/stream": "on a stream",
    "barrier/host": "of the host",
}


def _finish(axes, title: str, label: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(color="#e6e8eb")
    axes.spines[["top", "right"]].set_visible(False)


def _all_reduce(plt, figures: Figures, sizes: list[int]):
    figure, all_axes = plt.subplots(
        1, len(sizes), figsize=(4 * len(sizes) + 1, 3.8), sharey=True, squeeze=False
    )
    for axes, pes in zip(all_axes[0], sizes):
        for what, library, label, color, dash in ALL_REDUCE:
            points = sorted(
                (int(name.split("/")[1]), row["median"])
                for (name, of_pes, of), row in figures.rows.items()
                if of == library and of_pes == pes and name.startswith(f"{what}/")
            )
            if points:
                axes.plot(*zip(*points), color=color, linestyle=dash, marker=".", label=label)
        _finish(axes, f"sum of floats, {pes} PEs", "bytes")
    all_axes[0][0].set_ylabel("µs")
    all_axes[0][0].legend()
    return figure


def _barriers(plt, figures: Figures, sizes: list[int]):
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, all_axes = plt.subplots(1, len(WHERE), figsize=(11, 3.8), sharey=True)
    for axes, (name, where) in zip(all_axes, WHERE.items()):
        for library, label, color, dash in BARRIERS:
            rows = [(pes, figures.rows.get((name, pes, library))) for pes in sizes]
            points = [(pes, row["median"]) for pes, row in rows if row]
            if points:
                axes.plot(*zip(*points), color=color, linestyle=dash, marker="o", label=label)
        _finish(axes, f"barrier {where}", "PEs")
        axes.set_xticks(sizes, [str(pes) for pes in sizes])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    all_axes[0].set_ylabel("µs")
    all_axes[0].legend()
    return figure


def draw(results: dict, folder: Path) -> str:
    """As SVG. Returns what became of it."""
    plt = pyplot()
    if plt is None:
        return "no plots: no matplotlib"
    figures = Figures(results)
    sizes = sorted(results["pes"])
    for name, make in (("allreduce", _all_reduce), ("barrier", _barriers)):
        kind = "sum_reduce" if name == "allreduce" else name
        if not any(row.startswith(f"{kind}/") for row, _, _ in figures.rows):
            continue
        figure = make(plt, figures, sizes)
        figure.tight_layout()
        figure.savefig(folder / f"gpu{results['gpus']}-scale-{name}.svg", metadata={"Date": None})
        plt.close(figure)
    return f"written: {folder}"
