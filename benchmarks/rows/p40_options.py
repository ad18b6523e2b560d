"""P40: what the options of a pool cost its tasks: none, repetitions, a time limit.

The bound: the same task. Repetitions are looked at when a task has failed. A time limit wakes the scheduler's thread
for each call, since it has to wait for the time.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours",)
APPLIED, COUNT, WORKERS = 2000, 50_000, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "retries": {"retries": 2, "retry_on": OSError},
    "timeout": {"timeout": 60.0},
}


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P40.
    """
    lines = []
    for what, work, bounds in (
        (f"Pool({WORKERS}).apply", applied, {"retries": 1.1, "timeout": 2.0}),
        (f"Pool({WORKERS}).map, chunksize 1", mapped, {"retries": 1.1, "timeout": 1.2}),
        (f"Pool({WORKERS}).imap", read, {"retries": 1.1, "timeout": 1.2}),
    ):
        tasks = [Task(name, "ours", work, (name,)) for name in OPTIONS]
        samples = bench.in_turns(f"P40 {what}", tasks, 5, timeout=120)
        line = Line("P40", f"{what} with options and without", samples)
        for name, bound in bounds.items():
            line.claim_ratio(f"{name} / plain", name, "plain", bound)
        lines.append(line)
    return lines


def no_op(_: Any) -> None:
    """Do nothing."""


def applied(stage: Stage, options: str) -> float:
    """Return the seconds for one `apply`, one after the other."""
    with stage.peer.mp.Pool(WORKERS, **OPTIONS[options]) as pool:
        for _ in range(20):
            pool.apply(no_op, (0,))
        start = time.perf_counter()
        for _ in range(APPLIED):
            pool.apply(no_op, (0,))
        return (time.perf_counter() - start) / APPLIED


def mapped(stage: Stage, options: str) -> float:
    """Return the seconds for each of many tasks."""
    with stage.peer.mp.Pool(WORKERS, **OPTIONS[options]) as pool:
        pool.map(no_op, range(1000), chunksize=1)
        start = time.perf_counter()
        pool.map(no_op, range(COUNT), chunksize=1)
        return (time.perf_counter() - start) / COUNT


def read(stage: Stage, options: str) -> float:
    """Return the seconds for each of many results that are read one by one."""
    with stage.peer.mp.Pool(WORKERS, **OPTIONS[options]) as pool:
        pool.map(no_op, range(1000), chunksize=1)
        start = time.perf_counter()
        for _ in pool.imap(no_op, range(COUNT)):
            pass
        return (time.perf_counter() - start) / COUNT
