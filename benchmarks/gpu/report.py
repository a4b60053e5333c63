"""What the device API is to reach on a GPU, the table of it as plain text, and the plots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("nvshmem", "mori", "bare")
RAW = ("bandwidth/132/268435456", "copy_by_grid/132/1024", "copy_by_grid/1056/512")
#: what stands in the column of the bare machine where it has no figure of the same name
BARE_NAMES = {"barrier/stream": "launch"}


class Figures:
    """Medians by library and name."""

    def __init__(self, results: dict):
        self.rows = {(row["library"], row["name"]): row for row in results["figures"]}

    def row(self, library: str, name: str) -> dict | None:
        if library == "bare" and (library, name) not in self.rows:
            name = BARE_NAMES.get(name, name)
        return self.rows.get((library, name))

    def median(self, library: str, name: str) -> float | None:
        row = self.row(library, name)
        return row["median"] if row else None

    def over(self, name: str, other: float | None) -> float | None:
        ours = self.median("mori", name)
        return ours / other if ours is not None and other else None

    def over_nvshmem(self, name: str) -> float | None:
        return self.over(name, self.median("nvshmem", name))

    def raw(self) -> float | None:
        """The most that a plain copy to the other PE's memory does."""
        found = [self.median("bare", name) for name in RAW]
        return max((value for value in found if value is not None), default=None)

    def names(self) -> list[str]:
        """In the order in which they were measured."""
        order: dict[str, None] = {}
        for library in ("mori", "nvshmem", "bare"):
            for of, name in self.rows:
                if of == library:
                    order[name] = None
        return list(order)


@dataclass(frozen=True)
class Goal:
    text: str
    is_reached: Callable[[Figures, str], bool | None]


def _at_most(limit: float) -> Goal:
    def check(figures: Figures, name: str) -> bool | None:
        ratio = figures.over_nvshmem(name)
        return None if ratio is None else ratio <= limit

    return Goal(f"≤ {limit:g} x", check)


def _below(limit: float) -> Goal:
    def check(figures: Figures, name: str) -> bool | None:
        ratio = figures.over_nvshmem(name)
        return None if ratio is None else ratio < limit

    return Goal(f"< {limit:g} x", check)


def _at_least(limit: float) -> Goal:
    def check(figures: Figures, name: str) -> bool | None:
        ratio = figures.over_nvshmem(name)
        return None if ratio is None else ratio >= limit

    return Goal(f"≥ {limit:g} x", check)


def _of_raw(share: float) -> Goal:
    def check(figures: Figures, name: str) -> bool | None:
        ratio = figures.over(name, figures.raw())
        return None if ratio is None else ratio >= share

    return Goal(f"≥ {share:g} of raw copy", check)


def goal_of(name: str, gpus: int) -> Goal | None:
    if name.startswith(("put/warp/", "put/thread/")):
        return _below(1.0)
    one = gpus == 1
    return {
        "p": _at_most(0.8),
        "fetch_add": _at_most(1.0),
        "put/block/64": _at_most(0.7),
        "put/block/16384": _at_most(0.7),
        "put/block/262144": _at_most(0.7),
        "bandwidth/1/16777216": _at_least(2),
        "bandwidth/8/16777216": _at_least(1.6) if one else _of_raw(0.97),
        "bandwidth/132/268435456": _of_raw(0.98),
        "barrier/stream": _at_most(0.4 if one else 0.7),
        "barrier/host": _at_most(0.25),
        "malloc_free": _at_most(0.3),
        "init": _at_most(0.3),
    }.get(name)


def size_name(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def title(name: str) -> str:
    what, *parts = name.split("/")
    plain = {
        "p": "p 8 B + quiet, one thread",
        "g": "g 8 B, one after another",
        "fetch_add": "fetch_add u64, one after another",
        "malloc_free": "malloc + free 1 MiB",
        "init": "init, driver up",
        "launch": "empty kernel, back to back",
        "clock_step": "step of the GPU's clock",
        "copy_by_driver": "256 MiB by cudaMemcpyAsync",
    }
    if name in plain:
        return plain[name]
    if what in ("put", "get"):
        end = " + quiet" if what == "put" else ""
        by = {"block": "1024 threads", "warp": "warp", "thread": "thread"}[parts[0]]
        return f"{what} {size_name(int(parts[1]))}{end}, {by}"
    if what == "bandwidth":
        blocks = f"{parts[0]} block{'s' if parts[0] != '1' else ''}"
        return f"put_nbi {size_name(int(parts[1]))}, {blocks} x 1024"
    if what == "put_signal":
        return f"put-with-signal {size_name(int(parts[1]))}, {parts[0]} threads, one way"
    if what == "copy_by_grid":
        return f"256 MiB by a plain kernel, {parts[0]} x {parts[1]}"
    if what == "barrier":
        where = {"host": "host", "stream": "on a stream, 20 in a row"}
        return f"barrier_all, {where.get(parts[0]) or f'kernel, {parts[-1]} threads'}"
    if parts:
        return f"{what.replace('_', '-')} {size_name(int(parts[0]))}, one block of 1024"
    return what


def short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def number(row: dict | None) -> str:
    if row is None:
        return "-"
    if len(row["values"]) == 1:
        return short(row["median"])
    return f"{short(row['median'])} ({short(min(row['values']))}-{short(max(row['values']))})"


def _line(figures: Figures, name: str, gpus: int) -> list[str]:
    rows = [figures.row(library, name) for library in LIBRARIES]
    unit = next(row["unit"] for row in (*rows, figures.row("bare", name)) if row)
    ratio = figures.over_nvshmem(name)
    goal = goal_of(name, gpus)
    reached = goal.is_reached(figures, name) if goal else None
    return [
        f"{title(name)}, {unit.replace('us', 'µs')}",
        *(number(row) for row in rows),
        "-" if ratio is None else f"{ratio:.2f} x",
        goal.text if goal else "",
        {True: "yes", False: "NO", None: "not measured" if goal else ""}[reached],
    ]


HEADERS = ["figure", "NVSHMEM", "ours", "bare", "ours/NVSHMEM", "goal", "reached"]


def aligned(lines: list[list[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """The first line is the head; columns that are not `left` are to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def join(line: list[str]) -> str:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        return "  ".join(cells).rstrip()

    return [join(lines[0]), "  ".join("-" * width for width in widths), *map(join, lines[1:])]


def table(results: dict) -> str:
    figures = Figures(results)
    gpus = results["gpus"]
    names = [name for name in figures.names() if name not in BARE_NAMES.values()]
    lines = [HEADERS, *(_line(figures, name, gpus) for name in names)]

    machine = results["machine"]
    where = f"{gpus} x {machine['gpu']}" + (", MPS" if results["mps"] else "")
    text = [
        f"{results['date']}, commit {results['commit']}: {results['pes']} PEs on {where}, driver "
        f"{machine['driver']}",
        f"NVSHMEM {machine['nvshmem']}; {machine['nvcc']}; {results['repeats']} rounds in turns: "
        "median (least-most)",
    ]
    if results["nvshmem_environment"]:
        text.append(f"NVSHMEM with {' '.join(results['nvshmem_environment'])}")
    text += ["", *aligned(lines, left=(0, 5, 6))]
    checked = [line[-1] for line in lines[1:] if line[-1]]
    text += ["", f"{checked.count('yes')} of {len(checked)} goals are reached."]
    raw = figures.raw()
    if raw is not None:
        text.append(f"raw copy: {short(raw)} GB/s; bare of a barrier on a stream: an empty kernel")
    text += [f"FAILED {failure}" for failure in results["failures"]]
    return "\n".join(text)


def pyplot():
    """matplotlib's, which draws SVG; None without it."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "legend.frameon": False, "svg.hashsalt": "mori"})
    return plt


def draw(results: dict, path: Path) -> str:
    """Put latency by size and scope as SVG. Returns what became of it."""
    figures = Figures(results)
    if not any(name.startswith("put/") for _, name in figures.rows):
        return f"written: {path.parent}, without a plot: no put was measured"
    plt = pyplot()
    if plt is None:
        return "no plots: no matplotlib"
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True)
    looks = {
        "nvshmem": ("NVSHMEM", "#d1242f", "-"),
        "mori": ("ours", "#1f6feb", "-"),
        "bare": ("bare", "#6e7781", ":"),
    }
    for axes, scope in zip(all_axes, ("thread", "warp", "block")):
        for library, (label, color, dash) in looks.items():
            points = sorted(
                (int(name.split("/")[2]), row["median"])
                for (of, name), row in figures.rows.items()
                if of == library and name.startswith(f"put/{scope}/")
            )
            if points:
                sizes, times = zip(*points)
                axes.plot(sizes, times, color=color, linestyle=dash, marker=".", label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("bytes")
        axes.set_title(f"put + quiet by a {scope}")
        axes.grid(color="#e6e8eb")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_ylabel("µs")
    all_axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return f"written: {path.parent}"
