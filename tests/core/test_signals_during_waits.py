"""A signal that comes during a wait is handled soon, also between two of the sleeps of which the wait is made."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from support.carriers import TIMEOUT

import mp_all as mp

SOON = 20  # seconds; a signal that is lost is handled with the next one


class Heard(Exception):
    """Raised by the handler."""


def handle(number: int, frame: FrameType | None) -> None:
    raise Heard


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """
    A function that has a signal come after so many seconds, and again later.
    """

    def start(delay: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, delay, SOON)

    before = signal.signal(signal.SIGALRM, handle)
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def taken(lock: Any) -> Any:
    lock.acquire()
    return lock


def wait_at(condition: Any) -> None:
    with condition:
        condition.wait()


def join(queue: Any) -> None:
    queue.join()


def queue_with_a_task() -> Any:
    queue = mp.JoinableQueue()
    queue.put(1)
    queue.get()
    return queue


WAITS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "Lock": (lambda: taken(mp.Lock()), lambda lock: lock.acquire()),
    "Lock with a timeout": (lambda: taken(mp.Lock()), lambda lock: lock.acquire(timeout=10 * SOON)),
    "Semaphore": (lambda: mp.Semaphore(0), lambda semaphore: semaphore.acquire()),
    "Condition": (mp.Condition, wait_at),
    "Event": (mp.Event, lambda event: event.wait()),
    "Barrier": (lambda: mp.Barrier(2), lambda barrier: barrier.wait()),
    "JoinableQueue": (queue_with_a_task, join),
}


# A wait sleeps for 2 ms at first, and then for four times as long as before.
@pytest.mark.parametrize("delay", [0.0021, 0.0102])
@pytest.mark.parametrize("name", WAITS)
@pytest.mark.timeout(20 * SOON)
def test_a_signal_between_two_sleeps_is_not_lost(alarm: Callable[[float], None], name: str, delay: float) -> None:
    make, wait = WAITS[name]
    for attempt in range(20):
        thing = make()
        began = time.monotonic()
        with pytest.raises(Heard):
            alarm(delay + attempt * 0.00002)  # on a busy machine it comes before the wait
            wait(thing)
        alarm(0)
        assert time.monotonic() - began < SOON / 2


def test_an_event_that_is_cleared_at_once_wakes_whoever_waits_for_it(start_method: str) -> None:
    ctx = mp.get_context(start_method)
    event, done = ctx.Event(), threading.Event()

    def pulse() -> None:
        while not done.wait(0.002):
            event.set()
            event.clear()

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        for _ in range(300):
            assert event.wait(TIMEOUT)
    finally:
        done.set()
        thread.join()
