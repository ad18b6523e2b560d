"""P17: 1000 tasks of 10 ms, undisturbed and with a worker killed each 200 ms.

The bound: 5 s for two workers, and for each kill a tenth of a task and the start of a process. The standard pool never
ends; the standard executor fails everything from the first kill on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line

PEERS = ("ours",)
COUNT, SECONDS, EACH, WORKERS = 1000, 0.01, 0.2, 2


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P17.
    """
    tasks = [Task("calm", "ours", run, (False,)), Task("killed", "ours", run, (True,))]
    samples = bench.in_turns("P17", tasks, 3, timeout=120)
    if "calm" not in samples or not samples["calm"].values:
        return []
    calm, killed = samples["calm"], samples["killed"]
    lines = [
        Line("P17", f"{COUNT} tasks of 10 ms, {WORKERS} workers", {"ours": calm}),
        Line("P17", "the same, a worker killed each 200 ms", {"ours": killed}),
    ]
    lines[1].claims.append(Claim("killed / calm", killed.median / calm.median, 1.3))
    return lines


def run(stage: Stage, kills: bool) -> float:
    """Return the seconds until each task has its answer, a result or a `WorkerLostError`."""
    mp: Any = stage.peer.mp
    over = threading.Event()
    with mp.get_context("fork").Pool(WORKERS) as pool:
        pool.map(abs, range(100), chunksize=1)
        killed: list[int] = []
        killer = threading.Thread(target=kill, args=(pool, over, killed))
        start = time.perf_counter()
        if kills:
            killer.start()
        results = [pool.apply_async(time.sleep, (SECONDS,)) for _ in range(COUNT)]
        lost = 0
        for result in results:
            try:
                result.get(60)
            except mp.WorkerLostError:
                lost += 1
        taken = time.perf_counter() - start
        over.set()
        if kills:
            killer.join()
        assert lost <= len(killed) and (lost > 0) == kills, f"{lost} tasks were lost, {len(killed)} workers killed"
    return taken


def kill(pool: Any, over: threading.Event, killed: list[int]) -> None:
    while not over.wait(EACH):
        workers = [process for process in pool._pool if process.is_alive()]
        if workers:
            os.kill(workers[0].pid, signal.SIGKILL)
            killed.append(workers[0].pid)
