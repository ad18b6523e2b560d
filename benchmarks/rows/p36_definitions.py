"""P36: a function without a name, as of a notebook or a lambda, beside the same function in a file.

The bound: the same task, since the definition is at the worker; to look whether it has changed takes a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours",)
APPLIED, COUNT, WORKERS = 2000, 50_000, 2


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P36.
    """
    lines = []
    for what, work in (
        (f"Pool({WORKERS}).apply", applied),
        (f"Pool({WORKERS}).map, chunksize 1", mapped),
    ):
        tasks = [Task(name, "ours", work, (name == "lambda",)) for name in ("lambda", "file")]
        samples = bench.in_turns(f"P36 {what}", tasks, 5, timeout=120)
        line = Line("P36", f"{what} of a lambda and of a function in a file", samples)
        line.claim_ratio("lambda / file", "lambda", "file", 1.2)
        lines.append(line)
    return lines


def no_op(_: Any) -> None:
    """Do nothing."""


def function(without_name: bool) -> Callable[[Any], None]:
    """Return the function that does nothing, or one like it without a name."""
    return (lambda _: None) if without_name else no_op


def applied(stage: Stage, without_name: bool) -> float:
    """Return the seconds for one `apply`, one after the other."""
    called = function(without_name)
    with stage.peer.mp.Pool(WORKERS) as pool:
        for _ in range(20):
            pool.apply(called, (0,))
        start = time.perf_counter()
        for _ in range(APPLIED):
            pool.apply(called, (0,))
        return (time.perf_counter() - start) / APPLIED


def mapped(stage: Stage, without_name: bool) -> float:
    """Return the seconds for each of many tasks."""
    called = function(without_name)
    with stage.peer.mp.Pool(WORKERS) as pool:
        pool.map(called, range(1000), chunksize=1)
        start = time.perf_counter()
        pool.map(called, range(COUNT), chunksize=1)
        return (time.perf_counter() - start) / COUNT
