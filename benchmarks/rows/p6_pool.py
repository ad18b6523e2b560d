"""P6: `Pool.map` whose 64 results are 16 MiB each, 1 GiB in all.

The limit: one copy of 1 GiB into shared memory by two workers. The first time these are fresh pages, which
the kernel has to find and zero; after that they are warm.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line, Sample

COUNT, SIZE, WORKERS = 64, 16 << 20, 2
KEPT: dict[str, Any] = {}


def measure(bench: Bench) -> list[Line]:
    tasks = [Task(peer, peer, pool_map, ()) for peer in ("ours", "stdlib")]
    tasks += [Task(peer, peer, pool_map, (), 2) for peer in ("torch fd", "torch fs")]
    samples = bench.in_turns("P6", tasks, 5, timeout=300)
    line = Line("P6", f"Pool({WORKERS}).map, {COUNT} results of 16 MiB", samples)
    line.claim_ratio("stdlib / ours", "stdlib", "ours", 10, at_least=True)
    present = [peer for peer in ("ours", "stdlib", "torch fd", "torch fs") if bench.has(peer)]
    through = {peer: Sample([float(bench.do(peer, through_pipes))], "B") for peer in present[:2]}
    pipes = Line("P6", "bytes through the pipes for that", through)
    if "ours" in through:
        pipes.claims.append(Claim("ours in KiB", through["ours"].median / 1024, 64))
    for peer in present:
        bench.do(peer, close_pool)
    return [line, pipes]


def pool_map(stage: Stage) -> float:
    """Seconds for one map; the results are dropped after the clock has stopped."""
    pool = the_pool(stage)
    start = time.perf_counter()
    results = pool.map_async(result, range(COUNT), chunksize=1).get(240)
    taken = time.perf_counter() - start
    assert len(results) == COUNT and float(results[-1][-1]) == 1
    return taken


def through_pipes(stage: Stage) -> int:
    """Bytes that this process reads and writes by system calls during one map."""
    pool, before = the_pool(stage), read_and_written()
    pool.map_async(result, range(COUNT), chunksize=1).get(240)
    return read_and_written() - before


def read_and_written() -> int:
    with open("/proc/self/io") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def the_pool(stage: Stage) -> Any:
    if "pool" not in KEPT:
        KEPT["pool"] = stage.context.Pool(WORKERS, prepare, (stage.peer.name,))
    return KEPT["pool"]


def close_pool(stage: Stage) -> None:
    if "pool" in KEPT:
        pool = KEPT.pop("pool")
        pool.close()
        pool.join()


def prepare(peer: str) -> None:
    """Each worker computes its result before the clock starts, so that only its way home is measured."""
    if peer.startswith("torch"):
        import torch  # type: ignore[import-not-found,unused-ignore]

        strategy = "file_descriptor" if peer.endswith("fd") else "file_system"
        torch.multiprocessing.set_sharing_strategy(strategy)
        KEPT["result"] = torch.ones(SIZE, dtype=torch.uint8)
    else:
        KEPT["result"] = np.ones(SIZE, np.uint8)


def result(number: int) -> Any:
    x = KEPT["result"]
    # Putting a tensor moves it to shared memory for good: only a new one is fresh.
    return x if isinstance(x, np.ndarray) else x.clone()
