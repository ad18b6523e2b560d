"""P2: one copy and no more, from 1 MiB to 128 MiB.

The bound: one memcpy of a fresh array into used memory, and the round trip of an int.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.peers import PEERS as ALL
from benchmarks.samples import Line

# P19 measures tensors, and P12 the raw pipe, which keeps only small messages whole.
PEERS = tuple(name for name in ALL if name not in ("torch ours", "raw pipe", "portable"))

# name: bytes, times in a turn, turns, turns of the slow ones
SIZES = {"1 MiB": (1 << 20, 5, 20, 10), "16 MiB": (16 << 20, 2, 15, 5), "128 MiB": (128 << 20, 1, 8, 3)}


def measure(bench: Bench) -> list[Line]:
    lines = []
    for name, (size, times, rounds, few) in SIZES.items():
        tasks = [
            Task(peer, peer, work.round_trips, ("fresh", size, 1 if ALL[peer].slow else times, 1), few_or_all)
            for peer in PEERS
            for few_or_all in [few if ALL[peer].slow else rounds]
        ]
        tasks.append(Task("floor", "stdlib", work.copies, (size, times, 1)))
        samples = bench.in_turns(f"P2 {name}", tasks, rounds)
        line = Line("P2", f"round trip, fresh {name}", samples, note="floor: one memcpy, then an int", nbytes=size)
        line.claim_ratio("ours / floor", "ours", "floor", 1.3)
        line.claim_ratio("ours / by hand", "ours", "by hand", 1.2)
        if name == "16 MiB":
            line.claim_ratio("stdlib / ours", "stdlib", "ours", 20, at_least=True)
            line.claim_ratio("torch fd / ours", "torch fd", "ours", 20, at_least=True)
        lines.append(line)
    return lines
