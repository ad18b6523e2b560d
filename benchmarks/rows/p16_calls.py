"""P16: the cost of a task that does nothing: `Pool.map`, `submit` of an executor, the start of a pool.

The bound: a send, a wake-up and a reply for each task; with many tasks at once, a part of that.
"""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
COUNT, SUBMITTED, WORKERS = 100_000, 2000, 2


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P16.
    """
    lines = []
    for what, work, args, target, at_least in (
        (f"Pool({WORKERS}).map of {COUNT:,} no-ops, chunksize 1", no_ops, (1,), 3.0, True),
        (f"Pool({WORKERS}).map of {COUNT:,} no-ops", no_ops, (None,), 1.0, True),
        ("an executor's submit and result", submitted, (), 3.0, True),
        (f"Pool({WORKERS}) under fork, started and ended", started, (), 1 / 0.6, True),
    ):
        samples = bench.in_turns(f"P16 {what}", [Task(peer, peer, work, args) for peer in PEERS], 5, timeout=120)
        line = Line("P16", what, samples)
        line.claim_ratio("stdlib / ours", "stdlib", "ours", target, at_least=at_least)
        lines.append(line)
    return lines


def no_op(_: Any) -> None:
    """Do nothing."""


def no_ops(stage: Stage, chunksize: int | None) -> float:
    """Return the seconds for a map of no-ops, in a pool that has run tasks before."""
    with stage.peer.mp.Pool(WORKERS) as pool:
        pool.map(no_op, range(1000), chunksize=1)
        start = time.perf_counter()
        pool.map(no_op, range(COUNT), chunksize=chunksize)
        return time.perf_counter() - start


def submitted(stage: Stage) -> float:
    """Return the seconds for one submit and its result, one after the other."""
    executor = getattr(stage.peer.mp, "ProcessPoolExecutor", concurrent.futures.ProcessPoolExecutor)
    with executor(WORKERS) as pool:
        pool.submit(no_op, 0).result()
        start = time.perf_counter()
        for number in range(SUBMITTED):
            pool.submit(no_op, number).result()
        return (time.perf_counter() - start) / SUBMITTED


def started(stage: Stage) -> float:
    """Return the seconds to start a pool, run one task and end the pool."""
    start = time.perf_counter()
    with stage.peer.mp.get_context("fork").Pool(WORKERS) as pool:
        pool.apply(no_op, (0,))
    return time.perf_counter() - start
