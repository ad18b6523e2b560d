"""P12: a round trip of a small message on two `SimpleQueue`s, each process on its own core, and both on one.

mp-all carries it through a ring in shared memory; with `MP_CHANNEL=0` it goes through a pipe. The bound on two cores is
pickle and the interpreter; on one core it is the switch from one process to the other.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.peers import Courier
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
NOTE = "with ordinary pipes (MP_CHANNEL=0)" if os.environ.get("MP_CHANNEL") == "0" else ""


def measure(bench: Bench) -> list[Line]:
    lines = []
    for what, kind, size, limit in (("an int", "int", 0, 0.2), ("fresh 200 B", "fresh", 200, 0.25)):
        tasks = [Task(peer, peer, work.round_trips, (kind, size, 200)) for peer in PEERS]
        samples = bench.in_turns(f"P12 {what}", tasks, 15)
        line = Line("P12", f"round trip, {what}", samples, note=NOTE)
        line.claim_ratio("ours / stdlib", "ours", "stdlib", limit)
        lines.append(line)
    samples = bench.in_turns("P12 one core", [Task(peer, peer, on_one_core, (500,)) for peer in PEERS], 15)
    line = Line("P12", "round trip, an int, on one core", samples, note=NOTE)
    line.claim_ratio("ours / stdlib", "ours", "stdlib", 1.1)
    return [*lines, line]


def on_one_core(stage: Stage, times: int) -> float:
    """Return the seconds of a round trip between two processes on the first core."""
    to, back = stage.context.SimpleQueue(), stage.context.SimpleQueue()
    core = {min(os.sched_getaffinity(0))}
    child = stage.start(answer, to, back, stage.peer.courier(), core)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    try:
        back.get()
        start = time.perf_counter()
        for _ in range(times):
            to.put(1)
            back.get()
        taken = (time.perf_counter() - start) / times
    finally:
        os.sched_setaffinity(0, before)
    to.put(None)
    child.join(30)
    return taken


def answer(to: Any, back: Any, courier: Courier, core: set[int]) -> None:
    """Answer each message until None, on one core."""
    os.sched_setaffinity(0, core)
    back.put(0)
    while (message := to.get()) is not None:
        back.put(courier.touch(message))
