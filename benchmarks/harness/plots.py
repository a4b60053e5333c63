"""Plots as SVG: bandwidth and latency over size, barrier over PEs."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from .figures import Figures
from .targets import PEER, shares

OURS, PEERS, BARE = "#1f6feb", "#d1242f", "#6e7781"


def style() -> None:
    plt.rcParams.update(
        {
            "figure.figsize": (9, 4.2),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e6e8eb",
            "font.size": 9,
            "legend.frameon": False,
            "svg.hashsalt": "mori",
        }
    )


def save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _size_axis(axes: plt.Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    ticks = [size for size in sizes if size & (size - 1) == 0]
    axes.set_xticks(ticks, [_size_name(size) for size in ticks])
    axes.set_xlabel("bytes")


def _size_name(size: int) -> str:
    for unit in ("", "Ki", "Mi"):
        if size < 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}Gi"


def bandwidth(figures: Figures, path: Path) -> None:
    """Our worst and best offset as a band, memcpy at its best offset, the peer's worst and best."""
    figure, both = plt.subplots(1, 2, sharey=True)
    for axes, operation in zip(both, ("put", "get")):
        measured = shares(figures, operation)
        sizes = sorted({share.bytes for share in measured})
        if not sizes:
            continue
        of_size = {size: [s for s in measured if s.bytes == size] for size in sizes}
        least = [min(s.ours for s in of_size[size]) for size in sizes]
        most = [max(s.ours for s in of_size[size]) for size in sizes]
        memcpy = [of_size[size][0].memcpy for size in sizes]
        axes.plot(sizes, memcpy, color=BARE, marker=".", label="memcpy, best offset")
        axes.fill_between(sizes, least, most, color=OURS, alpha=0.25, linewidth=0)
        axes.plot(sizes, least, color=OURS, marker=".", label="ours, worst offset (band: to best)")
        _plot_peer_band(axes, figures, operation)
        axes.set_title(operation)
        axes.set_ylim(bottom=0)
        _size_axis(axes, sizes)
    both[0].set_ylabel("GB/s")
    both[0].legend()
    save(figure, path)


def _plot_peer_band(axes: plt.Axes, figures: Figures, operation: str) -> None:
    of_size: dict[int, list[float]] = {}
    for key, series in figures.select(PEER, f"{operation}_bandwidth").items():
        of_size.setdefault(key.bytes, []).append(series.median)
    sizes = sorted(of_size)
    if not sizes:
        return
    least = [min(of_size[size]) for size in sizes]
    most = [max(of_size[size]) for size in sizes]
    axes.fill_between(sizes, least, most, color=PEERS, alpha=0.12, linewidth=0)
    axes.plot(sizes, least, color=PEERS, marker=".", label=f"{PEER}, worst offset (band: to best)")


def latency(figures: Figures, path: Path) -> None:
    """Time of one operation over size, and of the small ones without a size."""
    figure, (left, right) = plt.subplots(1, 2, width_ratios=[3, 2])
    lines = [
        ("mori", "put_time", "put + quiet", OURS, "-"),
        ("mori", "get_time", "get", OURS, "--"),
    ]
    lines += [(PEER, "put_time", f"put + quiet, {PEER}", PEERS, "-")]
    lines += [(PEER, "get_time", f"get, {PEER}", PEERS, "--")]
    lines += [("mori", "bare_put_time", "memcpy + fence", BARE, ":")]
    sizes: list[int] = []
    for library, metric, label, color, dash in lines:
        points = sorted((k.bytes, s.median) for k, s in figures.select(library, metric).items())
        if points:
            sizes = [size for size, _ in points]
            times = [time for _, time in points]
            left.plot(sizes, times, color=color, linestyle=dash, marker=".", label=label)
    left.set_yscale("log")
    left.set_ylabel("ns")
    _size_axis(left, sizes)
    left.legend()
    _small_operations(right, figures)
    save(figure, path)


def _small_operations(axes: plt.Axes, figures: Figures) -> None:
    operations = [
        ("put 8 B + quiet", "put_latency", "bare_store_fence"),
        ("get 8 B", "get_latency", "bare_load"),
        ("fetch-add", "fetch_add", "bare_xadd"),
        ("wait_until, one way", "wait_until_one_way", "bare_signal"),
        ("put-with-signal", "put_signal_one_way", "bare_signal"),
    ]
    height = 0.27
    for index, (_, metric, bare) in enumerate(operations):
        for shift, library, name, color in (
            (-height, "mori", metric, OURS),
            (0, PEER, metric, PEERS),
            (height, "mori", bare, BARE),
        ):
            series = figures.find(library, name)
            if series:
                axes.barh(index + shift, series.median, height, color=color)
                axes.text(
                    series.median, index + shift, f" {series.median:.3g}", va="center", size=7
                )
    axes.set_yticks(range(len(operations)), [name for name, _, _ in operations])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"ns (ours, {PEER}, bare)")


def barrier(figures: Figures, path: Path) -> None:
    """Barrier over the number of PEs, with more PEs than CPUs beyond what the machine has."""
    figure, axes = plt.subplots()
    lines = [("mori", "barrier", "ours", OURS, "-"), (PEER, "barrier", PEER, PEERS, "-")]
    lines += [("mori", "bare_barrier_spin", "bare, spinning", BARE, ":")]
    lines += [("mori", "bare_barrier_yield", "bare, yielding", BARE, "-")]
    lines += [("machine", "bare_barrier_futex", "bare, futex", BARE, "--")]
    counts: set[int] = set()
    for library, metric, label, color, dash in lines:
        points = sorted((k.pes, s.median) for k, s in figures.select(library, metric).items())
        if points:
            pes = [n for n, _ in points]
            counts.update(pes)
            times = [time for _, time in points]
            axes.plot(pes, times, color=color, linestyle=dash, marker=".", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(counts), [str(n) for n in sorted(counts)])
    axes.set_xlabel("PEs")
    axes.set_ylabel("µs")
    axes.legend()
    save(figure, path)


def draw(figures: Figures, folder: Path) -> None:
    style()
    bandwidth(figures, folder / "bandwidth.svg")
    latency(figures, folder / "latency.svg")
    barrier(figures, folder / "barrier.svg")
