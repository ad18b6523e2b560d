"""Samples with their median and spread, and claims about them that are met or missed."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """The summary of a sample: its median, and the quartiles around half of all measurements."""

    median: float
    low: float
    high: float
    n: int
    unit: str = "s"

    def __str__(self) -> str:
        half = 100 * (self.high - self.low) / 2 / self.median if self.median else 0
        return f"{in_words(self.median, self.unit)} ±{half:.0f}%"

    @property
    def rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")

    def as_json(self) -> dict[str, object]:
        return {"unit": self.unit, "median": self.median, "quartiles": [self.low, self.high], "n": self.n}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figure:
        low, high = found["quartiles"]
        return cls(found["median"], low, high, found["n"], found["unit"])


@dataclass
class Sample:
    """Repeated measurements of one thing, in seconds unless `unit` says otherwise."""

    values: list[float] = field(default_factory=list)
    unit: str = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def figure(self) -> Figure:
        """The summary of a sample that is not empty."""
        ordered = sorted(self.values)
        low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
        return Figure(self.median, low, high, len(ordered), self.unit)

    def __str__(self) -> str:
        return str(self.figure) if self.values else "-"


def in_words(value: float, unit: str) -> str:
    """Return *value* with three figures and a suitable prefix."""
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms")):
            if float(f"{value * factor:.3g}") >= 1:  # as it will be written: 999.6 µs is 1 ms
                return f"{value * factor:.3g} {name}"
        return f"{value * 1e6:.3g} µs"
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "B":
        return f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value:.0f} B"
    return f"{value:,.0f}{unit}"


@dataclass
class Claim:
    """A target: *value* must be at most, or at least, *limit*."""

    text: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def target(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'} {self.text}: {self.value:.3g} ({self.target})"


@dataclass
class Line:
    """One line of the table: its samples by peer, and its claims."""

    row: str
    what: str
    samples: dict[str, Sample]
    claims: list[Claim] = field(default_factory=list)
    note: str = ""
    nbytes: int | None = None
    """The size of the arrays, if the row measures several sizes."""

    def claim_ratio(self, text: str, over: str, under: str, limit: float, *, at_least: bool = False) -> None:
        """Claim median(*over*) / median(*under*) when both were measured."""
        a, b = self.samples.get(over), self.samples.get(under)
        if a is not None and b is not None and a.values and b.values and b.median:
            self.claims.append(Claim(text, a.median / b.median, limit, at_least))

    def as_json(self) -> dict[str, object]:
        return {
            "row": self.row,
            "what": self.what,
            "nbytes": self.nbytes,
            "figures": {name: sample.figure.as_json() for name, sample in self.samples.items() if sample.values},
            "claims": [{**asdict(claim), "met": claim.met} for claim in self.claims],
            "note": self.note,
        }


@dataclass(frozen=True)
class Entry:
    """A recorded line."""

    row: str
    what: str
    nbytes: int | None
    figures: dict[str, Figure]
    claims: list[Claim]
    note: str

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Entry:
        figures = {name: Figure.from_json(figure) for name, figure in found["figures"].items()}
        claims = [Claim(c["text"], c["value"], c["limit"], c["at_least"]) for c in found["claims"]]
        return cls(found["row"], found["what"], found["nbytes"], figures, claims, found["note"])
