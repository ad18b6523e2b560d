"""P26: the time to make and close an object for communication, and that of a call through the proxy of a manager.

The bound of the first is the kernel: a pipe, and memory for a ring. The standard library makes a file for each lock.
The bound of a call is two messages and the interpreter on both sides. mp-all's pass through a ring; the standard
library's through a socket, and each of them wakes a process. The calls before the clock starts are many: the scheduler
first runs the two processes on one processor, where a ring gains little, and moves them apart within some thousand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
COUNT = 300
ARGUMENTS = {"Value": ("i", 0), "Array": ("i", 10)}
AHEAD, CALLS = 5000, 1000


def measure(bench: Bench) -> list[Line]:
    lines = []
    for what in ("Queue", "SimpleQueue", "Pipe", "Value", "Array", "Lock", "Event", "Condition"):
        tasks = [Task(peer, peer, made, (what,)) for peer in PEERS]
        line = Line("P26", f"{what}(), made and closed", bench.in_turns(f"P26 {what}", tasks, 9))
        line.claim_ratio("ours / stdlib", "ours", "stdlib", 1.0)
        lines.append(line)
    for what in ("dict[key] = value", "list.append", "dict.get"):
        samples = bench.in_turns(f"P26 {what}", [Task(peer, peer, called, (what,)) for peer in PEERS], 11)
        line = Line("P26", f"a call through a manager: {what}", samples)
        line.claim_ratio("ours / stdlib", "ours", "stdlib", 0.7)
        lines.append(line)
    return lines


def made(stage: Stage, what: str) -> float:
    """Return the seconds to make and close one."""
    make: Callable[[], Any] = getattr(stage.peer.mp, what)
    start = time.perf_counter()
    for _ in range(COUNT):
        one = make(*ARGUMENTS.get(what, ()))
        for end in one if isinstance(one, tuple) else (one,):
            if hasattr(end, "close"):
                end.close()
    return (time.perf_counter() - start) / COUNT


def called(stage: Stage, what: str) -> float:
    """Return the seconds for each of many calls."""
    with stage.context.Manager() as manager:
        mapping, items = manager.dict(a=1), manager.list()
        calls: dict[str, Callable[[int], Any]] = {
            "dict[key] = value": lambda i: mapping.__setitem__(i % 100, i),
            "list.append": items.append,
            "dict.get": lambda i: mapping.get("a"),
        }
        call = calls[what]
        for i in range(AHEAD):
            call(i)
        start = time.perf_counter()
        for i in range(CALLS):
            call(i)
        return (time.perf_counter() - start) / CALLS
