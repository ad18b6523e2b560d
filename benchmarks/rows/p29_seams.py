"""P29: fresh arrays at the sizes where the way of sending changes: in the message, in a slab, in a block of its own.

The bound: one memcpy into used memory, and the round trip of an int.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line

PEERS = ("ours",)

# name: bytes, times in a turn, the most that a round trip may cost as a multiple of the bound
SIZES = {
    "4 KiB": (4 << 10, 50, 2.0),
    "8 KiB": (8 << 10, 50, 1.6),
    "16 KiB": (16 << 10, 50, 1.5),
    "64 KiB": (64 << 10, 50, 1.4),
    "1 MiB": (1 << 20, 20, 1.4),
}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, (size, times, limit) in SIZES.items():
        tasks = [
            Task("ours", "ours", work.round_trips, ("fresh", size, times, 1)),
            Task("floor", "ours", work.copies, (size, times, 1)),
        ]
        samples = bench.in_turns(f"P29 {name}", tasks, 15)
        note = "floor: one memcpy, then an int"
        line = Line("P29", f"beside its floor, fresh {name}", samples, note=note, nbytes=size)
        line.claim_ratio("ours / floor", "ours", "floor", limit)
        lines.append(line)
    return lines
