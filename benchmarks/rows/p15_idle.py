"""P15: eight processes that wait on queues, and four readers of one queue.

A queue gives a message to the reader that asks first, so on fewer cores the scheduler of the kernel decides who gets
how many. It balances processes over the cores a few times a second: the stream has to last that long.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.rows.p12_channel import NOTE
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours", "stdlib")
SECONDS = 2.0
MESSAGES = 20_000


def measure(bench: Bench) -> list[Line]:
    taken = bench.in_turns("P15 idle", [Task(peer, peer, switches, ()) for peer in PEERS], 3)
    samples = {label: Sample(sample.values, " /s") for label, sample in taken.items()}
    idle = Line("P15", "context switches of 8 waiting processes", samples, note=NOTE)
    if samples.get("ours", Sample()).values:
        idle.claims.append(Claim("ours, switches a second", samples["ours"].median, 0))
    taken = bench.in_turns("P15 fair", [Task(peer, peer, unfairness, ()) for peer in PEERS], 5)
    samples = {label: Sample(sample.values, " %") for label, sample in taken.items()}
    fair = Line("P15", "four readers, largest deviation from a quarter", samples, note=NOTE)
    if samples.get("ours", Sample()).values:
        fair.claims.append(Claim("ours, percent", samples["ours"].median, 20))
    return [idle, fair]


def switches(stage: Stage) -> float:
    """Return the context switches a second of eight processes that wait for a message."""
    queues = [stage.context.SimpleQueue() for _ in range(8)]
    ready = stage.context.SimpleQueue()
    children = [stage.start(wait, queue, ready) for queue in queues]
    for _ in children:
        ready.get()
    time.sleep(0.5)
    before = sum(switched(child.pid) for child in children)
    time.sleep(SECONDS)
    after = sum(switched(child.pid) for child in children)
    for queue in queues:
        queue.put(None)
    for child in children:
        child.join(30)
    return (after - before) / SECONDS


def switched(pid: int | None) -> int:
    """Return the voluntary context switches of a process's first thread; the others serve the benchmark."""
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])


def wait(queue: Any, ready: Any) -> None:
    ready.put(1)
    queue.get()


def unfairness(stage: Stage) -> float:
    """Return the largest deviation of a reader's share from a quarter of the messages, in percent of it."""
    queue, results = stage.context.SimpleQueue(), stage.context.SimpleQueue()
    children = [stage.start(count, queue, results) for _ in range(4)]
    for _ in children:
        results.get()
    for number in range(MESSAGES):
        queue.put(number)
    for _ in children:
        queue.put(None)
    shares = [results.get() for _ in children]
    for child in children:
        child.join(30)
    assert sum(shares) == MESSAGES, "a message was lost or doubled"
    return 100 * max(abs(share - MESSAGES / 4) for share in shares) / (MESSAGES / 4)


def count(queue: Any, results: Any) -> None:
    """Count the messages of a queue until None; each takes a tenth of a millisecond."""
    results.put("ready")
    got = 0
    while queue.get() is not None:
        got += 1
        end = time.perf_counter() + 1e-4
        while time.perf_counter() < end:
            pass
    results.put(got)
