"""P16: the cost of a task that does nothing: `Pool.map`, `submit` of an executor, the start of a pool.

Also beside two busy processes for each core, where whoever spins or sleeps too often loses its turn.

The bound: a send, a wake-up and a reply for each task; with many tasks at once, a part of that.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Task
from benchmarks.comparison.libraries import LIBRARIES, Library
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours", "stdlib", "joblib", "mpire", "pebble")
COUNT, FEWER, SUBMITTED, WORKERS = 100_000, 3000, 2000, 2


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P16.
    """
    lines = []
    beside = "beside two busy processes per core"
    for what, work, args, target, peers in (
        (f"a no-op of Pool({WORKERS}).map, chunksize 1", no_ops, (1,), 3.0, PEERS),
        (f"a no-op of Pool({WORKERS}).map", no_ops, (None,), 1 / 0.9, PEERS[:2]),
        (f"a no-op of Pool({WORKERS}).map, {beside}", no_ops, (None, 2), 1 / 1.1, PEERS[:2]),
        ("a no-op of imap_unordered, chunksize 50", unordered, (), 1 / 0.9, PEERS[:2]),
        (f"a no-op of imap_unordered, chunksize 50, {beside}", unordered, (2,), 1 / 1.1, PEERS[:2]),
        (f"Pool({WORKERS}).apply of a no-op", applied, (), 1 / 0.15, PEERS[:2]),
        (f"Pool({WORKERS}).apply to an array of 16 MiB", applied, (16 << 20,), 10.0, PEERS[:2]),
        (f"a no-op of Pool({WORKERS}).imap", one_by_one, (), 10.0, PEERS[:2]),
        ("an executor's submit and result", submitted, (), 3.0, PEERS),
        ("a no-op of an executor's map of 2000, chunksize 1", mapped, (), 10.0, PEERS[:2]),
        (f"Pool({WORKERS}) under fork, started and ended", started, (), 1 / 0.6, PEERS[:2]),
    ):
        tasks = [Task(peer, peer, work, args, rounds=None if peer in PEERS[:2] else 3) for peer in peers]
        samples = bench.in_turns(f"P16 {what}", tasks, 5, timeout=120)
        line = Line("P16", what, samples)
        line.claim_ratio("stdlib / ours", "stdlib", "ours", target, at_least=True)
        lines.append(line)
    return lines


def no_op(_: Any) -> None:
    """Do nothing."""


@contextmanager
def busy_processes(per_core: int) -> Iterator[None]:
    """Keep so many processes busy for each core."""
    count = per_core * len(os.sched_getaffinity(0))
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def no_ops(stage: Stage, chunksize: int | None, busy: int = 0) -> float:
    """Return the seconds for each of many no-ops, in a pool that has run tasks before; others run fewer."""
    if stage.peer.name in PEERS[2:]:
        library, map_ = other(stage.peer.name)
        map_(1)
        start = time.perf_counter()
        map_(FEWER)
        taken = time.perf_counter() - start
        library.close()
        return taken / FEWER
    with stage.peer.mp.Pool(WORKERS) as pool, busy_processes(busy):
        pool.map(no_op, range(1000), chunksize=1)
        start = time.perf_counter()
        pool.map(no_op, range(COUNT), chunksize=chunksize)
        return (time.perf_counter() - start) / COUNT


def applied(stage: Stage, nbytes: int = 0) -> float:
    """Return the seconds for one `apply`, one after the other, without or with an array of so many bytes."""
    argument, count = (np.ones(nbytes, np.uint8), 20) if nbytes else (0, SUBMITTED)
    with stage.peer.mp.Pool(WORKERS) as pool:
        for _ in range(10):
            pool.apply(no_op, (argument,))
        start = time.perf_counter()
        for _ in range(count):
            pool.apply(no_op, (argument,))
        return (time.perf_counter() - start) / count


def one_by_one(stage: Stage) -> float:
    """Return the seconds for each of 2000 no-ops whose results come in their order."""
    with stage.peer.mp.Pool(WORKERS) as pool:
        pool.map(no_op, range(1000), chunksize=1)
        start = time.perf_counter()
        for _ in pool.imap(no_op, range(2000)):
            pass
        return (time.perf_counter() - start) / 2000


def unordered(stage: Stage, busy: int = 0) -> float:
    """Return the seconds for each of many no-ops whose results come in chunks, in any order."""
    with stage.peer.mp.Pool(WORKERS) as pool, busy_processes(busy):
        pool.map(no_op, range(1000), chunksize=1)
        start = time.perf_counter()
        for _ in pool.imap_unordered(no_op, range(COUNT), 50):
            pass
        return (time.perf_counter() - start) / COUNT


def submitted(stage: Stage) -> float:
    """Return the seconds for one submit and its result, one after the other."""
    if stage.peer.name in PEERS[2:]:
        library, _ = other(stage.peer.name)
        library.submit(no_op, 0)(60)
        start = time.perf_counter()
        for number in range(SUBMITTED // 10):
            library.submit(no_op, number)(60)
        taken = time.perf_counter() - start
        library.close()
        return taken / (SUBMITTED // 10)
    executor = getattr(stage.peer.mp, "ProcessPoolExecutor", concurrent.futures.ProcessPoolExecutor)
    with executor(WORKERS) as pool:
        pool.submit(no_op, 0).result()
        start = time.perf_counter()
        for number in range(SUBMITTED):
            pool.submit(no_op, number).result()
        return (time.perf_counter() - start) / SUBMITTED


def mapped(stage: Stage) -> float:
    """Return the seconds for each of 2000 no-ops of an executor's map, in an executor that has run tasks before."""
    executor = getattr(stage.peer.mp, "ProcessPoolExecutor", concurrent.futures.ProcessPoolExecutor)
    with executor(WORKERS) as pool:
        list(pool.map(no_op, range(100)))
        start = time.perf_counter()
        list(pool.map(no_op, range(SUBMITTED)))
        return (time.perf_counter() - start) / SUBMITTED


def other(name: str) -> tuple[Library, Callable[[int], object]]:
    """Start the pool of another library; return it, and its map of so many no-ops, one for each task."""
    library = LIBRARIES["loky" if name == "joblib" else name]()
    pool: Any = library.pool  # type: ignore[attr-defined]
    if name == "joblib":
        return library, lambda count: list(pool.map(no_op, range(count), chunksize=1))
    if name == "mpire":
        return library, lambda count: pool.map(no_op, range(count), chunk_size=1)
    return library, lambda count: list(pool.map(no_op, range(count), chunksize=1).result())


def started(stage: Stage) -> float:
    """Return the seconds to start a pool, run one task and end the pool."""
    start = time.perf_counter()
    with stage.peer.mp.get_context("fork").Pool(WORKERS) as pool:
        pool.apply(no_op, (0,))
    return time.perf_counter() - start
