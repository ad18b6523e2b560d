"""Measure round trips, copies and streams, in functions that run in a driver."""

from __future__ import annotations

import importlib
import os
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.driver import Stage
from benchmarks.peers import Courier

REUSED: dict[Any, Any] = {}


FORMATS: dict[str, Callable[[Any], Any]] = {
    "frame of polars": lambda values: importlib.import_module("polars").DataFrame({"x": values}),
    "table of Arrow": lambda values: importlib.import_module("pyarrow").table({"x": values}),
    "array of JAX": lambda values: importlib.import_module("jax.numpy").asarray(values.astype(np.float32).repeat(2)),
}


def message(stage: Stage, kind: str, size: int) -> Any:
    """Return a message of the kind *kind*; messages that are not fresh are made once."""
    peer = stage.peer
    if kind == "int":
        return 1
    if kind == "fresh":
        return peer.fresh(size)
    if kind == "bytes":
        return bytes(size)
    if kind == "bytearray":
        return bytearray(size)
    if kind == "str":
        return "1" * size
    if kind == "array.array":
        return array("B", bytes(size))
    if kind in FORMATS:
        return FORMATS[kind](np.arange(size // 8, dtype=np.float64))
    if kind == "record":
        return {"id": 7, "name": "an image", "image": peer.fresh(size)}
    if kind.startswith("fresh list"):  # "fresh list of 1024": that many bytes in each, `size` of them
        return [peer.fresh(int(kind.split()[-1])) for _ in range(size)]
    if (kind, size) not in REUSED:
        REUSED.clear()
        if kind == "shared":
            REUSED[kind, size] = peer.shared(size)
        elif kind == "room":
            REUSED[kind, size] = np.ones(size, np.uint8)
        elif kind.startswith("shared list"):
            REUSED[kind, size] = [peer.shared(int(kind.split()[-1])) for _ in range(size)]
        else:
            raise ValueError(kind)
    return REUSED[kind, size]


def round_trips(stage: Stage, kind: str, size: int, times: int, ahead: int = 0) -> list[float]:
    """
    Measure round trips: the other process touches first and last element of a message and answers with their sum.

    The message is made before the clock starts, and a fresh one is dropped after it has stopped. The first *ahead*
    do not count: large memory that was unused during the others' turns is slower to use again.
    """
    ask, clock = stage.ask(), time.perf_counter
    taken = []
    with stage.apart():
        for _ in range(ahead + times):
            x = message(stage, kind, size)
            start = clock()
            ask(x)
            taken.append(clock() - start)
            del x
    return taken[ahead:]


def round_trips_on(stage: Stage, sender: set[int], other: set[int], times: int) -> float:
    """Return the mean seconds of a round trip of an int with the two processes on these cores."""
    ask = stage.ask()
    before = os.sched_getaffinity(0)
    stage.peer.place(other)
    os.sched_setaffinity(0, sender)
    try:
        for _ in range(3):
            ask(1)
        start = time.perf_counter()
        for _ in range(times):
            ask(1)
        return (time.perf_counter() - start) / times
    finally:
        os.sched_setaffinity(0, before)
        stage.peer.place(before - {min(before)} or before)


def copies(stage: Stage, size: int, times: int, ahead: int = 0, count: int = 1) -> list[float]:
    """
    Measure one memcpy (or *count*) of a fresh array into used memory, followed by the round trip of an int.

    Both are in one sequence and not summed from two loops: a process that has just been waiting copies slower.
    """
    ask = stage.ask()
    there = message(stage, "room", size)
    taken = []
    with stage.apart():
        for _ in range(ahead + times):
            x = np.ones(size, np.uint8)
            start = time.perf_counter()
            for _ in range(count):
                there[:] = x
            ask(1)
            taken.append(time.perf_counter() - start)
            del x
    return taken[ahead:]


def forget(stage: Stage) -> None:
    """Drop the messages that `message` keeps."""
    REUSED.clear()


def stream(stage: Stage, size: int, count: int) -> float:
    """Return the seconds for *count* fresh arrays through a `Queue(8)`."""
    return seconds_through(stage, stage.peer.queue(stage, size), lambda _: stage.peer.fresh(size), count)


def seconds_through(stage: Stage, queue: Any, make: Callable[[int], Any], count: int) -> float:
    """Return the seconds for ``make(0)``, ``make(1)``, … through *queue*, from the first put to the last touch."""
    done, end = stage.context.SimpleQueue(), stage.context.SimpleQueue()
    child = stage.start(drain, queue, done, end, count, stage.peer.courier())
    queue.put(make(0))  # before the clock starts: threads start and both ends attach
    done.get()
    messages = [make(number) for number in range(count)]
    start = time.perf_counter()
    for x in messages:
        queue.put(x)
    done.get()
    taken = time.perf_counter() - start
    end.put(None)
    child.join(30)
    queue.close()
    queue.join_thread()
    return taken


def drain(queue: Any, done: Any, end: Any, count: int, courier: Courier) -> None:
    """Touch each message. Wait before the end: a process that exits may keep the core of the one that it has woken."""
    courier.touch(queue.get())
    done.put("ready")
    for _ in range(count):
        courier.touch(queue.get())
    done.put("drained")
    end.get()
    queue.close()


def copy_stream(stage: Stage, size: int, count: int) -> float:
    """Return the seconds to copy *count* fresh arrays into eight buffers in turn, as a perfect stream would."""
    rooms = [np.ones(size, np.uint8) for _ in range(8)]
    messages = [np.ones(size, np.uint8) for _ in range(count)]
    start = time.perf_counter()
    for i, x in enumerate(messages):
        rooms[i % 8][:] = x
    return time.perf_counter() - start
