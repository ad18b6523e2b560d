"""P13: a stream of small messages through a `Queue(1000)`, from the first put to the last touch.

The bound is pickle on both sides. The standard queue also wakes its feeder thread for each message.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.rows.p12_channel import NOTE
from benchmarks.samples import Line, Sample

PEERS = ("ours", "stdlib", "faster-fifo", "iceoryx2")
COUNT = 5000
PLACES = 1000


def measure(bench: Bench) -> list[Line]:
    lines = []
    for what, size, limit in (("ints", 0, 5), ("fresh 1 KiB", 1024, 4)):
        tasks = [Task(peer, peer, stream, (size,)) for peer in PEERS]
        taken = bench.in_turns(f"P13 {what}", tasks, 9)
        samples = {label: Sample([COUNT / t for t in sample.values], " /s") for label, sample in taken.items()}
        line = Line("P13", f"stream through Queue(1000), {what}", samples, note=NOTE)
        line.claim_ratio("ours / stdlib", "ours", "stdlib", limit, at_least=True)
        for peer in ("faster-fifo", "iceoryx2"):
            line.claim_ratio(f"ours / {peer}", "ours", peer, 1, at_least=True)
        lines.append(line)
    return lines


def stream(stage: Stage, size: int) -> float:
    """Return the seconds for `COUNT` messages: ints, or fresh arrays of *size* bytes."""
    fresh = stage.peer.fresh
    queue = stage.peer.queue(stage, size or 8, PLACES)
    return work.seconds_through(stage, queue, lambda k: fresh(size) if size else k, COUNT)
