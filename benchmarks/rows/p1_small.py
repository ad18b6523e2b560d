"""P1: never slower than the standard library, from 200 bytes on.

The bound: two wake-ups of a process by a pipe, which an int on the queue needs too, and a few microseconds
of pickle.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.peers import PEERS as ALL
from benchmarks.samples import Line

# P19 measures tensors, and P12 the raw pipe, which keeps only small messages whole.
PEERS = tuple(name for name in ALL if name not in ("torch ours", "raw pipe", "portable"))

SIZES = {"200 B": 200, "4 KiB": 4 << 10, "16 KiB": 16 << 10, "64 KiB": 64 << 10}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, size in SIZES.items():
        tasks = [Task(peer, peer, work.round_trips, ("fresh", size, 20)) for peer in PEERS]
        tasks.append(Task("floor", "ours", work.round_trips, ("int", 0, 20)))
        samples = bench.in_turns(f"P1 {name}", tasks, 25)
        line = Line("P1", f"round trip, fresh {name}", samples, note="floor: an int", nbytes=size)
        line.claim_ratio("ours / stdlib", "ours", "stdlib", 1.1)
        line.claim_ratio("torch fd / ours", "torch fd", "ours", 8, at_least=True)
        lines.append(line)
    return lines
