"""P26: the time to make a queue, a simple queue or a pipe, and to close it.

The bound is the kernel: a pipe, and memory for a ring. The standard library makes a file for each lock of a queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
COUNT = 300


def measure(bench: Bench) -> list[Line]:
    lines = []
    for what in ("Queue", "SimpleQueue", "Pipe"):
        tasks = [Task(peer, peer, made, (what,)) for peer in PEERS]
        line = Line("P26", f"{what}(), made and closed", bench.in_turns(f"P26 {what}", tasks, 9))
        line.claim_ratio("ours / stdlib", "ours", "stdlib", 1.0)
        lines.append(line)
    return lines


def made(stage: Stage, what: str) -> float:
    """Return the seconds to make and close one."""
    make: Callable[[], Any] = getattr(stage.peer.mp, what)
    start = time.perf_counter()
    for _ in range(COUNT):
        one = make()
        for end in one if isinstance(one, tuple) else (one,):
            end.close()
    return (time.perf_counter() - start) / COUNT
