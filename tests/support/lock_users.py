"""Targets of the processes that use locks."""

from __future__ import annotations

import os
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

# Longer than any test: a child that is not killed shows.
LONG = 300.0
PAIR = struct.Struct("qq")


def acquire_and_stay(lock: Any, ready: Connection) -> None:
    """Acquire the lock and never release it."""
    lock.acquire()
    ready.send(os.getpid())
    time.sleep(LONG)


def acquire_and_end(lock: Any, ready: Connection) -> None:
    """End with the lock."""
    lock.acquire()
    ready.send(os.getpid())


def acquire_and_tell(lock: Any, ready: Connection) -> None:
    """Say the result of one attempt that waits, and how many warnings came with it."""
    ready.send(None)
    with WarnedOf() as died:
        acquired = lock.acquire(timeout=LONG)
    ready.send((acquired, len(died)))


def is_mine(lock: Any, ready: Connection) -> None:
    """Say whether a child owns what its parent has, and what a release does."""
    try:
        lock.release()
        error = None
    except AssertionError as failure:
        error = str(failure)
    ready.send((lock._semlock._is_mine(), lock._semlock._count(), lock.acquire(False), error))


def add_to_pair(lock: Any, memory: Any) -> bool:
    """Add 1 to both numbers under the lock; return whether they were equal before, or the last owner had died."""
    with WarnedOf() as died:
        assert lock.acquire(timeout=LONG)
    with memoryview(memory) as view:
        first, second = PAIR.unpack_from(view)
        PAIR.pack_into(view, 0, first + 1, second)
        PAIR.pack_into(view, 0, first + 1, first + 1)
    lock.release()
    return first == second or bool(died)


def count_in_pairs(lock: Any, memory: Any, failed: Any) -> None:
    """Add to the pair, for ever."""
    while True:
        if not add_to_pair(lock, memory):
            failed.set()


class WarnedOf(list[Any]):
    """The warnings of a block of code."""

    def __enter__(self) -> WarnedOf:
        import warnings

        self.catching = warnings.catch_warnings(record=True)
        self.caught = self.catching.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *error: Any) -> None:
        self.catching.__exit__(*error)
        self.extend(self.caught or ())


def use_units(semaphore: Any) -> None:
    """Take and give back units, for ever, whoever dies."""
    with WarnedOf():
        while True:
            with semaphore:
                pass


def wait_for_notification(condition: Any, ready: Connection) -> None:
    """Say the result of one wait."""
    with condition:
        ready.send(None)
        ready.send(condition.wait(LONG))


def wait_for_event(event: Any, ready: Connection) -> None:
    """Say the result of one wait."""
    ready.send(None)
    ready.send(event.wait(LONG))


def pass_barrier(barrier: Any, rounds: int, stays: bool, ready: Connection) -> None:
    """Pass the barrier that often, and say when; the word "broken" says that it has."""
    from threading import BrokenBarrierError

    for number in range(rounds):
        try:
            barrier.wait()
        except BrokenBarrierError:
            ready.send("broken")
            return
        ready.send(number)
    if stays:
        time.sleep(LONG)


def pass_barrier_and_raise(barrier: Any) -> None:
    """End by an exception after the first round."""
    barrier.wait()
    raise ZeroDivisionError("on purpose")


def put_one(queue: Any, nbytes: int) -> None:
    """Put a message."""
    queue.put(bytes(nbytes))
