"""P5: a stream of fresh arrays through a `Queue(8)`.

The bound for large arrays is memcpy; for small ones it is the feeder thread of `multiprocessing.Queue`, which
takes the interpreter's lock in turns with the thread that puts.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line, Sample

PEERS = ("ours", "stdlib", "torch fd", "torch fs", "iceoryx2", "faster-fifo")
SIZES = {"1 KiB": (1 << 10, 4000), "64 KiB": (64 << 10, 2000), "1 MiB": (1 << 20, 200), "16 MiB": (16 << 20, 24)}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, (size, count) in SIZES.items():
        counts = {peer: fewer(count, size) if peer.startswith("torch") else count for peer in PEERS}
        tasks = [
            Task(peer, peer, work.stream, (size, counts[peer]), rounds(peer, size), warm=not peer.startswith("torch"))
            for peer in PEERS
        ]
        tasks.append(Task("floor", "ours", work.copy_stream, (size, count)))
        taken = bench.in_turns(f"P5 {name}", tasks, 7, timeout=60)
        large = size >= 1 << 20
        samples = {}
        for label, sample in taken.items():
            each = counts.get(label, count) * (size if large else 1)
            samples[label] = Sample([each / t for t in sample.values], "B/s" if large else " /s")
        line = Line("P5", f"stream, fresh {name}", samples, note="floor: copies alone", nbytes=size)
        if name == "1 MiB":
            line.claim_ratio("ours / memcpy", "ours", "floor", 0.5, at_least=True)
        if not large:
            line.claim_ratio("ours / stdlib", "ours", "stdlib", 1, at_least=True)
        lines.append(line)
    return lines


def fewer(count: int, size: int) -> int:
    """Return a count that torch can do in the time: each small array costs it a millisecond."""
    return count // (40 if size < 64 << 10 else 10 if size < 1 << 20 else 1)


def rounds(peer: str, size: int) -> int | None:
    """Return fewer rounds for torch, which must be imported, and for large arrays through a pipe or a ring."""
    return 3 if peer.startswith("torch") or (size > 1 << 20 and peer in ("stdlib", "faster-fifo")) else None
