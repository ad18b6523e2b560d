"""A function that many tasks call travels to each worker once, and each task has its own, as in the standard pool."""

from __future__ import annotations

import functools
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp
from mp_pool.tasks import function_cache

LENGTH = 500_000
BYTES = 8 * LENGTH


def first_and_last(array: np.ndarray, number: int) -> float:
    return float(array[0] + array[-1] + number)


def change(array: np.ndarray, number: int) -> float:
    """Return the sum before this task has changed the array."""
    before = float(array.sum())
    array += 1
    return before


def write_to(array: np.ndarray, number: int) -> None:
    array[number] = number


def end_or_add(array: np.ndarray, bad: tuple[int, ...], number: int) -> float:
    return first_and_last(array, tasks.end_on(number, *bad))


class Model:
    """Its methods are pickled with the object."""

    def __init__(self) -> None:
        self.weights = np.ones(LENGTH)
        self.calls = 0

    def call(self, number: int) -> tuple[int, float]:
        self.calls += 1
        self.weights[0] += 1
        return self.calls, float(self.weights[0])

    def __call__(self, number: int) -> float:
        return float(self.weights[-1]) + number


def copied(call: Callable[[], Any]) -> int:
    before = mp.memory_stats()["copied_bytes"]
    call()
    return mp.memory_stats()["copied_bytes"] - before


def test_an_array_of_a_function_is_copied_once_for_all_tasks_and_workers(ctx: BaseContext, strategy: str) -> None:
    function = functools.partial(first_and_last, np.ones(LENGTH))
    numbers = range(40)
    expected = [2.0 + number for number in numbers]
    with ctx.Pool(2) as pool:
        for call in (
            lambda: pool.map(function, numbers, chunksize=1),
            lambda: pool.map(function, numbers, chunksize=7),
            lambda: list(pool.imap(function, numbers)),
            lambda: list(pool.imap(function, iter(numbers), chunksize=3)),
            lambda: list(pool.imap(function, numbers, buffersize=4)),
            lambda: sorted(pool.imap_unordered(function, numbers)),
            lambda: pool.starmap(function, [(number,) for number in numbers], chunksize=1),
        ):
            results: list[Any] = []
            assert copied(lambda call=call, results=results: results.append(call())) == BYTES
            assert results == [expected]
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        assert copied(lambda: list(executor.map(function, numbers))) == BYTES
        assert list(executor.map(function, numbers, chunksize=6)) == expected
        assert list(executor.map(Model(), numbers)) == [1.0 + number for number in numbers]


def test_a_task_that_changes_its_function_changes_that_of_no_other_task(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        array = np.ones(LENGTH)
        assert pool.map(functools.partial(change, array), range(20), chunksize=1) == [float(LENGTH)] * 20
        assert array.sum() == LENGTH
        assert pool.map(Model().call, range(20), chunksize=1) == [(1, 2.0)] * 20
        # As in the standard pool, the items of a chunk have one function.
        assert pool.map(Model().call, range(4), chunksize=2) == [(1, 2.0), (2, 3.0)] * 2


def test_a_shared_array_in_a_function_stays_shared(ctx: BaseContext, strategy: str) -> None:
    with ctx.Pool(2) as pool:
        array = mp.shared.zeros(100_000)
        pool.map(functools.partial(write_to, array), range(50), chunksize=1)
        assert array[:50].tolist() == list(range(50)) and not array[50:].any()


def test_a_read_only_array_stays_read_only(ctx: BaseContext) -> None:
    array = np.ones(LENGTH)
    array.flags.writeable = False
    with ctx.Pool(1) as pool, pytest.raises(ValueError, match="read-only"):
        pool.map(functools.partial(change, array), range(4), chunksize=1)


LITTLE = 4096  # bytes of other blocks


def functions_held(number: int) -> int:
    return len(function_cache._held)


def test_pool_and_workers_release_a_function_when_its_tasks_are_done(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        start = mp.memory_stats()["live_bytes"]
        shared = mp.shared.ones(LENGTH)
        for array in (np.ones(LENGTH), shared):
            for _ in range(3):
                pool.map(functools.partial(first_and_last, array), range(8), chunksize=1)
        assert until(lambda: mp.memory_stats()["live_bytes"] <= start + BYTES + LITTLE, tasks.PATIENCE)
        assert until(lambda: max(pool.map(functions_held, [0] * 8, chunksize=1)) == 0, tasks.PATIENCE)
        before = mp.memory_stats()["live_bytes"]
        del shared, array
        assert until(lambda: mp.memory_stats()["live_bytes"] <= before - BYTES, tasks.PATIENCE)


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_a_replaced_worker_gets_the_function_too(ctx: BaseContext, strategy: str, kind: str) -> None:
    array = np.ones(LENGTH) if kind == "private" else mp.shared.ones(LENGTH)
    bad = (5, 6, 17, 30)
    with ctx.Pool(2) as pool:
        results = pool.imap(functools.partial(end_or_add, array, bad), range(40))
        outcomes = [tasks.outcome(lambda: results.next(tasks.PATIENCE)) for _ in range(40)]
    lost = {number for number, each in enumerate(outcomes) if isinstance(each, mp.WorkerLostError)}
    assert lost == set(bad)
    assert [each for n, each in enumerate(outcomes) if n not in lost] == [2.0 + n for n in range(40) if n not in lost]
    assert all(outcomes[number].function == "end_or_add" for number in bad)


def test_a_function_survives_random_kills_of_its_workers(ctx: BaseContext, start_method: str, strategy: str) -> None:
    """
    A worker may die before, while and after it receives the function; while none has done a task, all live.

    The array is private. A shared one may stay in flight until the session ends, if its worker dies between reading the
    function's packet and receiving the array (docs/pool.md).
    """
    array = np.full(LENGTH, 1.0)
    # A worker that is not forked imports NumPy first: it has to live longer than that.
    pause = 0.02 if start_method == "fork" else 0.7
    with ctx.Pool(2, retries=1000) as pool:
        over, killed = threading.Event(), 0

        def kill() -> None:
            nonlocal killed
            while not over.wait(pause):
                workers = list(pool._scheduler.dispatcher.workers)
                if workers and workers[0].ready and any(worker.pace is not None for worker in workers):
                    workers[0].signal(signal.SIGKILL)
                    killed += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while killed < 6:
                results = pool.map_async(functools.partial(first_and_last, array), range(30), chunksize=1)
                assert results.get(tasks.PATIENCE) == [2.0 + number for number in range(30)]
        finally:
            over.set()
            killer.join()


class FailsOnLoading:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return fail_to_load, (str(self.path),)

    def __call__(self, number: int) -> int:
        return number


def fail_to_load(path: str) -> None:
    raise LookupError(f"no file {path}")


def test_a_function_that_cannot_be_loaded_fails_each_of_its_tasks(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2) as pool:
        outcomes = pool.imap(FailsOnLoading(tmp_path), range(10))
        for _ in range(10):
            with pytest.raises(LookupError, match="no file"):
                outcomes.next(tasks.PATIENCE)
        assert pool.map(tasks.square, range(3)) == [0, 1, 4]


def test_the_error_of_a_function_that_is_not_received_has_the_same_stack_in_each_task(tmp_path: Path) -> None:
    function_cache.hold(1, ForkingPickler.dumps(FailsOnLoading(tmp_path)))
    texts = set()
    for number in range(5):
        with pytest.raises(LookupError, match="no file") as caught:
            function_cache.referred(1)(number)
        texts.add("".join(traceback.format_exception(caught.value)))
    function_cache.forget(1)
    assert len(texts) == 1


def test_a_function_with_a_descriptor_is_sent_with_each_task(ctx: BaseContext) -> None:
    ours, theirs = mp.Pipe()
    with ours, theirs, ctx.Pool(2) as pool:
        pool.map(functools.partial(send_on, theirs), range(6), chunksize=1)
        assert sorted(ours.recv() for _ in range(6)) == list(range(6))


def send_on(connection: Any, number: int) -> None:
    with connection:
        connection.send(number)


ARRAY = np.empty(0)


def array_of_initializer() -> float:
    return float(ARRAY[0] + ARRAY[-1])


def keep_array(array: np.ndarray) -> None:
    globals()["ARRAY"] = array


def test_arrays_of_initargs_are_copied_once(ctx: BaseContext, start_method: str, strategy: str) -> None:
    def use() -> None:
        with ctx.Pool(2, keep_array, (np.ones(LENGTH),)) as pool:
            assert pool.starmap(array_of_initializer, [()] * 40, chunksize=1) == [2.0] * 40

    # A forked worker has inherited it.
    assert copied(use) == (0 if start_method == "fork" else BYTES)


KEPT: list[Any] = []


def keep(*things: Any) -> None:
    KEPT.extend(things)


class Holder:
    """Has a queue, and a method for an initializer."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def keep(self) -> None:
        KEPT.append(self.queue)


def put_into_all(number: int) -> float:
    array = 0.0
    for thing in KEPT:
        if isinstance(thing, np.ndarray):
            array = float(thing.sum())
        elif hasattr(thing, "acquire"):
            with thing:
                pass
        else:
            queue = thing[0] if isinstance(thing, list) else thing
            queue.put(number)
    return array


@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.parametrize("beside", ["an array and a lock", "nothing", "the object of a method"])
def test_an_initializer_may_have_queues(kind: str, beside: str, ctx: BaseContext) -> None:
    queues = [ctx.SimpleQueue(), ctx.Queue(10), ctx.JoinableQueue()]
    initializer, initargs = keep, (*queues[:2], [queues[2]])
    if beside == "the object of a method":
        del queues[1:]
        initializer, initargs = Holder(queues[0]).keep, ()
    elif beside == "an array and a lock":
        initargs += (np.ones(LENGTH), ctx.Lock())
    with tasks.either(kind, ctx, 2, initializer=initializer, initargs=initargs) as pool:
        results = [pool.submit(put_into_all, number) for number in range(5)]
        assert {wait() for wait in results} == {LENGTH if len(initargs) > 3 else 0.0}
        for queue in queues:
            assert sorted(queue.get() for _ in range(5)) == [0, 1, 2, 3, 4]
