"""Queues, connections, locks and shared ctypes are arguments and results of tasks, travel in queues, leave no trace."""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import signal
import sys
from multiprocessing import resource_sharer
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp
from mp_core.installation import contexts
from mp_pool.tasks.release import release

both = pytest.mark.parametrize("kind", tasks.KINDS)
QUEUES = ["Queue", "SimpleQueue", "JoinableQueue"]


def put(queue: Any, thing: Any) -> None:
    queue.put(thing)


def get(queue: Any) -> Any:
    return queue.get()


def receive(connection: Any) -> Any:
    return connection.recv()


def add(lock: Any, counts: np.ndarray, times: int) -> None:
    for _ in range(times):
        with lock:
            counts[0] += 1


def acquire(lock: Any) -> bool:
    return bool(lock.acquire(timeout=0.01))


def wait(event: Any) -> bool:
    return bool(event.wait(tasks.PATIENCE))


def announce_and_wait(condition: Any, event: Any) -> bool:
    with condition:
        event.set()
        return bool(condition.wait(tasks.PATIENCE))


def meet(barrier: Any) -> int:
    return int(barrier.wait(tasks.PATIENCE))


def queue_of(*things: Any) -> Any:
    queue = contexts.default_context.SimpleQueue()
    for thing in things:
        queue.put(thing)
    return queue


def hold_and_die(lock: Any) -> None:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("queue_kind", QUEUES)
@both
def test_a_queue_is_an_argument_of_tasks(kind: str, ctx: BaseContext, queue_kind: str) -> None:
    queue: Any = getattr(contexts.default_context.get_context(ctx.get_start_method()), queue_kind)()
    with tasks.either(kind, ctx) as pool:
        for wait_for in [pool.submit(put, queue, number) for number in range(20)]:
            wait_for()
        assert sorted(queue.get() for _ in range(20)) == [*range(20)]
        queue.put(np.arange(100_000))
        assert pool.submit(get, queue)()[-1] == 99_999
        if queue_kind == "JoinableQueue":
            for _ in range(21):
                queue.task_done()
            queue.join()
    queue.close()


@pytest.mark.parametrize("queue_kind", QUEUES)
def test_a_map_over_a_partial_with_a_queue_sends_it_to_each_worker_once(ctx: BaseContext, queue_kind: str) -> None:
    context: Any = contexts.default_context.get_context(ctx.get_start_method())
    queue = getattr(context, queue_kind)()
    with context.Pool(2) as pool:
        pool.map(functools.partial(put, queue), range(500), chunksize=1)
        assert sorted(queue.get() for _ in range(500)) == [*range(500)]
        pool.starmap(put, [(queue, number) for number in range(40)])
        assert sorted(queue.get() for _ in range(40)) == [*range(40)]
    queue.close()


@pytest.mark.parametrize("lock_kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
@both
def test_a_lock_is_an_argument_of_tasks(kind: str, ctx: BaseContext, lock_kind: str) -> None:
    lock, counts = getattr(mp, lock_kind)(), mp.shared.zeros(1, int)
    with tasks.either(kind, ctx) as pool:
        for wait_for in [pool.submit(add, lock, counts, 300) for _ in range(4)]:
            wait_for()
        assert counts[0] == 1200
        with lock:
            assert not pool.submit(acquire, lock)()


@both
def test_events_conditions_barriers_and_pipes_are_arguments_of_tasks(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        event = mp.Event()
        waits = pool.submit(wait, event)
        event.set()
        assert waits()
        condition, begun = mp.Condition(), mp.Event()
        waits = pool.submit(announce_and_wait, condition, begun)
        assert begun.wait(tasks.PATIENCE)
        with condition:
            condition.notify()
        assert waits()
        barrier = mp.Barrier(2)
        waits = pool.submit(meet, barrier)
        assert {barrier.wait(tasks.PATIENCE), waits()} == {0, 1}
        reader, writer = mp.get_context(ctx.get_start_method()).Pipe(False)
        waits = pool.submit(receive, reader)
        writer.send("through")
        assert waits() == "through"
        reader.close()
        writer.close()


@both
def test_a_queue_is_a_result_and_an_object_in_a_queue(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        queue = pool.submit(queue_of, 1, "two", np.ones(50_000))()
        assert (queue.get(), queue.get(), queue.get().sum()) == (1, "two", 50_000)
        carrier = contexts.default_context.SimpleQueue()
        lock = mp.Lock()
        carrier.put([queue, lock])
        other, same = carrier.get()
        pool.submit(put, other, "through the other")()
        assert queue.get() == "through the other"
        with lock:
            assert not same.acquire(timeout=0)
        for each in (queue, other, carrier):
            each.close()


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("n", ctypes.c_int))


def change(value: Any, array: Any, raw: Any, point: Any) -> tuple[Any, ...]:
    with value.get_lock():
        value.value += 1
    array[1] += 2
    np.frombuffer(raw)[:] += 1
    point.x += 0.5
    return value, array, raw, point


@both
def test_shared_ctypes_are_arguments_and_results_of_tasks(kind: str, ctx: BaseContext) -> None:
    value, array, raw = ctx.Value("i", 5), ctx.Array("d", [1, 2, 3]), ctx.RawArray("d", 50_000)
    point = ctx.Value(Point, 1.0, 2)
    with tasks.either(kind, ctx) as pool:
        returned = [pool.submit(change, value, array, raw, point)() for _ in range(4)][-1]
    assert (value.value, array[:], raw[7], point.x) == (9, [1, 10, 3], 4.0, 3.0)
    returned[0].value, returned[1][0], returned[2][8], returned[3].n = 50, 60, 70, 80
    assert (value.value, array[0], raw[8], point.n) == (50, 60, 70, 80)
    process = ctx.Process(target=change, args=(value, array, raw, point))
    process.start()
    process.join()
    assert (value.value, array[1], raw[8]) == (51, 12, 71)


def add_one(array: np.ndarray) -> bool:
    array += 1
    return mp.is_shared(array)


def test_an_array_over_a_raw_array_is_shared_and_is_sent_without_a_copy(ctx: BaseContext) -> None:
    raw, locked = ctx.RawArray("d", 50_000), ctx.Array("i", 50_000)
    arrays = [
        np.frombuffer(raw),
        np.frombuffer(locked.get_obj(), "i4"),
        np.ctypeslib.as_array(raw)[100:].reshape(2, -1),
    ]
    assert all(map(mp.is_shared, arrays)) and not arrays[0].any()
    before = mp.memory_stats()["copied_bytes"]
    with ctx.Pool(2) as pool:
        assert pool.map(add_one, arrays, 1) == [True] * 3
    assert (raw[0], raw[100], locked[9]) == (1, 2, 1)
    assert mp.memory_stats()["copied_bytes"] == before


def test_the_memory_of_a_raw_array_lives_as_long_as_an_array_over_it() -> None:
    before = mp.memory_stats()["live_bytes"]
    array = np.frombuffer(mp.RawArray("d", 100_000))
    array[:] = 3
    others = [mp.RawArray("d", 100_000) for _ in range(3)]
    assert (array == 3).all() and not any(np.frombuffer(other).any() for other in others)
    del array, others
    assert mp.memory_stats()["live_bytes"] == before


def test_the_lock_of_a_killed_task_passes_on(ctx: BaseContext) -> None:
    lock = mp.Lock()
    with mp.get_context(ctx.get_start_method()).Pool(1) as pool:
        with pytest.raises(mp.WorkerLostError):
            pool.apply(hold_and_die, (lock,))
        with pytest.warns(mp.OwnerDiedWarning):
            assert lock.acquire(timeout=tasks.PATIENCE)
        lock.release()


@both
def test_what_a_killed_worker_did_not_receive_is_closed(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    queue, lock = contexts.default_context.get_context(ctx.get_start_method()).Queue(), mp.Lock()
    before = len(resource_sharer._resource_sharer._cache)
    with tasks.either(kind, ctx) as pool:
        lost = pool.submit(max, tasks.Deadly("exit", tmp_path / "seen"), queue, lock)
        assert isinstance(tasks.outcome(lost), mp.WorkerLostError)
        assert until(lambda: len(resource_sharer._resource_sharer._cache) == before, tasks.PATIENCE)
        assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0, tasks.PATIENCE)
        pool.submit(put, queue, 1)()
        assert queue.get() == 1
    queue.close()
    queue.join_thread()


def test_the_release_of_a_queue_closes_what_was_not_received_and_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: errors.append(error))  # the thread that sends descriptors
    queue, before = contexts.default_context.SimpleQueue(), len(resource_sharer._resource_sharer._cache)
    for is_received in (False, True):
        data = bytes(ForkingPickler.dumps(queue))
        assert len(resource_sharer._resource_sharer._cache) == before + 4
        if is_received:
            other = ForkingPickler.loads(data)
            other.put("through")
            assert queue.get() == "through"
            other.close()
        release(data)
        assert until(lambda: len(resource_sharer._resource_sharer._cache) == before, tasks.PATIENCE)
    assert ForkingPickler.loads(ForkingPickler.dumps(queue)).empty()  # that thread has served all before
    assert not errors
    queue.close()


def test_what_cannot_travel_is_the_standard_error() -> None:
    for thing in (
        mp.Queue(),
        mp.SimpleQueue(),
        mp.Lock(),
        mp.Event(),
        mp.Barrier(2),
        mp.Value("i"),
    ):
        with pytest.raises(RuntimeError, match="should only be shared between processes through inheritance"):
            pickle.dumps(thing)
    mp.set_sharing(False)
    try:
        with mp.get_context("fork").Pool(1) as pool, pytest.raises(RuntimeError, match="through inheritance"):
            pool.apply(abs, (mp.Lock(),))
    finally:
        mp.set_sharing(True)
