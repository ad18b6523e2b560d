"""P5: a stream of fresh arrays through a `Queue(8)`.

The limit for large ones is memcpy; for small ones it is the feeder thread of `multiprocessing.Queue`, which
takes the interpreter's lock in turns with the thread that puts.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line, Sample

SIZES = {"1 MiB": (1 << 20, 200), "1 KiB": (1 << 10, 4000)}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, (size, count) in SIZES.items():
        slow = 40 if size < 1 << 20 else 1  # torch would take minutes for as many small ones
        tasks = [
            Task("ours", "ours", work.stream, (size, count)),
            Task("stdlib", "stdlib", work.stream, (size, count)),
            Task("torch fd", "torch fd", work.stream, (size, count // slow), 3),
            Task("torch fs", "torch fs", work.stream, (size, count // slow), 3),
            Task("floor", "ours", work.copy_stream, (size, count)),
        ]
        taken = bench.in_turns(f"P5 {name}", tasks, 7)
        samples = {}
        for label, sample in taken.items():
            n = count // slow if label.startswith("torch") else count
            each = size if size >= 1 << 20 else 1
            samples[label] = Sample([n * each / t for t in sample.values], "B/s" if each > 1 else " /s")
        line = Line("P5", f"stream, fresh {name}", samples, note="floor: copies alone")
        if size >= 1 << 20:
            line.claim_ratio("ours / memcpy", "ours", "floor", 0.5, at_least=True)
        else:
            line.claim_ratio("ours / stdlib", "ours", "stdlib", 1, at_least=True)
        lines.append(line)
    return lines
