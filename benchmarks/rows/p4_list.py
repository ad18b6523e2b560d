"""P4: a list of 1000 arrays of 1 KiB each, private or shared, is one cheap message.

The bound: pickling and unpickling a thousand objects, and for private ones a megabyte through a 64 KiB pipe
or a thousand small copies.
"""

from __future__ import annotations

import time

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line

PEERS = ("ours", "stdlib", "torch fd", "torch fs")
COUNT = 1000


def measure(bench: Bench) -> list[Line]:
    lines = []
    for what in ("private", "shared"):
        kind = "fresh list of 1024" if what == "private" else "shared list of 1024"
        tasks = [
            Task("ours", "ours", work.round_trips, (kind, COUNT, 5)),
            # It has no shared arrays: its user sends the same list as a copy.
            Task("stdlib", "stdlib", work.round_trips, ("fresh list of 1024", COUNT, 5)),
            Task("torch fd", "torch fd", work.round_trips, (kind, COUNT, 1), 3),
            Task("torch fs", "torch fs", work.round_trips, (kind, COUNT, 1), 3),
            Task("floor", "stdlib", tuples, (COUNT, 5)),
        ]
        samples = bench.in_turns(f"P4 {what}", tasks, 20)
        name = f"round trip, {COUNT} {what} arrays of 1 KiB"
        line = Line("P4", name, samples, note="floor: 1000 small tuples")
        if samples.get("ours") and samples["ours"].values:
            line.claims.append(Claim("ours in ms", samples["ours"].median * 1e3, 2))
        line.claim_ratio("stdlib / ours", "stdlib", "ours", 3, at_least=True)
        line.claim_ratio("torch fd / ours", "torch fd", "ours", 300, at_least=True)
        lines.append(line)
    return lines


def tuples(stage: Stage, count: int, times: int) -> list[float]:
    """Measure the round trip of a list of tuples, each with the position of an array."""
    ask = stage.ask()
    taken = []
    with stage.apart():
        for _ in range(times):
            x = [(1.0, i, (128,), "d", float(i)) for i in range(count)]
            start = time.perf_counter()
            ask(x)
            taken.append(time.perf_counter() - start)
    return taken
