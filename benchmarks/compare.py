"""Compare two runs: `python -m benchmarks.compare NEW.json [OLD.json]`; the old one is docs/performance.json.

A ratio compares now with before; above 1 is worse. A machine has faster and slower hours, which affect the
yardstick of the same line (its floor, or else the standard library) too: *net* is our ratio divided by its ratio.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import record, table
from benchmarks.samples import Entry, Figure


@dataclass(frozen=True)
class Change:
    """The change of our figure in one line."""

    entry: Entry
    before: Figure
    now: Figure
    yardstick: str
    """`floor`, `stdlib`, or empty."""
    yardstick_ratio: float

    @property
    def ratio(self) -> float:
        return worse(self.now.median, self.before.median, self.now.rate)

    @property
    def spread(self) -> tuple[float, float]:
        """The best and the worst ratio, from quartile to quartile."""
        best, worst = (self.now.low, self.before.high), (self.now.high, self.before.low)
        if self.now.rate:
            best, worst = (self.now.high, self.before.low), (self.now.low, self.before.high)
        return worse(*best, self.now.rate), worse(*worst, self.now.rate)

    @property
    def net(self) -> float:
        return self.ratio / self.yardstick_ratio


def worse(now: float, before: float, rate: bool) -> float:
    """Return the ratio of *now* to *before*, above 1 if it is worse."""
    above, below = (before, now) if rate else (now, before)
    return above / below if below else (math.inf if above else 1.0)


def changes(new: record.Record, old: record.Record) -> list[Change]:
    """Return a change for each line that both have measured for mp-all."""
    found = []
    for entry in new.entries:
        was = old.find(entry.what)
        if was is None or "ours" not in entry.figures or "ours" not in was.figures:
            continue
        both = [name for name in ("floor", "stdlib") if name in entry.figures and name in was.figures]
        yardstick, ratio = "", 1.0
        if both:
            yardstick = both[0]
            now, before = entry.figures[yardstick], was.figures[yardstick]
            ratio = worse(now.median, before.median, now.rate)
        found.append(Change(entry, was.figures["ours"], entry.figures["ours"], yardstick, ratio))
    return found


def report(new: record.Record, old: record.Record) -> str:
    """Return the changes as a table, and the lines that only one run has measured."""
    rows = []
    for change in changes(new, old):
        low, high = change.spread
        rows.append(
            [
                change.entry.row,
                change.entry.what,
                str(change.before),
                str(change.now),
                f"{change.ratio:.2f} ({low:.2f} to {high:.2f})",
                f"{change.yardstick} {change.yardstick_ratio:.2f}" if change.yardstick else "-",
                f"{change.net:.2f}",
            ]
        )
    heading = ["", "", "before", "now", "now / before", "yardstick", "net"]
    text = [table.markdown(heading, rows), "", f"before: {table.where(old)}", f"now:    {table.where(new)}"]
    if old.machine.get("CPU") != new.machine.get("CPU"):
        text.append("another processor: compare only the net ratios")
    for which, one, other in (("before", old, new), ("now", new, old)):
        only = [entry.what for entry in one.entries if other.find(entry.what) is None]
        text += [f"only {which}: {what}" for what in only]
    return "\n".join(text)


def too_slow(new: record.Record, old: record.Record, limit: float) -> list[str]:
    """Return a sentence for each line whose net ratio is above *limit*."""
    return [f"{c.entry.what}: {c.net:.2f} > {limit:g}" for c in changes(new, old) if c.net > limit]


def show(new: record.Record, old: record.Record, limit: float | None) -> int:
    """Print the report, and return the exit status: 1 if a ratio is above the limit."""
    print(report(new, old))
    slow = too_slow(new, old, limit) if limit is not None else []
    print(*(f"too slow: {line}" for line in slow), sep="\n")
    return 1 if slow else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="Compare two runs.")
    parser.add_argument("new", type=Path)
    parser.add_argument("old", type=Path, nargs="?", default=record.SHOWN)
    parser.add_argument("--fail-above", type=float, metavar="RATIO", help="exit with 1 when a net ratio is above it")
    options = parser.parse_args()
    return show(record.read(options.new), record.read(options.old), options.fail_above)


if __name__ == "__main__":
    sys.exit(main())
