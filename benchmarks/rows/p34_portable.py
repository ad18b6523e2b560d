"""P34: portable sharing, which macOS and Windows have in the place of libshm, beside the standard library.

The bound: small messages take the same pipe, so they may not be slower. Large ones are copied once, not four times.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.rows.p6_pool import close_pool, pool_map
from benchmarks.samples import Line

PEERS = ("portable", "stdlib")

# name: bytes, times in a turn, turns, how many times as fast
SIZES = {
    "200 B": (200, 20, 30, 1.0),
    "4 KiB": (4 << 10, 20, 30, 1.0),
    "64 KiB": (64 << 10, 20, 30, 1.0),
    "1 MiB": (1 << 20, 5, 20, 3.0),
    "16 MiB": (16 << 20, 2, 15, 8.0),
}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, (size, times, rounds, least) in SIZES.items():
        tasks = [Task(peer, peer, work.round_trips, ("fresh", size, times, 1)) for peer in PEERS]
        samples = bench.in_turns(f"P34 {name}", tasks, rounds)
        line = Line("P34", f"without libshm: round trip, fresh {name}", samples, nbytes=size)
        line.claim_ratio("stdlib / portable", "stdlib", "portable", least, at_least=True)
        lines.append(line)
    tasks = [Task("portable", "portable", pool_map, ()), Task("stdlib", "stdlib", pool_map, (), 3)]
    line = Line(
        "P34", "without libshm: Pool(2).map, 64 results of 16 MiB", bench.in_turns("P34 map", tasks, 5, timeout=300)
    )
    line.claim_ratio("stdlib / portable", "stdlib", "portable", 5, at_least=True)
    for peer in filter(bench.has, PEERS):
        bench.do(peer, close_pool)
    return [*lines, line]
