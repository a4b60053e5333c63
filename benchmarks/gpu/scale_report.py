"""The table of a run of scale.py as plain text."""

from __future__ import annotations

import re
import statistics

import report

LIBRARIES = {
    "nvshmem": "NVSHMEM",
    "nccl": "NCCL",
    "mori": "ours",
    "mori-threads": "threads",
    "bare": "bare",
}
PEERS = ("nvshmem", "nccl")
ON_STREAM = ("sum_reduce", "broadcast", "fcollect", "alltoall")
LARGE_BYTES = 1 << 20  #: from here on, bandwidth too
SECTIONS = (
    ("p", "fetch_add", "g", "put", "put_signal"),
    ("copy", "copy_both", "bandwidth"),
    ("all_put", "all_get"),
    ("barrier",),
    ("sum_reduce", "one_shot"),
    ("broadcast",),
    ("fcollect",),
    ("alltoall",),
    ("init", "finalize"),
)
HEADERS = ["figure", "PEs", *LIBRARIES.values(), "ours/best peer", "ours/bare"]
PAIR = re.compile(r"(.+)/(\d+)-(\d+)")


class Figures:
    """Rows by name, number of PEs, and library; figures of pairs by their name without the pair."""

    def __init__(self, results: dict):
        self.rows: dict[tuple[str, int, str], dict] = {}
        self.pairs: dict[tuple[str, int, str], dict[tuple[int, int], dict]] = {}
        for row in results["figures"]:
            key = (row["name"], row["pes"], row["library"])
            of_pair = PAIR.fullmatch(row["name"])
            if of_pair:
                pairs = self.pairs.setdefault((of_pair[1], *key[1:]), {})
                pairs[int(of_pair[2]), int(of_pair[3])] = row
            else:
                self.rows[key] = row
        for key, pairs in self.pairs.items():
            medians = [row["median"] for row in pairs.values()]
            unit = next(iter(pairs.values()))["unit"]
            self.rows[key] = {
                "unit": unit,
                "median": statistics.median(medians),
                "values": medians,  # so that the least and the most pair are shown
            }

    def of(self, name: str, pes: int) -> dict[str, dict]:
        """By library."""
        found = {library: self.rows.get((name, pes, library)) for library in LIBRARIES}
        return {library: row for library, row in found.items() if row}

    def names_and_sizes(self) -> list[tuple[str, int]]:
        """By kind and size, the sizes of the world together."""
        order = {name: i for i, name in enumerate(dict.fromkeys(key[0] for key in self.rows))}
        keys = {(name, pes) for name, pes, _ in self.rows if "_of/" not in name}
        return sorted(keys, key=lambda key: (_rank(key[0]), order[key[0]], key[1]))


def _rank(name: str) -> tuple[int, int, int]:
    """Section, kind, and size, in the order of the table."""
    kind, *rest = name.split("/")
    section = next((i for i, kinds in enumerate(SECTIONS) if kind in kinds), len(SECTIONS))
    place = SECTIONS[section].index(kind) if section < len(SECTIONS) else 0
    return section, place, int(rest[0]) if kind in (*ON_STREAM, "one_shot") else 0


def title(name: str) -> str:
    kind, *rest = name.split("/")
    plain = {
        "copy": "256 MiB by the copy engine, each pair",
        "copy_both": "the same in both directions at once, sum",
        "all_put": "64 MiB put from each to each at once, sum",
        "all_get": "64 MiB got by each from each at once, sum",
    }
    if kind in plain:
        return plain[kind]
    if kind in ON_STREAM:
        return f"{kind.replace('_', '-')} {report.size_name(int(rest[0]))}, on a stream"
    if kind == "one_shot":
        return f"sum {report.size_name(int(rest[0]))}, one-shot kernel"
    return report.title(name)


class Row:
    """What a line says of each library."""

    def __init__(self, name: str, pes: int, unit: str, rows: dict[str, dict], peers: dict):
        self.name = name
        self.pes = pes
        self.unit = unit
        self.rows = rows
        self.peers = peers  #: where ours is compared with another figure

    def cells(self) -> list[str]:
        numbers = [report.number(self.rows.get(library)) for library in LIBRARIES]
        unit = self.unit.replace("us", "µs")
        return [f"{self.name}, {unit}", str(self.pes), *numbers, self._of_peer(), self._of_bare()]

    def _of_peer(self) -> str:
        found = {library: row["median"] for library, row in self.peers.items() if library in PEERS}
        if "mori" not in self.rows or not found:
            return "-"
        best = max if "/s" in self.unit else min
        library = best(found, key=lambda peer: found[peer])
        return f"{self.rows['mori']['median'] / found[library]:.2f} x {LIBRARIES[library]}"

    def _of_bare(self) -> str:
        if "mori" not in self.rows or "bare" not in self.rows:
            return "-"
        return f"{self.rows['mori']['median'] / self.rows['bare']['median']:.2f} x"


def _scaled(rows: dict[str, dict], convert) -> dict[str, dict]:
    return {
        library: {
            "median": convert(row["median"]),
            "values": [convert(value) for value in row["values"]],
        }
        for library, row in rows.items()
    }


def _rows(figures: Figures, name: str, pes: int) -> list[Row]:
    """The figure, and what follows from it."""
    rows = figures.of(name, pes)
    kind, *rest = name.split("/")
    peers = figures.of(f"sum_reduce/{rest[0]}", pes) if kind == "one_shot" else rows
    found = [Row(title(name), pes, next(iter(rows.values()))["unit"], rows, peers)]
    if kind in ("all_put", "all_get"):
        each = _scaled(rows, lambda rate: rate / pes)
        found.append(Row("  of one PE", pes, "GB/s", each, each))
    if kind in (*ON_STREAM, "one_shot") and int(rest[0]) >= LARGE_BYTES:
        size = int(rest[0]) * (pes if kind in ("fcollect", "alltoall") else 1)
        rates = _scaled(rows, lambda us: size / us / 1e3)
        of_peers = _scaled(peers, lambda us: size / us / 1e3)
        found.append(Row("  algorithm bandwidth", pes, "GB/s", rates, of_peers))
    return found


def _block(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["    " + line for line in report.aligned([head, *rows])]


def _pair_blocks(figures: Figures) -> list[str]:
    """Each pair of a figure: who measures by line, towards whom by column."""
    lines = []
    for name, pes in dict.fromkeys(key[:2] for key in figures.pairs):
        unit, rows = "", []
        for library, label in LIBRARIES.items():
            pairs = figures.pairs.get((name, pes, library), {})
            for start in sorted({start for start, _ in pairs}):
                cells = [pairs.get((start, end)) for end in range(pes)]
                numbers = [report.short(cell["median"]) if cell else "-" for cell in cells]
                rows.append([label, str(start), *numbers])
                unit = next(iter(pairs.values()))["unit"].replace("us", "µs")
        head = ["", "from", *(f"to {end}" for end in range(pes))]
        lines += ["", f"{title(name)}, {unit}", *_block(head, rows)]
    return lines


def _own_rates(figures: Figures) -> list[str]:
    """Of all at once, what each PE has for itself."""
    lines = []
    for name, pes in dict.fromkeys(key[:2] for key in figures.rows if key[0].endswith("_of/0")):
        if pes == 2:
            continue
        kind = name.partition("_of/")[0]
        rows = []
        for library, label in LIBRARIES.items():
            own = [figures.rows.get((f"{kind}_of/{pe}", pes, library)) for pe in range(pes)]
            if any(own):
                rows.append([label, *(report.short(row["median"]) if row else "-" for row in own)])
        head = ["", *(f"PE {pe}" for pe in range(pes))]
        lines += ["", f"{title(kind)}: of it each PE's own, GB/s", *_block(head, rows)]
    return lines


def table(results: dict) -> str:
    figures = Figures(results)
    machine = results["machine"]
    where = f"{results['gpus']} x {machine['gpu']}" + (", MPS" if results["mps"] else "")
    text = [
        f"{results['date']}, commit {results['commit']}: {where}, driver {machine['driver']}",
        f"NVSHMEM {machine['nvshmem']}, NCCL {machine['nccl']}, without multicast; "
        f"{machine['nvcc']}",
        f"{results['command']}: {results['repeats']} rounds in turns, {results['seconds']} s; "
        "median (least-most) of rounds, or of pairs",
    ]
    if results["nvshmem_environment"]:
        text.append(f"NVSHMEM with {' '.join(results['nvshmem_environment'])}")
    text += [*results["notes"], *(f"FAILED {failure}" for failure in results["failures"])]
    text += ["", *machine["topology"], "", *machine["nvlink"]]
    lines = [HEADERS]
    section = None
    for name, pes in figures.names_and_sizes():
        if section not in (None, _rank(name)[0]):
            lines.append([""] * len(HEADERS))
        section = _rank(name)[0]
        lines += [row.cells() for row in _rows(figures, name, pes)]
    text += ["", *report.aligned(lines)]
    if results["gpus"] > 2:
        text += [*_pair_blocks(figures), *_own_rates(figures)]
    return "\n".join(text)
