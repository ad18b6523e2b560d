"""Tiny tasks go to workers in batches, and each is still a task of its own: at a death, behind a long one, in order."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import threading
import time
import types
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from support.capabilities import is_emulated
from support.waiting import until

import mp_all as mp
from mp_core.sharing import backend
from mp_pool.scheduling.dispatcher import TINY

COUNT = 20_000
pytestmark = [
    pytest.mark.skipif(not backend.LIBSHM, reason="batches need lines, that is, libshm"),
    pytest.mark.skipif(is_emulated(), reason="a task in an emulator takes too long for batches"),
    pytest.mark.timeout(300),
]


def has_batches(pool: Any) -> bool:
    return any(worker.pace is not None and worker.pace < TINY for worker in pool._scheduler.dispatcher.workers)


def warm(pool: Any) -> None:
    """Run tiny tasks until a worker gets batches."""
    assert until(lambda: pool.map(tasks.square, range(3000), chunksize=1) and has_batches(pool), tasks.PATIENCE)


def strange(number: int) -> Any:
    if number % 331 == 5:
        raise LookupError(number)
    if number % 97 == 3:
        return bytes(70_000)  # too long for one message
    if number % 89 == 2:
        return {number}  # its pickle needs more than atoms
    return number


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_results_and_exceptions_of_a_batch_arrive_each_at_its_place(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        squares = [n * n for n in range(5000)]
        assert until(
            lambda: (
                [wait() for wait in [pool.submit(tasks.square, n) for n in range(5000)]] == squares
                and has_batches(pool.pool)
            ),
            tasks.PATIENCE,
        )
        waits = [pool.submit(strange, n) for n in range(5000)]
        for n, wait in enumerate(waits):
            answer = tasks.outcome(wait)
            if n % 331 == 5:
                assert type(answer) is LookupError and answer.args == (n,)
            else:
                assert answer == strange(n)


def end_on_some(number: int) -> int:
    return tasks.end_on(number, 77, 5077, 10_077)


def test_only_the_task_of_a_batch_is_lost_that_its_worker_was_running(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        warm(pool)
        got, lost = tasks.got_and_lost(pool.imap(end_on_some, range(COUNT)))
        assert [(error.function, error.index) for error in lost] == [("end_on_some", n) for n in (77, 5077, 10_077)]
        assert got == [n for n in range(COUNT) if n not in (77, 5077, 10_077)]


@pytest.mark.parametrize("kind", [*tasks.KINDS, "imap"])
def test_no_task_of_a_batch_is_done_twice_or_lost_unnamed_when_workers_are_killed_at_random(
    kind: str, ctx: BaseContext, start_method: str, tmp_path: Path
) -> None:
    # A worker that is not forked imports NumPy first: it has to live longer than that.
    longest = 0.05 if start_method == "fork" else 0.5
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    path = tmp_path / "counts"
    path.write_bytes(bytes(COUNT))
    of = "pool" if kind == "imap" else kind
    with tasks.either(of, ctx, 2, initializer=tasks.count_in, initargs=(str(path),)) as pool:
        over, killed = threading.Event(), []

        def kill() -> None:
            while not over.wait(chance.uniform(0.0, longest)):
                ready = [worker for worker in list(pool.pool._scheduler.dispatcher.workers) if worker.ready]
                if ready:
                    worker = chance.choice(ready)
                    worker.signal(signal.SIGKILL)
                    killed.append(worker.pid)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            if kind == "imap":
                waits = [pool.pool.imap(tasks.count, range(COUNT)).next] * COUNT
            else:
                waits = [pool.submit(tasks.count, n) for n in range(COUNT)]
            answers = [tasks.outcome(wait) for wait in waits]
        finally:
            over.set()
            killer.join()
    data = path.read_bytes()
    lost = 0
    for n, answer in enumerate(answers):
        if isinstance(answer, mp.WorkerLostError):
            lost += 1
            assert answer.pid in killed and answer.function == "count" and data[n] <= 1
        else:
            assert answer == n and data[n] == 1
    assert lost <= len(killed)


def remember(folder: str) -> None:
    global _folder
    _folder = folder


def end_at_first(number: int) -> int:
    if number % 1000 == 77 and tasks.first_time(f"{_folder}/{number}"):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("method", ["map", "imap", "imap_unordered"])
def test_tasks_of_a_map_that_are_repeated_come_each_at_its_place(method: str, ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2, retries=1, initializer=remember, initargs=(str(tmp_path),)) as pool:
        warm(pool)
        results = list(getattr(pool, method)(end_at_first, range(5000), chunksize=1))
        assert sorted(results) == list(range(5000))
        assert results == sorted(results) or method == "imap_unordered"
        assert len(list(tmp_path.iterdir())) == 5


def the_same(thing: Any) -> Any:
    return thing


@pytest.mark.parametrize("first", [0, 700, 4999])
def test_things_that_need_reducers_may_come_among_tiny_ones(first: int, ctx: BaseContext) -> None:
    things: list[Any] = list(range(5000))
    for at in range(first, 5000, 7):
        things[at] = [bytearray(3), {at}, "long" * 100, (at, (None, ("x",))), [at]][at % 5]
    with ctx.Pool(2) as pool:
        warm(pool)
        assert pool.map(the_same, things, chunksize=1) == things
        assert list(pool.imap(the_same, tuple(things))) == things


def sleep_on(number: int, which: int, seconds: float) -> float:
    if number == which:
        time.sleep(seconds)
    return time.monotonic()


def test_a_long_task_in_a_batch_delays_no_other(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        warm(pool)
        waits = [pool.apply_async(sleep_on, (n, 3000, 4.0)) for n in range(6000)]
        ends = [wait.get(tasks.PATIENCE) for wait in waits]
        assert sum(end >= ends[3000] for end in ends) < 100


def test_the_tasks_of_a_stopped_worker_are_done_by_others(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        warm(pool)
        waits = [pool.apply_async(tasks.square, (n,)) for n in range(COUNT)]
        stopped = pool._scheduler.dispatcher.workers[0]
        stopped.signal(signal.SIGSTOP)
        try:
            # One may be late: that which the stopped worker had begun.
            assert until(lambda: sum(not wait.ready() for wait in waits) < 2, tasks.PATIENCE)
        finally:
            stopped.signal(signal.SIGCONT)
        assert [wait.get(tasks.PATIENCE) for wait in waits] == [n * n for n in range(COUNT)]


def test_a_function_that_cannot_be_pickled_fails_alone(ctx: BaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with mp.get_context(ctx.get_start_method()).Pool(2) as pool:
        warm(pool)
        with pytest.raises(pickle.PicklingError, match="pip install cloudpickle"):
            pool.map(lambda number: number, range(50), chunksize=1)
        assert pool.map(tasks.square, range(50), chunksize=1) == [n * n for n in range(50)]


def test_a_function_that_the_worker_does_not_have_fails_alone(ctx: BaseContext) -> None:
    with mp.get_context(ctx.get_start_method()).Pool(2) as pool:
        warm(pool)
        function = types.FunctionType((lambda number: number).__code__, globals(), "made_later")
        function.__module__, function.__qualname__ = __name__, "made_later"
        globals()["made_later"] = function
        try:
            waits = [pool.apply_async(function if n % 2 else tasks.square, (n,)) for n in range(400)]
            for n, wait in enumerate(waits):
                if n % 2:
                    with pytest.raises(AttributeError, match="made_later"):
                        wait.get(tasks.PATIENCE)
                else:
                    assert wait.get(tasks.PATIENCE) == n * n
        finally:
            del globals()["made_later"]


def test_each_task_gets_an_object_of_its_own_with_a_method(ctx: BaseContext) -> None:
    with mp.get_context(ctx.get_start_method()).Pool(2) as pool:
        warm(pool)
        waits = [pool.apply_async([1, 2, 3].pop) for _ in range(300)]
        shared = [1, 2, 3]
        waits += [pool.apply_async(shared.pop) for _ in range(300)]
        assert {wait.get(tasks.PATIENCE) for wait in waits} == {3}
