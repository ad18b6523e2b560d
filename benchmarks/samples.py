"""What was measured: samples with their median and spread, and claims about them that are met or missed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Sample:
    """Repeated measurements of one thing, in seconds unless `unit` says otherwise."""

    values: list[float] = field(default_factory=list)
    unit: str = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and the third quartile: half of all measurements lie between them."""
        ordered = sorted(self.values)
        return ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4 - (len(ordered) > 1)]

    def __str__(self) -> str:
        if not self.values:
            return "-"
        low, high = self.spread
        half = 100 * (high - low) / 2 / self.median if self.median else 0
        return f"{in_words(self.median, self.unit)} ±{half:.0f}%"

    def as_json(self) -> dict[str, object]:
        low, high = self.spread
        return {"unit": self.unit, "median": self.median, "quartiles": [low, high], "n": len(self.values)}


def in_words(value: float, unit: str) -> str:
    """*value* with three figures and the prefix that suits it."""
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms")):
            if value * factor >= 1:
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

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{'met   ' if self.met else 'MISSED'} {self.text}: {self.value:.3g} ({sign} {self.limit:g})"


@dataclass
class Line:
    """One line of the table: what was measured, for whom, and what was claimed about it."""

    row: str
    what: str
    samples: dict[str, Sample]
    claims: list[Claim] = field(default_factory=list)
    note: str = ""

    def claim_ratio(self, text: str, over: str, under: str, limit: float, *, at_least: bool = False) -> None:
        """Claim median(*over*) / median(*under*) when both were measured."""
        a, b = self.samples.get(over), self.samples.get(under)
        if a is not None and b is not None and a.values and b.values and b.median:
            self.claims.append(Claim(text, a.median / b.median, limit, at_least))

    def as_json(self) -> dict[str, object]:
        return {
            "row": self.row,
            "what": self.what,
            "samples": {name: sample.as_json() for name, sample in self.samples.items() if sample.values},
            "claims": [
                {"text": c.text, "value": c.value, "limit": c.limit, "at_least": c.at_least, "met": c.met}
                for c in self.claims
            ],
            "note": self.note,
        }
