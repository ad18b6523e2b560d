"""A thread that waits for the result of a short call receives it itself; everybody else gets theirs as before."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import as_completed, wait
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all

# On one that others use too, nobody spins: libshm's spin.c, Note [Two processes on one processor].
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="thread and worker need a processor each")
PATIENCE = tasks.PATIENCE
both = pytest.mark.parametrize("kind", tasks.KINDS)


def received(pool: tasks.Either) -> int:
    return int(pool.pool._scheduler._received)


def warm(pool: tasks.Either) -> None:
    """Call until this thread has received a result itself: with pauses, after which a worker wakes late, seldom."""
    before, calls = received(pool), range(200)
    assert until(lambda: any(pool.submit(tasks.square, 3)() == 9 and received(pool) > before for _ in calls), PATIENCE)


@both
def test_a_thread_that_waits_for_short_calls_receives_their_results(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        warm(pool)


@both
def test_errors_arrays_and_deaths_come_to_a_thread_that_receives(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        warm(pool)
        assert isinstance(tasks.outcome(pool.submit(int, "x")), ValueError)
        warm(pool)
        assert pool.submit(np.arange, 100_000)()[-1] == 99_999
        warm(pool)
        assert isinstance(tasks.outcome(pool.submit(os._exit, 3)), mp_all.WorkerLostError)
        assert until(lambda: pool.submit(tasks.square, 3)() == 9, PATIENCE)
        warm(pool)


@both
def test_a_worker_that_dies_when_a_thread_is_about_to_receive_is_lost_and_nothing_else(
    kind: str, ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = None
    while answer is None:  # the task was not sent yet when the thread began to wait
        with tasks.either(kind, ctx, 1) as pool, monkeypatch.context() as patch:
            warm(pool)  # an executor starts its worker
            scheduler = pool.pool._scheduler
            (worker,) = scheduler.dispatcher.workers

            def dies(*args: Any, may: Any = scheduler._may_be_received, worker: Any = worker) -> bool:
                if not may(*args):
                    return False
                worker.signal(signal.SIGKILL)
                assert until(lambda: worker.ring.fileno() < 0, PATIENCE)
                return True

            patch.setattr(scheduler, "_may_be_received", dies)
            answer = tasks.outcome(pool.submit(time.sleep, 1))
            patch.undo()
            if answer is not None:
                assert isinstance(answer, mp_all.WorkerLostError)
                assert worker.ring.first() is None and worker.ring.claimed > 1 << 60
            assert pool.submit(tasks.square, 3)() == 9


def beside_a_thread_that_receives(pool: tasks.Either, use: Callable[[], None]) -> None:
    """Call *use* while another thread makes short calls and receives their results."""
    ended = threading.Event()
    problems: list[Any] = []

    def call() -> None:
        while not ended.is_set():
            if pool.submit(tasks.square, 3)() != 9:
                problems.append("a wrong result")

    warm(pool)
    thread = threading.Thread(target=call)
    thread.start()
    try:
        use()
    finally:
        ended.set()
        thread.join(PATIENCE)
    assert not thread.is_alive() and not problems


def test_callbacks_and_other_threads_get_theirs_while_a_thread_receives(ctx: BaseContext) -> None:
    with tasks.either("pool", ctx) as pool:

        def use() -> None:
            for n in range(200):
                called = threading.Event()
                pool.pool.apply_async(tasks.square, (n,), callback=lambda value, called=called: called.set())
                assert called.wait(PATIENCE)
            assert pool.pool.map(tasks.square, range(50), chunksize=1) == [n * n for n in range(50)]

        beside_a_thread_that_receives(pool, use)


def test_futures_are_done_for_all_that_look_while_a_thread_receives(ctx: BaseContext) -> None:
    with tasks.either("executor", ctx) as pool:
        executor = pool.pool

        def use() -> None:
            for _ in range(50):
                futures = [executor.submit(tasks.square, n) for n in range(4)]
                assert not wait(futures, PATIENCE).not_done
                assert sorted(future.result() for future in as_completed(futures)) == [0, 1, 4, 9]
                called = threading.Event()
                future = executor.submit(tasks.square, 2)
                future.add_done_callback(lambda _, called=called: called.set())
                assert called.wait(PATIENCE)

        beside_a_thread_that_receives(pool, use)


def test_several_threads_get_the_same_result(ctx: BaseContext) -> None:
    with tasks.either("pool", ctx) as pool:
        for n in range(100):
            warm(pool) if n % 10 == 0 else None
            result = pool.pool.apply_async(tasks.square, (n,))
            values: list[int] = []
            threads = [threading.Thread(target=lambda r=result, v=values: v.append(r.get(PATIENCE))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            assert values == [n * n] * 3


def test_a_pool_that_is_closed_ends_after_a_call_that_was_received(ctx: BaseContext) -> None:
    with tasks.either("pool", ctx) as pool:
        warm(pool)
        pool.pool.close()
        pool.pool.join()
