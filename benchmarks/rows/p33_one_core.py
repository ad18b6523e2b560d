"""P33: two processes that share a core: a round trip of an int, of two events, and a task of a pool.

They share one because they are pinned to it, or because they have just woken: the kernel wakes a process on its waker's
core, with an idle one beside it, and a program that pauses meets that after each pause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.rows.p12_channel import NOTE
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
TIMES, AFTER_A_PAUSE, PAUSES, PAUSE_S = 2000, 50, 10, 0.05


def measure(bench: Bench) -> list[Line]:
    lines = []
    for what, work, limit in (
        ("an int", ints, 0.2),
        ("two events", events, 0.5),
        ("Pool.apply of a no-op", tasks, 1.0),
    ):
        for where, pinned in (("on one core", True), ("after pauses of 50 ms", False)):
            made = [Task(peer, peer, work, (pinned,)) for peer in PEERS]
            line = Line("P33", f"{what}, {where}", bench.in_turns(f"P33 {what} {where}", made, 5), note=NOTE)
            line.claim_ratio("ours / stdlib", "ours", "stdlib", limit)
            lines.append(line)
    return lines


def timed(call: Callable[[], object], pinned: bool) -> float:
    """Return the mean seconds of a call, in one run or in short runs after pauses."""
    for _ in range(20):
        call()
    taken = 0.0
    runs, times = (1, TIMES) if pinned else (PAUSES, AFTER_A_PAUSE)
    for _ in range(runs):
        if not pinned:
            time.sleep(PAUSE_S)
        start = time.perf_counter()
        for _ in range(times):
            call()
        taken += time.perf_counter() - start
    return taken / (runs * times)


def on_cores(pinned: bool, run: Callable[[], float]) -> float:
    """Run on one core, which children inherit, or on all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)} if pinned else before)
    try:
        return run()
    finally:
        os.sched_setaffinity(0, before)


def ints(stage: Stage, pinned: bool) -> float:
    """Return the seconds of a round trip of an int on two `SimpleQueue`s."""

    def run() -> float:
        there, back = stage.peer.mp.SimpleQueue(), stage.peer.mp.SimpleQueue()
        child = stage.start(answer, there, back)

        def call() -> None:
            there.put(1)
            back.get()

        taken = timed(call, pinned)
        there.put(None)
        child.join(30)
        return taken

    return on_cores(pinned, run)


def answer(there: Any, back: Any) -> None:
    while (message := there.get()) is not None:
        back.put(message)


def events(stage: Stage, pinned: bool) -> float:
    """Return the seconds in which an event is set and another one is set in answer."""

    def run() -> float:
        there, back = stage.peer.mp.Event(), stage.peer.mp.Event()
        child = stage.start(set_in_answer, there, back)

        def call() -> None:
            there.set()
            back.wait()
            back.clear()

        taken = timed(call, pinned)
        child.terminate()
        child.join(30)
        return taken

    return on_cores(pinned, run)


def set_in_answer(there: Any, back: Any) -> None:
    while True:
        there.wait()
        there.clear()
        back.set()


def tasks(stage: Stage, pinned: bool) -> float:
    """Return the seconds of a task that does nothing, in a pool of one worker."""

    def run() -> float:
        with stage.peer.mp.Pool(1) as pool:
            return timed(lambda: pool.apply(abs, (1,)), pinned)

    return on_cores(pinned, run)
