"""P28: bytes, texts, `array.array`, which mp-all sends through a block from 64 KiB on; and frames of other libraries.

The bound of bytes: a copy into the block and one out of it, since Python owns the memory of such an object, and the
round trip of an int. The floor makes both copies in one process. A frame, a table or an array of JAX lies in the block:
its bound is one copy. Libraries that are not installed are left out.
"""

from __future__ import annotations

import importlib.util

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
KINDS = ("bytes", "bytearray", "str", "array.array")
FORMATS = {"frame of polars": "polars", "table of Arrow": "pyarrow", "array of JAX": "jax"}
FRAME = 80_000_000  # bytes
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
    for kind, library in FORMATS.items():
        if importlib.util.find_spec(library) is not None:
            tasks = [Task(peer, peer, work.round_trips, (kind, FRAME, 2, 1)) for peer in PEERS]
            tasks.append(Task("floor", "ours", work.copies, (FRAME, 2, 1, 1)))
            line = Line("P28", f"round trip, {kind} of 80 MB", bench.in_turns(f"P28 {kind}", tasks, 7))
            line.claim_ratio("ours / stdlib", "ours", "stdlib", 0.15)
            lines.append(line)
    return lines
