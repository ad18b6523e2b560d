"""P3: a shared array costs the same at any size.

The bound: the round trip of an int, since only a handle travels.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line

PEERS = ("ours", "stdlib", "torch fd", "torch fs")
MIB = 1 << 20


def measure(bench: Bench) -> list[Line]:
    sharing = ("ours", "torch fd", "torch fs")
    tasks = [Task(peer, peer, work.round_trips, ("shared", MIB, 20)) for peer in sharing]
    tasks.append(Task("stdlib", "stdlib", work.round_trips, ("shared", MIB, 1), 10))
    tasks.append(Task("floor", "ours", work.round_trips, ("int", 0, 20)))
    # Each size has its own turns, since one message is kept at a time.
    small = bench.in_turns("P3 1 MiB", tasks, 25)
    large = bench.in_turns(
        "P3 4 GiB",
        [
            Task("ours", "ours", work.round_trips, ("shared", 4096 * MIB, 20)),
            Task("ours, 1 MiB", "ours", work.round_trips, ("shared", MIB, 20)),
            Task("floor", "ours", work.round_trips, ("int", 0, 20)),
        ],
        25,
    )
    if bench.has("ours"):
        bench.do("ours", work.forget)
    first = Line("P3", "round trip, shared 1 MiB", small, note="floor: an int; stdlib copies")
    first.claim_ratio("ours / floor", "ours", "floor", 1.3)
    first.claim_ratio("torch fd / ours", "torch fd", "ours", 5, at_least=True)
    first.claim_ratio("torch fs / ours", "torch fs", "ours", 5, at_least=True)
    second = Line("P3", "round trip, shared 4 GiB", large, note="floor: an int")
    second.claim_ratio("ours / ours at 1 MiB", "ours", "ours, 1 MiB", 1.2)
    large.pop("ours, 1 MiB", None)
    return [first, second]
