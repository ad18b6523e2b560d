"""P6: `Pool.map` whose 64 results are 16 MiB each, 1 GiB in all.

The bound: one copy of 1 GiB into shared memory by two workers. The first time into fresh pages, which
the kernel finds and zeroes; later into used ones.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours", "stdlib", "joblib", "mpire", "torch fd", "torch fs")
COUNT, SIZE, WORKERS, BLOCKS = 64, 16 << 20, 2, 8 << 20
KEPT: dict[str, Any] = {}
CALLS = "first_call.py, its first call", "first_call.py, a later call"
PAGE = record.ROOT / "docs" / "performance.md"


def measure(bench: Bench) -> list[Line]:
    tasks = [Task("ours", "ours", pool_map, ()), Task("stdlib", "stdlib", pool_map, (), 3)]
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
    return [line, pipes, *_shared_allocated(bench), _blocks(bench), *_calls_of_a_program(bench)]


def _calls_of_a_program(bench: Bench) -> list[Line]:
    """Measure the program of docs/performance.md: its first call, which a script makes, and a later one."""
    lines = []
    for what in CALLS:
        samples = bench.in_turns(
            f"P6 {what}", [Task(p, p, call_of_a_program, (what,), 5, False) for p in ("ours", "stdlib")], 5
        )
        lines.append(Line("P6", what, samples))
        lines[-1].claim_ratio("stdlib / ours", "stdlib", "ours", 4, at_least=True)
    return lines


def call_of_a_program(stage: Stage, what: str) -> float:
    """Return the seconds of the first call, or of the last."""
    module = "mp_all" if stage.peer.name == "ours" else "multiprocessing"
    (program,) = re.findall(r"```python\n(# first_call\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "first_call.py")
        file.write_text(program.replace("import mp_all as", f"import {module} as"))
        done = subprocess.run([sys.executable, str(file)], stdout=subprocess.PIPE, text=True, check=True)
    first, *_, last = map(float, done.stdout.split())
    return first if what == CALLS[0] else last


def _blocks(bench: Bench) -> Line:
    """Measure a function of an array that is cut into blocks for the workers, and whose results are put together."""
    peers = ("ours", "stdlib", "joblib", "mpire")
    samples = bench.in_turns("P6 blocks", [Task(peer, peer, in_blocks, (), 3) for peer in peers], 5, timeout=300)
    line = Line("P6", f"a function of an array of 64 MiB in {WORKERS} blocks, put together", samples)
    for peer in peers[1:]:
        line.claim_ratio(f"{peer} / ours", peer, "ours", 1, at_least=True)
    for peer in ("ours", "stdlib"):
        if bench.has(peer):
            bench.do(peer, close_named, "blocks")
    return line


def smoothed(block: Any) -> Any:
    return block * 0.5


def in_blocks(stage: Stage) -> float:
    """Return the seconds for one array, by what the peer has for that; workers are kept."""
    array = KEPT.setdefault("array", np.ones(BLOCKS))
    start = time.perf_counter()
    if stage.peer.name == "joblib":
        import joblib  # type: ignore[import-not-found,import-untyped,unused-ignore]

        work = (joblib.delayed(smoothed)(block) for block in np.array_split(array, WORKERS))
        found = np.concatenate(joblib.Parallel(WORKERS)(work))
    else:
        pool = block_pool(stage)
        if stage.peer.name == "mpire":
            found = pool.map(smoothed, array, n_splits=WORKERS, concatenate_numpy_output=True)
        elif stage.peer.name == "ours":
            found = pool.map_blocks(smoothed, array)
        else:
            found = np.concatenate(pool.map(smoothed, np.array_split(array, WORKERS), chunksize=1))
    taken = time.perf_counter() - start
    assert found.shape == (BLOCKS,) and found[0] == found[-1] == 0.5
    return taken


def block_pool(stage: Stage) -> Any:
    if "blocks" not in KEPT:
        if stage.peer.name == "mpire":
            KEPT["blocks"] = stage.peer.api.WorkerPool(WORKERS, keep_alive=True)
        else:
            KEPT["blocks"] = stage.context.Pool(WORKERS)
    return KEPT["blocks"]


def _shared_allocated(bench: Bench) -> list[Line]:
    """Measure results that are made anew each time: moved into shared memory, or allocated in it."""
    works = {"ours": False, "shared-allocated": True}
    tasks = [Task(label, "ours", made_map, (allocated,)) for label, allocated in works.items()]
    samples = bench.in_turns(
        "P6 shared-allocated", [*tasks, Task("stdlib", "stdlib", made_map, (False,), 3)], 5, timeout=300
    )
    if not bench.has("ours"):
        return []
    allocated = samples.pop("shared-allocated")
    made = Line("P6", f"Pool({WORKERS}).map, {COUNT} results of 16 MiB, each made in the clock", samples)
    shared = Line("P6", "the same, shared-allocated", {**samples, "ours": allocated})
    copied = float(bench.do("ours", copied_by_workers))
    bytes_copied = Line("P6", "bytes copied by the workers for that", {"ours": Sample([copied], "B")})
    bytes_copied.claims.append(Claim("bytes", copied, 0))
    shared.claim_ratio("stdlib / ours", "stdlib", "ours", 10, at_least=True)
    for label in works:
        bench.do("ours", close_named, label)
    if bench.has("stdlib"):
        bench.do("stdlib", close_named, "ours")
    return [made, shared, bytes_copied]


def made_map(stage: Stage, allocated: bool) -> float:
    """Return the seconds for one map whose results the workers compute while the clock runs."""
    pool = named_pool(stage, allocated)
    start = time.perf_counter()
    results = pool.map_async(made, range(COUNT), chunksize=1).get(240)
    taken = time.perf_counter() - start
    assert len(results) == COUNT and float(results[-1][-1]) == COUNT
    return taken


def made(number: int) -> Any:
    return np.full(SIZE, number + 1, np.uint8)


def named_pool(stage: Stage, allocated: bool) -> Any:
    label = "shared-allocated" if allocated else "ours"
    if label not in KEPT:
        initializer = stage.peer.mp.install_shared_allocator if allocated else None
        KEPT[label] = stage.context.Pool(WORKERS, initializer)
    return KEPT[label]


def copied_by_workers(stage: Stage) -> int:
    """Return the largest number of bytes that a worker with the shared allocator has copied."""
    counts = named_pool(stage, True).map_async(copied, range(COUNT), chunksize=1).get(60)
    return int(max(counts))


def copied(number: int) -> int:
    import mp_all as mp

    return mp.memory_stats()["copied_bytes"]


def close_named(stage: Stage, label: str) -> None:
    if label in KEPT:
        pool = KEPT.pop(label)
        pool.close()
        pool.join()


def pool_map(stage: Stage) -> float:
    """Return the seconds for one map; drop the results after the clock has stopped."""
    pool = the_pool(stage)
    start = time.perf_counter()
    results = pool.map_async(result, range(COUNT), chunksize=1).get(240)
    taken = time.perf_counter() - start
    assert len(results) == COUNT and float(results[-1][-1]) == 1
    return taken


def through_pipes(stage: Stage) -> int:
    """Return the bytes that this process reads and writes by system calls during one map."""
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
    """Compute the result of a worker before the clock starts, so that only its transport is measured."""
    if peer.startswith("torch"):
        import torch  # type: ignore[import-not-found,unused-ignore]

        strategy = "file_descriptor" if peer.endswith("fd") else "file_system"
        torch.multiprocessing.set_sharing_strategy(strategy)
        KEPT["result"] = torch.ones(SIZE, dtype=torch.uint8)
    else:
        KEPT["result"] = np.ones(SIZE, np.uint8)


def result(number: int) -> Any:
    x = KEPT["result"]
    # `put` moves a tensor to shared memory permanently: only a new one is fresh.
    return x if isinstance(x, np.ndarray) else x.clone()
