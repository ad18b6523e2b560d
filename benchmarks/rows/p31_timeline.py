"""P31: what a timeline costs: a map of tasks of 1 ms, and an event.

The bound: reading the clock, and writing 56 bytes. An event of a queue has no more; each get and each put is one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line

PEERS = ("ours",)
TASKS, MESSAGES = 400, 20_000


def measure(bench: Bench) -> list[Line]:
    kinds = {"off": False, "timeline": True}
    tasks = [Task(label, "ours", map_of_short_tasks, (recorded,)) for label, recorded in kinds.items()]
    map_line = Line("P31", f"Pool(2).map, {TASKS} tasks of 1 ms", bench.in_turns("P31 map", tasks, 15))
    map_line.claim_ratio("with a timeline / without", "timeline", "off", 1.02)
    tasks = [Task(label, "ours", puts_and_gets, (recorded,)) for label, recorded in kinds.items()]
    line = Line("P31", "put and get in one process: two events", bench.in_turns("P31 event", tasks, 15))
    if all(sample.values for sample in line.samples.values()) and line.samples:
        event = (line.samples["timeline"].median - line.samples["off"].median) / 2
        line.claims.append(Claim("ns for an event", event * 1e9, 150))
    return [map_line, line]


@contextlib.contextmanager
def recorded_if(stage: Stage, recorded: bool) -> Any:
    if not recorded:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, stage.peer.mp.timeline(os.path.join(folder, "run.json")):
        yield


def one_millisecond(number: int) -> int:
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return number


def map_of_short_tasks(stage: Stage, recorded: bool) -> float:
    """Return the seconds of one map."""
    with recorded_if(stage, recorded), stage.context.Pool(2) as pool:
        pool.map(one_millisecond, range(8), chunksize=1)
        start = time.perf_counter()
        pool.map(one_millisecond, range(TASKS), chunksize=1)
        return time.perf_counter() - start


def puts_and_gets(stage: Stage, recorded: bool) -> float:
    """Return the seconds of one put and its get."""
    with recorded_if(stage, recorded):
        queue = stage.context.SimpleQueue()
        put, get = queue.put, queue.get
        start = time.perf_counter()
        for number in range(MESSAGES):
            put(number)
            get()
        return (time.perf_counter() - start) / MESSAGES
