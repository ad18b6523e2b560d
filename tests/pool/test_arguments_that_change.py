"""A call has the arguments of that moment: the program may change them while it waits for a worker."""

from __future__ import annotations

import operator
import socket
import sys
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from multiprocessing.pool import AsyncResult
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest

import mp_all as mp
from mp_pool.scheduling.scheduler import Scheduler

MIB = 1 << 20


class Busy:
    """A pool whose one worker is busy until *go* is called."""

    def __init__(self, ctx: BaseContext) -> None:
        self._event = ctx.Event()
        self.pool: Any = ctx.Pool(1, keep, (self._event,))
        self.first: AsyncResult[None] = self.pool.apply_async(wait_for_it)

    def go(self) -> None:
        self._event.set()


EVENT: Any = None


def keep(event: Any) -> None:
    global EVENT
    EVENT = event


def wait_for_it() -> None:
    assert EVENT.wait(tasks.PATIENCE)


@pytest.fixture
def busy(ctx: BaseContext) -> Iterator[Busy]:
    made = Busy(ctx)
    try:
        yield made
        made.go()
        made.pool.close()
        made.pool.join()
    finally:
        made.pool.terminate()


class Counter:
    number = 0

    def get(self) -> int:
        return self.number


def first_of(*, a: Any) -> Any:
    return a[0]


def test_a_waiting_call_has_the_arguments_and_the_object_of_its_submission(busy: Busy) -> None:
    numbers, small, large, counter = [0], np.zeros(4), np.zeros(20_000), Counter()
    results = []
    for number in range(40):
        numbers[0] = counter.number = number
        small[:] = large[:] = number
        results += [
            busy.pool.apply_async(operator.itemgetter(0), (numbers,)),
            busy.pool.apply_async(operator.itemgetter(3), (small,)),
            busy.pool.apply_async(operator.itemgetter(-1), (large,)),
            busy.pool.apply_async(counter.get),
            busy.pool.apply_async(numbers.__getitem__, (0,)),
            busy.pool.apply_async(first_of, (), {"a": numbers}),
        ]
    busy.go()
    assert [result.get(tasks.PATIENCE) for result in results] == [number for number in range(40) for _ in range(6)]


def answer(connection: socket.socket) -> None:
    with connection:
        connection.sendall(b"ok")


def test_a_socket_may_be_closed_after_the_call(busy: Busy) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    for theirs, _ in pairs:
        busy.pool.apply_async(answer, (theirs,))
        theirs.close()
    busy.go()
    for _, ours in pairs:
        with ours:
            ours.settimeout(tasks.PATIENCE)
            assert ours.recv(2) == b"ok"


def test_the_copies_of_waiting_calls_take_a_part_of_the_memory(busy: Busy) -> None:
    array = np.zeros(MIB, np.uint8)
    results = [busy.pool.apply_async(operator.itemgetter(0), (array,)) for _ in range(100)]
    assert mp.memory_stats()["in_flight_bytes"] <= 20 * MIB
    busy.go()
    assert [result.get(tasks.PATIENCE) for result in results] == [0] * 100


def test_the_copies_of_waiting_calls_go_with_the_pool(busy: Busy) -> None:
    array = np.zeros(MIB, np.uint8)
    for _ in range(10):
        busy.pool.apply_async(operator.itemgetter(0), (array,))
    assert mp.memory_stats()["in_flight_bytes"] >= 8 * MIB
    busy.pool.terminate()
    busy.pool.join()
    assert mp.memory_stats()["in_flight_bytes"] == 0


def first_and_length(array: np.ndarray, numbers: list[int]) -> tuple[int, int]:
    return int(array[0]), len(numbers)


def test_many_waiting_calls_share_one_array(busy: Busy) -> None:
    """A block has 64 in-flight references; a pickle for each of 300 calls would need more."""
    array, numbers = mp.shared.ones(MIB, np.uint8), [1]
    results = [busy.pool.apply_async(first_and_length, (array, numbers)) for _ in range(300)]
    numbers.append(2)
    busy.go()
    answers = [result.get(tasks.PATIENCE) for result in results]
    assert answers[:60] == [(1, 1)] * 60 and set(answers[60:]) <= {(1, 1), (1, 2)}
    assert mp.memory_stats()["in_flight_bytes"] == 0


@pytest.mark.parametrize("end", ["terminate", "cancel"])
def test_waiting_calls_that_share_one_array_leave_no_reference_to_it(busy: Busy, end: str) -> None:
    array = mp.shared.ones(MIB, np.uint8)
    results = [busy.pool.apply_async(first_and_length, (array, [1])) for _ in range(300)]
    if end == "cancel":
        assert all(result.cancel() for result in results)
    busy.pool.terminate()
    busy.pool.join()
    assert mp.memory_stats()["in_flight_bytes"] == 0


def second_of(one: np.ndarray, other: np.ndarray, numbers: list[int]) -> int:
    return numbers[int(other[0])]


def test_two_views_of_one_array_do_not_make_a_call_late(busy: Busy) -> None:
    array, numbers = mp.shared.ones(MIB, np.uint8), [0, 0]
    results = []
    for number in range(20):
        numbers[1] = number
        results.append(busy.pool.apply_async(second_of, (array[:9], array[1:], numbers)))
    busy.go()
    assert [result.get(tasks.PATIENCE) for result in results] == list(range(20))


class Stop(Exception):
    """Raised as if by a signal handler."""


def test_an_exception_between_the_pickle_and_the_queue_leaves_nothing(busy: Busy) -> None:
    def stop(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code is Scheduler.enqueue.__code__:
            raise Stop

    array, numbers = np.zeros(20 * MIB, np.uint8), [1]
    sys.setprofile(stop)
    try:
        with pytest.raises(Stop):
            busy.pool.apply_async(len, (array,))
    finally:
        sys.setprofile(None)
    assert mp.memory_stats()["in_flight_bytes"] == 0
    length = busy.pool.apply_async(len, (numbers,))  # it does not count
    numbers.clear()
    busy.go()
    assert length.get(tasks.PATIENCE) == 1


def die_once(flag: str, numbers: list[int]) -> int:
    tasks.end_once(flag)
    return len(numbers)


def test_a_repeated_call_has_the_same_numbers(ctx: BaseContext, tmp_path: Path) -> None:
    numbers = [1, 2, 3]
    with ctx.Pool(1, retries=1) as pool:
        length = pool.apply_async(die_once, (str(tmp_path / "flag"), numbers))
        numbers.clear()
        assert length.get(tasks.PATIENCE) == 3


def test_a_call_that_cannot_be_pickled_has_one_error_and_the_others_go_on(busy: Busy) -> None:
    bad = busy.pool.apply_async(len, ([lambda: 0, socket.socket],), error_callback=(errors := []).append)
    refused = busy.pool.apply_async(len, ([(number for number in ())],), error_callback=errors.append)
    good = busy.pool.apply_async(len, ([1, 2],))
    busy.go()
    assert good.get(tasks.PATIENCE) == 2 and bad.get(tasks.PATIENCE) == 2
    with pytest.raises(TypeError, match="generator"):
        refused.get(tasks.PATIENCE)
    assert len(errors) == 1
