"""A task whose arguments or result cannot be received fails; the pool goes on with the others."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import Pool
from typing import Any

import numpy as np
import pytest
from support.unreceivable import Fails, OnlyHere, Revoked, refuse_blocks

import mp_all as mp

WAIT_S = 60
LARGE = 50_000  # elements: through shared memory


def total(array: Any) -> float:
    return float(np.sum(array))


def echo(thing: Any) -> Any:
    return thing


def shared(number: int) -> np.ndarray:
    return mp.shared.full(LARGE, number)


def sometimes(number: int) -> Any:
    """A result that cannot be received, for odd numbers."""
    return Fails(OSError(errno.EMFILE, "no descriptor")) if number % 2 else number


def two(first: Any, second: Any) -> Any:
    return first, second


def worker_refuses(number: int) -> int:
    refuse_blocks(number)
    return number


@contextmanager
def one_worker(ctx: Any) -> Iterator[Pool]:
    with ctx.Pool(1) as pool:
        yield pool
        # It goes on, with arrays both ways.
        assert pool.apply_async(total, (np.ones(LARGE),)).get(WAIT_S) == LARGE
        assert float(pool.apply_async(shared, (3,)).get(WAIT_S)[0]) == 3
        pool.close()
        pool.join()


@contextmanager
def one_process(ctx: Any) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=ctx) as executor:
        yield executor
        assert executor.submit(total, np.ones(LARGE)).result(WAIT_S) == LARGE
        assert float(executor.submit(shared, 3).result(WAIT_S)[0]) == 3


def test_results_that_cannot_be_received_fail_their_tasks(ctx: Any, strategy: str) -> None:
    with one_worker(ctx) as pool:
        tasks = [pool.apply_async(sometimes, (number,)) for number in range(6)]
        for number, task in enumerate(tasks):
            if number % 2:
                with pytest.raises(OSError, match="no descriptor"):
                    task.get(WAIT_S)
            else:
                assert task.get(WAIT_S) == number


def test_a_map_with_such_a_result_fails_and_an_unordered_one_gives_the_others(ctx: Any, strategy: str) -> None:
    with one_worker(ctx) as pool:
        with pytest.raises(OSError, match="no descriptor"):
            pool.map_async(sometimes, range(6)).get(WAIT_S)
        good, bad = [], 0
        results = pool.imap_unordered(sometimes, range(6))
        for _ in range(6):
            try:
                good.append(results.next(WAIT_S))
            except OSError:
                bad += 1
        assert (sorted(good), bad) == ([0, 2, 4], 3)


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        (OnlyHere(), OSError),
        (Fails(EOFError("nothing")), EOFError),
        (Fails(KeyError("mine")), KeyError),
        (Revoked(), mp.ReceiveError),
    ],
    ids=lambda a: type(a).__name__,
)
def test_arguments_that_cannot_be_received_fail_their_task(
    ctx: Any, strategy: str, argument: Any, kind: type[Exception]
) -> None:
    with one_worker(ctx) as pool:
        with pytest.raises(kind):
            pool.apply_async(two, (np.ones(LARGE), argument)).get(WAIT_S)
        with pytest.raises(kind):
            pool.map_async(echo, [1, argument, 3]).get(WAIT_S)
        results = pool.imap(echo, [1, argument, 3])
        assert results.next(WAIT_S) == 1
        with pytest.raises(kind):
            results.next(WAIT_S)
        assert results.next(WAIT_S) == 3


def test_shared_results_that_the_parent_cannot_attach_fail_and_leave_no_memory(ctx: Any, strategy: str) -> None:
    with one_worker(ctx) as pool:
        refuse_blocks(errno.EMFILE)
        try:
            with pytest.raises(mp.ReceiveError, match="descriptor"):
                pool.apply_async(shared, (1,)).get(WAIT_S)
        finally:
            refuse_blocks(0)
        assert pool.apply_async(in_flight).get(WAIT_S) == 0


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


def test_shared_arguments_that_a_worker_cannot_attach_fail_and_leave_no_memory(ctx: Any, strategy: str) -> None:
    with one_worker(ctx) as pool:
        pool.apply_async(worker_refuses, (errno.ENFILE,)).get(WAIT_S)
        array = mp.shared.ones(LARGE)
        with pytest.raises(mp.ReceiveError, match="descriptor"):
            pool.apply_async(total, (array,)).get(WAIT_S)
        # Private arrays still arrive.
        assert pool.apply_async(total, (np.ones(LARGE),)).get(WAIT_S) == LARGE
        pool.apply_async(worker_refuses, (0,)).get(WAIT_S)
        assert in_flight() == 0


def test_futures_fail_and_the_executor_is_not_broken(ctx: Any, strategy: str) -> None:
    with one_process(ctx) as executor:
        futures = [executor.submit(sometimes, number) for number in range(4)]
        futures.append(executor.submit(two, np.ones(LARGE), OnlyHere()))
        for number, future in enumerate(futures):
            if number in (0, 2):
                assert future.result(WAIT_S) == number
            else:
                assert isinstance(future.exception(WAIT_S), mp.ReceiveError)


def test_an_executor_of_workers_with_one_task_each_goes_on(strategy: str) -> None:
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn"), max_tasks_per_child=1) as executor:
        futures = [executor.submit(sometimes, number) for number in range(4)]
        assert [type(future.exception(WAIT_S)).__name__ for future in futures] == ["NoneType", "ReceiveError"] * 2
