"""What was sent, received, returned or raised lives no longer than the program's references: no circle keeps it."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from queue import Full
from typing import Any

import numpy as np
import pytest
from support.waiting import until

import mp_all as mp

# Those of this process, by identity.
living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class Thing:
    """An object with an array, which counts as long as it lives."""

    def __init__(self) -> None:
        self.array = np.arange(20_000)
        living[id(self)] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        living[id(self)] = self


class Failed(Exception):
    """An error that holds a thing, and counts as well."""

    def __init__(self, thing: Any) -> None:
        super().__init__(thing)
        living[id(self)] = self


class Unsendable(Thing):
    """A thing whose pickling fails when its array has been taken."""

    def __reduce__(self) -> Any:
        return Failing(), (self.array,)


class Failing:
    def __call__(self, array: Any) -> Any:
        raise RuntimeError("cannot be made")

    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be sent")


class Unreceivable(Thing):
    """A thing that cannot be made where it arrives."""

    def __reduce__(self) -> Any:
        return fail_to_make, (self.array,)


def fail_to_make(array: Any) -> Any:
    raise RuntimeError("cannot be made")


def same(thing: Any) -> Any:
    return thing


def fail(thing: Any) -> Any:
    raise Failed(thing)


def count_living(_: Any = None) -> int:
    return len(living)


def serve(connection: Any) -> None:
    """Send each thing back, and tell at the end how many of them live."""
    gc.disable()
    while (thing := connection.recv()) is not None:
        connection.send(thing)
    connection.send(count_living())


def through_queue(kind: str) -> Callable[[Any], Any]:
    def send(thing: Any) -> Any:
        queue = getattr(mp.get_context("fork"), kind)()
        queue.put(thing)
        try:
            return queue.get()
        finally:
            queue.close()

    return send


def run(coroutine: Any) -> Any:
    """Run a coroutine; an exception that passes `asyncio.run` is in a circle with its task."""

    async def outcome() -> Any:
        try:
            return await coroutine
        except Exception as error:
            return type(error)

    value = asyncio.run(outcome())
    if isinstance(value, type):
        raise value
    return value


async def through_aqueue(thing: Any) -> Any:
    queue = mp.get_context("fork").Queue()
    await queue.aput(thing)
    try:
        return await queue.aget()
    finally:
        queue.close()


def through_pipe(thing: Any) -> Any:
    reader, writer = mp.get_context("fork").Pipe(False)
    with reader, writer:
        writer.send(thing)
        return reader.recv()


async def through_apipe(thing: Any) -> Any:
    reader, writer = mp.get_context("fork").Pipe()
    with reader, writer:
        await writer.asend(thing)
        return await reader.arecv()


def through_manager(thing: Any) -> Any:
    with mp.get_context("fork").Manager() as manager:
        table = manager.dict()
        table["a"] = thing
        return table["a"]


CHANNELS: dict[str, Callable[[Any], Any]] = {
    "Queue": through_queue("Queue"),
    "SimpleQueue": through_queue("SimpleQueue"),
    "JoinableQueue": through_queue("JoinableQueue"),
    "Pipe": through_pipe,
    "Queue in coroutines": lambda thing: run(through_aqueue(thing)),
    "Pipe in coroutines": lambda thing: run(through_apipe(thing)),
    "Manager": through_manager,
}


def by_callback(pool: Any, function: Any, thing: Any) -> Any:
    results: list[Any] = []
    pool.apply_async(function, (thing,), callback=results.append, error_callback=same).get(60)
    until(lambda: results, 60)
    return results[0]


POOLED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "apply": lambda pool, function, thing: pool.apply(function, (thing,)),
    "apply by keyword": lambda pool, function, thing: pool.apply(function, (), {"thing": thing}),
    "apply_async": lambda pool, function, thing: pool.apply_async(function, (thing,)).get(60),
    "callback": by_callback,
    "map": lambda pool, function, thing: pool.map(function, [thing])[0],
    "map in chunks": lambda pool, function, thing: pool.map(function, [thing, 1, 2, 3], chunksize=2)[0],
    "map_async": lambda pool, function, thing: pool.map_async(function, [thing]).get(60)[0],
    "starmap": lambda pool, function, thing: pool.starmap(function, [(thing,)])[0],
    "imap": lambda pool, function, thing: next(pool.imap(function, [thing])),
    "imap_unordered": lambda pool, function, thing: next(pool.imap_unordered(function, iter([thing]))),
}
SUBMITTED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "submit": lambda executor, function, thing: executor.submit(function, thing).result(60),
    "executor's map": lambda executor, function, thing: next(executor.map(function, [thing])),
    "as_completed": lambda executor, function, thing: next(as_completed([executor.submit(function, thing)])).result(),
}


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """
    Collect no garbage during the test, so that a circle lives on.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with mp.get_context("fork").Pool(1, initializer=gc.disable) as pool:
        yield pool


@pytest.fixture(scope="module")
def executor() -> Iterator[Any]:
    with mp.ProcessPoolExecutor(1, mp_context=mp.get_context("fork"), initializer=gc.disable) as executor:
        executor.submit(same, None).result(60)  # a worker that is forked later has what lives then
        yield executor


def sent_and_received(way: Callable[[Any], Any]) -> None:
    """Send a thing, check what comes back, and drop both."""
    thing = Thing()
    back = way(thing)
    assert back is not thing and back.array.tolist() == thing.array.tolist()
    assert len(living) == 2


@pytest.mark.parametrize("way", CHANNELS)
def test_what_went_through_a_channel_lives_no_longer(strategy: str, way: str) -> None:
    sent_and_received(CHANNELS[way])
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]


@pytest.mark.parametrize("way", POOLED)
def test_what_went_through_a_pool_lives_no_longer(strategy: str, pool: Any, way: str) -> None:
    sent_and_received(lambda thing: POOLED[way](pool, same, thing))
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    assert until(lambda: pool.apply(count_living) == 0)


@pytest.mark.parametrize("way", SUBMITTED)
def test_what_went_through_an_executor_lives_no_longer(strategy: str, executor: Any, way: str) -> None:
    sent_and_received(lambda thing: SUBMITTED[way](executor, same, thing))
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    assert until(lambda: executor.submit(count_living).result(60) == 0)


def test_what_another_process_has_sent_back_lives_in_neither(strategy: str, ctx: Any) -> None:
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=serve, args=(theirs,))
    process.start()
    theirs.close()
    for _ in range(3):
        thing = Thing()
        ours.send(thing)
        ours.recv()
    del thing
    assert until(lambda: not living)
    ours.send(None)
    assert ours.recv() == 0
    ours.close()
    process.join()


def test_the_arguments_of_a_process_live_no_longer_than_its_object(strategy: str, ctx: Any) -> None:
    process = ctx.Process(target=same, args=(Thing(),))
    process.start()
    process.join()
    del process
    assert until(lambda: not living)


def attempt(call: Callable[[Any], Any], kind: type) -> type:
    """Call with a thing of that kind, in a frame that the traceback of the error has; return its class."""
    thing = kind()
    try:
        call(thing)
    except Exception as error:
        return type(error)
    return type(None)


@pytest.mark.parametrize("way", [*POOLED, *SUBMITTED])
def test_an_error_of_a_task_and_its_frames_live_no_longer(pool: Any, executor: Any, way: str) -> None:
    call, where = (POOLED[way], pool) if way in POOLED else (SUBMITTED[way], executor)
    assert attempt(lambda thing: call(where, fail, thing), Thing) is Failed
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    assert until(lambda: pool.apply(count_living) == executor.submit(count_living).result(60) == 0)


@pytest.mark.parametrize("way", CHANNELS)
def test_what_cannot_be_received_lives_no_longer(strategy: str, way: str) -> None:
    assert attempt(CHANNELS[way], Unreceivable) in (RuntimeError, mp.managers.RemoteError)
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0)


@pytest.mark.parametrize("way", [*POOLED, *SUBMITTED])
def test_a_task_that_cannot_be_received_lives_no_longer(strategy: str, pool: Any, executor: Any, way: str) -> None:
    call, where = (POOLED[way], pool) if way in POOLED else (SUBMITTED[way], executor)
    assert attempt(lambda thing: call(where, same, thing), Unreceivable) is RuntimeError
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0)


def wait(thing: Any) -> None:
    time.sleep(300)


@pytest.mark.parametrize("way", ["timeout", "cancel"])
def test_a_task_whose_worker_was_killed_for_it_lives_no_longer(way: str) -> None:
    def call(thing: Any) -> None:
        if way == "timeout":
            pool.options(timeout=0.05).apply(wait, (thing,))
        else:
            pool.apply_async(wait, (thing,)).cancel(running=True)

    with mp.get_context("fork").Pool(1) as pool:
        pool.apply(same, (1,))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            attempt(call, Thing)
            assert pool.apply(same, (1,)) == 1
        assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
        assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("way", ["timeout", "cancel"])
def test_a_call_whose_worker_was_killed_for_it_lives_no_longer(way: str) -> None:
    def call(thing: Any) -> None:
        if way == "timeout":
            executor.options(timeout=0.05).submit(wait, thing).result(60)
        else:
            executor.submit(wait, thing).cancel(running=True)

    with mp.ProcessPoolExecutor(1, mp_context=mp.get_context("fork")) as executor:
        executor.submit(same, 1).result(60)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            attempt(call, Thing)
            assert executor.submit(same, 1).result(60) == 1
        assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
        assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def fail_in_rank(rank: int, thing: Any) -> None:
    raise RuntimeError("of the rank")


@pytest.mark.parametrize("way", ["run", "start_processes", "join"])
def test_an_error_of_a_rank_lives_no_longer(way: str) -> None:
    def call(thing: Any) -> None:
        if way == "run":
            mp.run(fail_in_rank, (thing,), 1, start_method="fork")
        else:
            # Not in a variable, which the traceback would keep.
            mp.start_processes(fail_in_rank, (thing,), 1, way != "join", start_method="fork").join()

    assert attempt(call, Thing) is mp.ProcessRaisedException
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]


def test_what_a_cancelled_put_has_not_sent_lives_no_longer() -> None:
    queue = mp.get_context("fork").Queue(1)
    queue.put(1)

    async def put() -> None:
        try:
            await queue.aput(Thing(), timeout=0.05)
        except Full:
            pass

    asyncio.run(put())
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    queue.close()
    queue.cancel_join_thread()


@pytest.mark.parametrize("way", ["put", "put_nowait", "send"])
def test_what_cannot_be_sent_lives_no_longer(strategy: str, capfd: pytest.CaptureFixture[str], way: str) -> None:
    forking = mp.get_context("fork")
    queue, (reader, writer) = forking.Queue(1), forking.Pipe(False)
    attempt(getattr(writer if way == "send" else queue, way), Unsendable)
    assert until(lambda: not living), [gc.get_referrers(thing) for thing in living.values()]
    for each in queue, reader, writer:
        each.close()
