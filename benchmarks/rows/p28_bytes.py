"""P28: bytes, bytearrays and texts, which mp-all sends through a block from 64 KiB on.

The bound: a copy into the block and one out of it, since Python owns the memory of such an object, and the round trip
of an int. The floor makes both copies in one process.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
KINDS = ("bytes", "bytearray", "str")
SIZES = {"64 KiB": (64 << 10, 20), "1 MiB": (1 << 20, 10), "10 MiB": (10 << 20, 3)}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, (size, times) in SIZES.items():
        for kind in KINDS:
            tasks = [Task(peer, peer, work.round_trips, (kind, size, times, 1)) for peer in PEERS]
            tasks.append(Task("floor", "ours", work.copies, (size, times, 1, 2)))
            samples = bench.in_turns(f"P28 {name} of {kind}", tasks, 11)
            line = Line("P28", f"round trip, {name} of {kind}", samples, note="floor: two memcpys, then an int")
            line.claim_ratio("ours / stdlib", "ours", "stdlib", 0.15)
            line.claim_ratio("ours / floor", "ours", "floor", 3.0)
            lines.append(line)
    return lines
