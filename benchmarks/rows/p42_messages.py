"""P42: a message of ordinary objects, from one end of a pipe to the other in one process, so that nobody waits.

Two processes hide what a message costs the interpreter: there the standard library waits for the kernel most of the
time. The bound is pickle and unpickle of the same object; the standard library adds a write and a read of the kernel. A
message must fit into its pipe.
"""

from __future__ import annotations

import dataclasses
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Line

PEERS = ("ours", "stdlib")
SECONDS = 0.01


@dataclasses.dataclass
class Record:
    """An ordinary object."""

    number: int = 1
    text: str = "two"


class Stateful:
    """Says itself what its state is, so that a pickler has to ask it."""

    def __init__(self) -> None:
        self.number = 1

    def __getstate__(self) -> dict[str, int]:
        return {"number": self.number}


class OwnError(Exception):
    """An exception of a program."""


OBJECTS: dict[str, Callable[[], Any]] = {
    "a list of 100 ints": lambda: list(range(100)),
    "a list of 10 000 ints": lambda: list(range(10_000)),
    "a list of 1000 floats": lambda: [0.5 * i for i in range(1000)],
    "a list of 200 texts": lambda: [str(i) for i in range(200)],
    "a list of 10 000 texts, all one": lambda: ["text"] * 10_000,
    "a list of 20 dicts": lambda: [{"number": i, "pair": [1, 2]} for i in range(20)],
    "a list of 1000 dicts": lambda: [{"number": i, "text": str(i)} for i in range(1000)],
    "a dict of 300": lambda: {str(i): i for i in range(300)},
    "a list of 200 objects": lambda: [Record(i) for i in range(200)],
    "an object": Record,
    "an object with __getstate__": Stateful,
    "an exception of the program": lambda: OwnError("why", 1),
    "a bytearray": lambda: bytearray(b"text"),
    "a structured array": lambda: np.zeros(5, [("a", "i4"), ("b", "f8")]),
    "a masked array": lambda: np.ma.masked_array([1, 2, 3], [0, 1, 0]),
    "an array of objects": lambda: np.array([1, "a"], object),
    "10 000 ints and an object with __getstate__": lambda: {"numbers": list(range(10_000)), "object": Stateful()},
}


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P42.
    """
    lines = []
    for what in OBJECTS:
        samples = bench.in_turns(f"P42 {what}", [Task(peer, peer, sent, (what,)) for peer in PEERS], 7)
        line = Line("P42", what, samples)
        line.claim_ratio("ours / stdlib", "ours", "stdlib", 1.05)
        lines.append(line)
    return lines


def sent(stage: Stage, what: str) -> float:
    """Return the seconds to send and receive one."""
    thing = OBJECTS[what]()
    reader, writer = stage.peer.mp.Pipe(False)
    with reader, writer:
        timer = timeit.Timer(lambda: (writer.send(thing), reader.recv()))
        rounds = max(1, int(SECONDS / timer.timeit(1)))
        return min(timer.repeat(5, rounds)) / rounds
