"""P11: nothing grows while arrays of mixed sizes stream to three consumers; ten minutes with `--long`.

The bound: none. The queue limits the arrays of a consumer, so memory, descriptors and
mappings of the last third must not exceed those of the middle third.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from benchmarks.bench import Bench
from benchmarks.driver import Stage, WorkFailed
from benchmarks.peers import Courier
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours",)
CONSUMERS, SHORT_S, LONG_S = 3, 20.0, 600.0
# The allocator may add or drop a resident page: less than this is no growth.
TOLERANCE = 1.05


def measure(bench: Bench) -> list[Line]:
    if not bench.has("ours"):
        return []
    seconds = LONG_S if bench.long else max(3.0, SHORT_S * min(1.0, bench.scale))
    try:
        sent, looks = bench.do("ours", steady, seconds, timeout=seconds + 120)
    except WorkFailed as error:
        bench.failed["P11"] = str(error)
        return []
    lines = []
    for k, (what, unit) in enumerate((("memory", "B"), ("descriptors", ""), ("mappings", ""))):
        column = [float(look[k]) for look in looks]
        third = len(column) // 3
        growth = max(column[2 * third :]) / max(column[third : 2 * third])
        claim = Claim(f"{what}, last third / middle third", growth, TOLERANCE if unit else 1.0)
        name = f"{seconds:.0f} s to {CONSUMERS} consumers: {what}"
        lines.append(Line("P11", name, {"ours": Sample(column, unit)}, [claim]))
    lines[0].note = f"{sent:,} arrays, 100 B to 8 MiB, all processes together"
    return lines


def steady(stage: Stage, seconds: float) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the number of sent arrays, and samples of memory, descriptors and mappings."""
    queue, done = stage.context.Queue(8), stage.context.SimpleQueue()
    children = [stage.start(consume, queue, done, stage.peer.courier()) for _ in range(CONSUMERS)]
    for _ in children:
        done.get()
    pids = [os.getpid(), *(child.pid for child in children if child.pid)]
    chance = random.Random(11)
    sizes = [int(100 * (8 * 2**20 / 100) ** chance.random()) for _ in range(500)]
    looks, sent, start = [], 0, time.monotonic()
    next_look = start
    while (now := time.monotonic()) < start + seconds:
        queue.put(stage.peer.fresh(sizes[sent % len(sizes)]))
        sent += 1
        if now >= next_look:
            looks.append(look(pids))
            next_look = now + seconds / 300
    for _ in children:
        queue.put(None)
    for child in children:
        child.join(30)
    queue.close()
    queue.join_thread()
    return sent, looks


def consume(queue: Any, done: Any, courier: Courier) -> None:
    done.put("ready")
    while (x := queue.get()) is not None:
        courier.touch(x)
        del x


def look(pids: list[int]) -> tuple[int, int, int]:
    memory = descriptors = mappings = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            memory += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        with open(f"/proc/{pid}/maps") as maps:
            mappings += sum(1 for _ in maps)
    return memory, descriptors, mappings
