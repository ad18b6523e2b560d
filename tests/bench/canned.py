"""A small record with every kind of line, for tests that measure nothing."""

from __future__ import annotations

import copy
from typing import Any

from benchmarks import record


def figure(median: float, unit: str = "s", spread: float = 0.1) -> dict[str, Any]:
    return {"unit": unit, "median": median, "quartiles": [median * (1 - spread), median * (1 + spread)], "n": 9}


def line(row: str, what: str, figures: dict[str, Any], nbytes: int | None = None, **claim: Any) -> dict[str, Any]:
    claims = [{"at_least": False, "met": True, **claim}] if claim else []
    return {"row": row, "what": what, "nbytes": nbytes, "figures": figures, "claims": claims, "note": "floor: an int"}


FOUND: dict[str, Any] = {
    "schema": record.SCHEMA,
    "machine": {"CPU": "Abacus", "cores": "2"},
    "run": {"date": "2030-01-01 00:00 UTC", "scale": 1.0, "load before": "0.10", "load after": "0.20", "seconds": {}},
    "peers": {"ours": {"version": "1.0", "how": "ours"}, "stdlib": {"version": "", "how": "theirs"}},
    "missing": {"Ray": "No module named 'ray'; `nox -s bench -- --peers` installs it"},
    "failed": {},
    "lines": [
        line(
            "P1",
            "round trip, fresh 200 B",
            {"ours": figure(70e-6), "stdlib": figure(80e-6), "floor": figure(50e-6)},
            200,
            text="ours / stdlib",
            value=0.875,
            limit=1.1,
        ),
        line("P2", "round trip, fresh 1 MiB", {"ours": figure(200e-6), "stdlib": figure(4e-3)}, 1 << 20),
        line(
            "P5",
            "stream, fresh 1 KiB",
            {"ours": figure(60_000, " /s"), "stdlib": figure(40_000, " /s"), "floor": figure(3e6, " /s")},
            1 << 10,
        ),
        line(
            "P5",
            "stream, fresh 1 MiB",
            {"ours": figure(10e9, "B/s"), "stdlib": figure(0.5e9, "B/s"), "floor": figure(20e9, "B/s")},
            1 << 20,
        ),
        line("P7", "descriptors", {"ours": figure(3, "", 0)}),
    ],
}


def found() -> dict[str, Any]:
    """Return a copy that a test may change."""
    return copy.deepcopy(FOUND)


def scaled(factor: float, *names: str) -> dict[str, Any]:
    """Return the record with every figure of *names* multiplied."""
    changed = found()
    for each in changed["lines"]:
        for name in names:
            if name in each["figures"]:
                one = each["figures"][name]
                one["median"] *= factor
                one["quartiles"] = [quartile * factor for quartile in one["quartiles"]]
    return changed
