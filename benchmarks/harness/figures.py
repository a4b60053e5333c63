"""Figures: what the programs print, and what is made of their repeats."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Key:
    """What was measured."""

    library: str
    metric: str
    bytes: int
    pes: int
    variant: str
    unit: str


@dataclass
class Series:
    """One figure over the repeats: the median of each run, and the best batch of each."""

    values: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return short(self.median)
        return f"{short(self.median)} ({short(min(self.values))}-{short(max(self.values))})"


def short(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def parse(text: str) -> Iterable[tuple[Key, float, float]]:
    """The FIG lines of a program's output."""
    for line in text.splitlines():
        _, mark, rest = line.partition("FIG library=")
        if not mark:
            continue
        words = dict(word.split("=", 1) for word in ("library=" + rest).split())
        key = Key(
            words["library"],
            words["metric"],
            int(words["bytes"]),
            int(words["pes"]),
            words["variant"],
            words["unit"],
        )
        yield key, float(words["value"]), float(words["best"])


class Figures:
    """All figures of a run."""

    def __init__(self) -> None:
        self.series: dict[Key, Series] = {}

    def add(self, key: Key, value: float, best: float) -> None:
        series = self.series.setdefault(key, Series())
        series.values.append(value)
        series.best.append(best)

    def find(
        self,
        library: str,
        metric: str,
        *,
        bytes: int | None = None,
        pes: int | None = None,
        variant: str | None = None,
    ) -> Series | None:
        """The first figure that matches; None if it was not measured."""
        for key, series in self.series.items():
            if (key.library, key.metric) != (library, metric):
                continue
            wanted = (bytes, pes, variant)
            has = (key.bytes, key.pes, key.variant)
            if all(want in (None, value) for want, value in zip(wanted, has)):
                return series
        return None

    def select(self, library: str, metric: str) -> dict[Key, Series]:
        return {
            key: series
            for key, series in self.series.items()
            if (key.library, key.metric) == (library, metric)
        }

    def to_json(self) -> list[dict[str, object]]:
        rows = []
        for key, series in self.series.items():
            row: dict[str, object] = dict(vars(key))
            row["median"] = series.median
            row["values"] = series.values
            row["best"] = series.best
            rows.append(row)
        return rows

    @classmethod
    def from_json(cls, rows: Iterable[dict]) -> Figures:
        figures = cls()
        names = ("library", "metric", "bytes", "pes", "variant", "unit")
        for row in rows:
            key = Key(*(row[name] for name in names))
            figures.series[key] = Series(list(row["values"]), list(row["best"]))
        return figures
