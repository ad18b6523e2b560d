"""P9: the time until 8 ranks have started, run and ended under spawn, and the time that large arguments add."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import ranks
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line

PEERS = ("ours", "stdlib", "torch fd")
RANKS = 8
LIMIT = 0.6
ADDED_MS = 50
GB = 1 << 30
EACH = GB // RANKS
ROUNDS, SLOW_ROUNDS = 9, 2


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P9.
    """
    lines = [
        started(bench, f"{RANKS} ranks that do nothing", ranks.nothing),
        started(bench, f"{RANKS} ranks that import NumPy", ranks.import_numpy),
    ]
    samples = bench.in_turns(
        "P9 arguments",
        [
            Task("without", "ours", launched, (ranks.import_numpy,)),
            Task("with", "ours", launched, (ranks.touch, "shared", GB)),
        ],
        ROUNDS,
    )
    if "with" in samples:
        line = Line("P9", f"{RANKS} ranks, a shared array of 1 GiB", {"ours": samples["with"]})
        if samples["with"].values and samples["without"].values:
            added = 1e3 * (samples["with"].median - samples["without"].median)
            line.claims.append(Claim("added by the array, in ms", added, ADDED_MS))
        lines.append(line)
    private = (ranks.touch, "fresh", EACH)
    samples = bench.in_turns(
        "P9 private arguments",
        [
            Task("ours", "ours", launched, private),
            Task("stdlib", "stdlib", started_one_by_one, private, rounds=SLOW_ROUNDS, warm=False),
        ],
        ROUNDS // 2,
    )
    lines.append(Line("P9", f"{RANKS} ranks, a private array of {EACH >> 20} MiB for each", samples))
    return lines


def started(bench: Bench, what: str, fn: Callable[..., None]) -> Line:
    """
    Return a line of mp-all, the standard library and torch.
    """
    samples = bench.in_turns(
        f"P9 {what}",
        [
            Task("ours", "ours", launched, (fn,)),
            Task("stdlib", "stdlib", started_one_by_one, (fn,)),
            # It imports torch in every rank.
            Task("torch fd", "torch fd", launched, (fn,), rounds=SLOW_ROUNDS, warm=False),
        ],
        ROUNDS,
    )
    line = Line("P9", what, samples)
    if fn is ranks.nothing:
        line.claim_ratio("ours / stdlib", "ours", "stdlib", LIMIT)
    return line


def arguments(stage: Stage, kind: str, nbytes: int) -> tuple[Any, ...]:
    """
    Return no argument, or an array of *nbytes* zeros.
    """
    if kind == "shared":
        return (stage.peer.shared(nbytes),)
    return (np.zeros(nbytes, np.uint8),) if kind else ()


def launched(stage: Stage, fn: Callable[..., None], kind: str = "", nbytes: int = 0) -> float:
    """
    Return the seconds for ranks started by the peer's own launcher.
    """
    args = arguments(stage, kind, nbytes)
    begin = time.perf_counter()
    stage.peer.mp.spawn(fn, args, RANKS)
    return time.perf_counter() - begin


def started_one_by_one(stage: Stage, fn: Callable[..., None], kind: str = "", nbytes: int = 0) -> float:
    """
    Return the seconds for ranks started one by one with multiprocessing.
    """
    args = arguments(stage, kind, nbytes)
    begin = time.perf_counter()
    processes = [stage.context.Process(target=fn, args=(rank, *args)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * RANKS
    return time.perf_counter() - begin
