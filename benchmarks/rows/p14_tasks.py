"""P14: many tiny tasks, a list of many small arrays, and a stream of arrays of a mebibyte.

The bounds: a send and a reply for each task, or for several at once; pickle's work for a thousand objects; memcpy.
"""

from __future__ import annotations

import time

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours", "stdlib")
TASKS, ARRAYS = 200_000, 1000
STREAM = 1 << 20, 200  # bytes, arrays


def measure(bench: Bench) -> list[Line]:
    samples = bench.in_turns("P14 tasks", [Task(peer, peer, many_tasks, ()) for peer in PEERS], 5, timeout=120)
    tasks = Line("P14", f"a task of Pool(2).map(abs, range({TASKS:,}), chunksize=1)", samples)
    tasks.claim_ratio("stdlib / ours", "stdlib", "ours", 3, at_least=True)
    lines = [tasks]
    for what in ("private", "shared"):
        # The standard library has no shared arrays: its user sends the same list as a copy.
        kinds = {"ours": f"{'fresh' if what == 'private' else 'shared'} list of 1024", "stdlib": "fresh list of 1024"}
        samples = bench.in_turns(
            f"P14 {what}", [Task(peer, peer, work.round_trips, (kinds[peer], ARRAYS, 5)) for peer in PEERS], 15
        )
        line = Line("P14", f"round trip, a list of {ARRAYS} {what} arrays of 1 KiB", samples)
        if samples.get("ours") and samples["ours"].values:
            line.claims.append(Claim("ours in ms", samples["ours"].median * 1e3, 1))
        lines.append(line)
    stream = [Task(peer, peer, work.stream, STREAM) for peer in PEERS] + [
        Task("floor", "ours", work.copy_stream, STREAM)
    ]
    taken = bench.in_turns("P14 stream", stream, 9, timeout=60)
    nbytes = STREAM[0] * STREAM[1]
    samples = {label: Sample([nbytes / t for t in sample.values], "B/s") for label, sample in taken.items()}
    line = Line("P14", "stream through Queue(8), fresh 1 MiB", samples, note="floor: copies alone", nbytes=STREAM[0])
    line.claim_ratio("ours / memcpy", "ours", "floor", 0.6, at_least=True)
    return [*lines, line]


def many_tasks(stage: Stage) -> float:
    """Return the seconds for each of many tasks, in a pool that has run tasks before."""
    with stage.context.Pool(2) as pool:
        pool.map(abs, range(1000), chunksize=1)
        start = time.perf_counter()
        pool.map(abs, range(TASKS), chunksize=1)
        return (time.perf_counter() - start) / TASKS
