"""What the library is to reach, and how each figure is drawn from the measured series."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from .figures import Figures, Series, short

PEER = "oshmem"


@dataclass
class Row:
    """One line of the table."""

    id: str
    name: str
    unit: str
    ours: Series | None
    peer: Series | None
    bare: Series | None
    goal: str
    is_reached: bool | None  #: None: not measured
    note: str = ""

    @property
    def over_peer(self) -> float | None:
        return self.ours.median / self.peer.median if self.ours and self.peer else None

    @property
    def over_bare(self) -> float | None:
        return self.ours.median / self.bare.median if self.ours and self.bare else None


def _at_most(series: Series | None, limit: float) -> bool | None:
    return None if series is None else series.median <= limit


def _at_least(series: Series | None, limit: float) -> bool | None:
    return None if series is None else series.median >= limit


def _ratio_at_most(ours: Series | None, bare: Series | None, limit: float) -> bool | None:
    """In turns within one program, so repeat by repeat."""
    if ours is None or bare is None:
        return None
    return paired_ratio(ours, bare) <= limit


def paired_ratio(ours: Series, bare: Series) -> float:
    """Median over the repeats of the ratio within a repeat."""
    return statistics.median(a / b for a, b in zip(ours.values, bare.values))


def _absolute(
    figures: Figures, metric: str, name: str, unit: str, limit: float, bare: str, *, more: bool
) -> Row:
    ours = figures.find("mori", metric)
    check = _at_least if more else _at_most
    return Row(
        metric,
        name,
        unit,
        ours,
        figures.find(PEER, metric),
        figures.find("mori", bare),
        f"{'≥' if more else '≤'} {limit:g} {unit}",
        check(ours, limit),
    )


def _times_bare(
    figures: Figures, metric: str, name: str, unit: str, limit: float, bare: str, pes: int
) -> Row:
    ours = figures.find("mori", metric, pes=pes)
    beside = figures.find("mori", bare, pes=pes)
    row = Row(
        f"{metric}_{pes}" if pes > 2 else metric,
        name,
        unit,
        ours,
        figures.find(PEER, metric, pes=pes),
        beside,
        f"≤ {limit:g} x bare",
        _ratio_at_most(ours, beside, limit),
    )
    if ours and beside:
        row.note = f"{paired_ratio(ours, beside):.2f} x bare"
    return row


@dataclass(frozen=True)
class Share:
    """Bandwidth of a copy beside the best that memcpy does with as many bytes."""

    bytes: int
    variant: str
    share: float
    ours: float
    memcpy: float


def shares(figures: Figures, operation: str) -> list[Share]:
    """For each size and offset: ours over memcpy at its best offset, median of the repeats."""
    beside = figures.select("mori", f"memcpy_for_{operation}")
    best: dict[int, list[float]] = {}
    for key, series in beside.items():
        sofar = best.setdefault(key.bytes, [0.0] * len(series.values))
        best[key.bytes] = [max(pair) for pair in zip(sofar, series.values)]
    result = []
    for key, series in figures.select("mori", f"{operation}_bandwidth").items():
        if key.variant == "as_allocated" or key.bytes not in best:
            continue
        ratios = [ours / memcpy for ours, memcpy in zip(series.values, best[key.bytes])]
        result.append(
            Share(
                key.bytes,
                key.variant,
                statistics.median(ratios),
                series.median,
                statistics.median(best[key.bytes]),
            )
        )
    return result


def _bandwidth(figures: Figures, operation: str) -> Row:
    measured = shares(figures, operation)
    row = Row(
        f"{operation}_bandwidth",
        f"{operation} bandwidth, worst size and offset, of memcpy at its best offset",
        "x",
        None,
        None,
        None,
        "≥ 0.95 x",
        None,
    )
    if not measured:
        return row
    worst = min(measured, key=lambda share: share.share)
    below = sum(share.share < 0.95 for share in measured)
    row.ours = Series([worst.share])
    row.peer = _peer_share(figures, operation)
    row.is_reached = worst.share >= 0.95
    row.note = (
        f"{worst.bytes} B at offset {worst.variant}: {short(worst.ours)} of "
        f"{short(worst.memcpy)} GB/s; {below} of {len(measured)} below"
    )
    return row


def _peer_share(figures: Figures, operation: str) -> Series | None:
    """The peer's worst share of the same memcpy."""
    best = {share.bytes: share.memcpy for share in shares(figures, operation)}
    ratios = [
        series.median / best[key.bytes]
        for key, series in figures.select(PEER, f"{operation}_bandwidth").items()
        if key.bytes in best
    ]
    return Series([min(ratios)]) if ratios else None


def _allocation(figures: Figures) -> list[Row]:
    few = figures.find("mori", "malloc_free", bytes=64, variant="0")
    most = max((int(key.variant) for key in figures.select("mori", "malloc_free")), default=100_000)
    many = figures.find("mori", "malloc_free", bytes=64, variant=str(most))
    peer = figures.find(PEER, "malloc_free", bytes=64)
    flat = None if not few or not many else paired_ratio(many, few) <= 1.5
    return [
        Row(
            "malloc_free",
            "malloc + free, 64 B",
            "us",
            few,
            peer,
            None,
            "≤ 0.8 us",
            _at_most(few, 0.8),
        ),
        Row(
            "malloc_free_many",
            f"malloc + free, 64 B, {most:,} live blocks",
            "us",
            many,
            peer,
            few,
            "flat: ≤ 1.5 x with none",
            flat,
            f"{paired_ratio(many, few):.2f} x with no live block" if few and many else "",
        ),
    ]


def _launch(figures: Figures) -> list[Row]:
    rows = []
    for pes, limit in ((2, 50), (16, 120), (64, 400)):
        ours = figures.find("mori", "launch_to_exit", pes=pes)
        alone = figures.find("mori", "launch_alone", pes=pes)
        rows.append(
            Row(
                f"launch_{pes}",
                f"launch to exit, {pes} PEs",
                "ms",
                ours,
                figures.find(PEER, "launch_to_exit", pes=pes),
                figures.find("machine", "fork_exec", pes=pes),
                f"≤ {limit} ms",
                _at_most(ours, limit),
                f"mori run alone {alone} ms" if alone else "",
            )
        )
    return rows


def _memory(figures: Figures) -> Row:
    ours = figures.find("mori", "rss_beyond_heap", pes=64)
    pss = figures.find("mori", "pss_beyond_heap", pes=64)
    return Row(
        "memory",
        "memory of a PE beyond the heaps, 64 PEs (Rss, largest PE)",
        "KiB",
        ours,
        figures.find(PEER, "rss_beyond_heap", pes=64),
        figures.find("mori", "bare_rss", pes=64),
        "≤ 6,144 KiB",
        _at_most(ours, 6144),
        f"Pss {pss} KiB" if pss else "",
    )


def rows(figures: Figures) -> list[Row]:
    """The table, in order."""
    table = [
        _absolute(
            figures, "put_latency", "put 8 B + quiet", "ns", 6, "bare_store_fence", more=False
        ),
        _absolute(figures, "get_latency", "get 8 B", "ns", 5, "bare_load", more=False),
        _absolute(figures, "fetch_add", "fetch-add, uncontended", "ns", 4, "bare_xadd", more=False),
        _absolute(
            figures, "put_nbi_rate", "put_nbi 8 B rate", "Mops", 500, "bare_store_rate", more=True
        ),
        _bandwidth(figures, "put"),
        _bandwidth(figures, "get"),
        _times_bare(
            figures, "wait_until_one_way", "p + wait_until, one way", "ns", 1.3, "bare_signal", 2
        ),
        _times_bare(
            figures, "put_signal_one_way", "put-with-signal, one way", "ns", 1.3, "bare_signal", 2
        ),
        _times_bare(figures, "barrier", "barrier_all, 2 PEs", "us", 1.3, "bare_barrier_spin", 2),
    ]
    for pes in (4, 8, 16, 64):
        name = f"barrier_all, {pes} PEs"
        table.append(_times_bare(figures, "barrier", name, "us", 1.2, "bare_barrier_yield", pes))
    table += _allocation(figures)
    table += _launch(figures)
    table.append(_memory(figures))
    return table
