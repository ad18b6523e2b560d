"""The scenes: what programs do, each with one call that is interrupted everywhere.

A scene gets the module (`mp_all`, or `multiprocessing` as the yardstick) and an `Interrupt`. It does what a program
does around the call, in whatever state the interruption has left its objects. To add one, write a function here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from queue import Empty
from typing import Any
from unittest.mock import patch

from mp_spawn.jobs import launch

from .scene import Interrupt, Scene

__all__ = ["SCENES"]

SCENES: dict[str, Scene] = {}
#: Large enough to travel through a block.
LARGE = b"x" * (1 << 17)


class Thing:
    """Needs a pickler."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts


def scene(*, first_use: bool = False) -> Callable[[Callable[[Any, Interrupt], None]], Scene]:
    def add(function: Callable[[Any, Interrupt], None]) -> Scene:
        made = SCENES[function.__name__] = Scene(function, first_use)
        return made

    return add


def received(queue: Any, at_least: int = 0) -> list[Any]:
    """Return what is in the queue, which gets *at_least* so many messages."""
    found: list[Any] = []
    while True:
        try:
            found.append(queue.get(timeout=PATIENT if len(found) < at_least else 0.02))
        except Empty:
            return found


def close(queue: Any) -> None:
    queue.close()
    queue.join_thread()


# ---- queues and connections ------------------------------------------------------------------------------------------


@scene()
def put_of_a_number(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.Queue(2)
    interrupt(lambda: queue.put(1), lambda: queue.put(2))
    interrupt.expect(1 in received(queue) or interrupt.was_interrupted, "the message is lost")
    queue.put(3)
    interrupt.expect(3 in received(queue, 1), "the queue does not go on")
    close(queue)


def end_of_one_that_goes_on(interrupt: Interrupt, queue: Any) -> None:
    queue.put(3)
    interrupt.expect(3 in received(queue, 1), "the queue does not go on")
    close(queue)


@scene()
def put_with_memory(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.Queue(2)
    interrupt(lambda: queue.put(Thing(LARGE)), lambda: queue.put(2))
    got = received(queue)
    interrupt.expect(got or interrupt.was_interrupted, "the message is lost")
    del got
    end_of_one_that_goes_on(interrupt, queue)


@scene()
def put_into_a_full_ring(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.Queue()
    big = os.urandom(1 << 15)
    for _ in range(40):
        queue.put(big)

    interrupt(lambda: queue.put(Thing(LARGE)), lambda: queue.put(2))
    got = received(queue, 40 if interrupt.was_interrupted else 41)
    interrupt.expect(got[:40] == [big] * 40, "an earlier message is lost")
    interrupt.expect(len(got) > 40 or interrupt.was_interrupted, "the message is lost")
    del got
    end_of_one_that_goes_on(interrupt, queue)


@scene()
def put_into_a_joinable_queue(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.JoinableQueue()
    interrupt(lambda: queue.put(Thing(LARGE)), lambda: queue.put(2))
    for _ in received(queue):
        queue.task_done()
    close(queue)


@scene()
def get_with_a_timeout(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.Queue(3)
    queue.put(Thing(LARGE))
    queue.put(2)
    queue.put(3)
    interrupt(lambda: queue.get(timeout=PATIENT), lambda: queue.get(timeout=PATIENT))
    interrupt.expect(3 in received(queue, 1), "the queue does not go on")
    for number in range(3):  # no place of it is lost
        queue.put(number, timeout=PATIENT)
    interrupt.expect(received(queue, 3) == [0, 1, 2], "the queue does not go on")
    close(queue)


@scene()
def get(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.Queue(3)
    queue.put(Thing(LARGE))
    queue.put(2)
    queue.put(3)
    interrupt(queue.get, queue.get)
    interrupt.expect(3 in received(queue, 1), "the queue does not go on")
    for number in range(3):
        queue.put(number, timeout=PATIENT)
    interrupt.expect(received(queue, 3) == [0, 1, 2], "the queue does not go on")
    close(queue)


@scene()
def close_of_a_queue(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.Queue()
    queue.put(Thing(LARGE))
    interrupt(lambda: close(queue), queue.close)
    close(queue)


@scene()
def send_and_receive(mp: Any, interrupt: Interrupt) -> None:
    reader, writer = mp.Pipe(False)

    def there_and_back() -> None:
        writer.send(Thing(LARGE))
        reader.poll(PATIENT)
        reader.recv()

    interrupt(there_and_back, lambda: writer.send(1))
    while reader.poll(0.02):
        reader.recv()
    writer.send(3)
    interrupt.expect(reader.recv() == 3, "the connection does not go on")
    reader.close()
    writer.close()


@scene()
def close_of_a_connection(mp: Any, interrupt: Interrupt) -> None:
    reader, writer = mp.Pipe(False)
    writer.send(Thing(LARGE))

    def close_both() -> None:
        reader.close()
        writer.close()

    interrupt(close_both, writer.close)
    reader.close()
    writer.close()


# ---- processes -------------------------------------------------------------------------------------------------------

PATIENT = 20.0


def ended(process: Any) -> None:
    """End a process whose start may have been interrupted, as a program does."""
    if process.pid is not None:
        process.terminate()
        process.join()
        process.close()


@scene()
def start_and_join_by_fork(mp: Any, interrupt: Interrupt) -> None:
    queue = mp.get_context("fork").Queue()
    queue.put(0)
    process = mp.get_context("fork").Process(target=int)

    def start() -> None:
        process.start()
        process.join()

    def other() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    interrupt(start, other)
    ended(process)
    close(queue)


@scene()
def start_with_a_queue_by_spawn(mp: Any, interrupt: Interrupt) -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=queue.put, args=(1,))
    interrupt(process.start)
    if not interrupt.was_interrupted:
        process.join()
        interrupt.expect(received(queue, 1) == [1], "nothing came from the process")
    ended(process)
    close(queue)


@scene()
def end_of_a_process(mp: Any, interrupt: Interrupt) -> None:
    process = mp.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()

    def end() -> None:
        process.terminate()
        process.join()

    interrupt(end)
    ended(process)


# ---- pools -----------------------------------------------------------------------------------------------------------


@scene()
def pool_made_used_and_ended(mp: Any, interrupt: Interrupt) -> None:
    pools = []

    def use() -> None:
        pools.append(mp.get_context("fork").Pool(1))
        pools[0].apply(abs, (-1,))
        pools[0].close()
        pools[0].join()

    interrupt(use)
    for pool in pools:
        pool.terminate()
        pool.join()


def received_here(pool: Any, call: Callable[[], object]) -> None:
    """Call until this thread receives the results itself."""
    scheduler = getattr(pool, "_scheduler", None)
    before = getattr(scheduler, "_received", 0)
    deadline = time.monotonic() + 10
    while call() and scheduler is not None and scheduler._received < before + 3 and time.monotonic() < deadline:
        pass


@scene()
def short_calls_of_a_pool(mp: Any, interrupt: Interrupt) -> None:
    with mp.get_context("fork").Pool(2) as pool:
        received_here(pool, lambda: pool.apply(abs, (-1,)))
        interrupt(lambda: pool.apply(abs, (-1,)))
        interrupt.expect(pool.apply_async(abs, (-2,)).get(PATIENT) == 2, "the pool does not go on")
        interrupt.expect(pool.map_async(abs, [-1, -2, -3], 1).get(PATIENT) == [1, 2, 3], "a map does not end")
        pool.close()
        pool.join()


@scene()
def short_calls_of_an_executor(mp: Any, interrupt: Interrupt) -> None:
    kind = mp.ProcessPoolExecutor if hasattr(mp, "ProcessPoolExecutor") else ProcessPoolExecutor
    with kind(2, mp.get_context("fork")) as executor:
        received_here(executor, lambda: executor.submit(abs, -1).result(PATIENT))
        interrupt(lambda: executor.submit(abs, -1).result(PATIENT))
        interrupt.expect(executor.submit(abs, -2).result(PATIENT) == 2, "the executor does not go on")


@scene()
def pool_terminated_again(mp: Any, interrupt: Interrupt) -> None:
    pool = mp.get_context("fork").Pool(1)
    pool.apply_async(time.sleep, (60,))
    interrupt(pool.terminate)
    pool.terminate()
    pool.join()


@scene()
def executor_in_a_block(mp: Any, interrupt: Interrupt) -> None:
    kind = mp.ProcessPoolExecutor if hasattr(mp, "ProcessPoolExecutor") else ProcessPoolExecutor

    def use() -> None:
        with kind(1, mp.get_context("fork")) as executor:
            executor.submit(abs, -1).result(PATIENT)

    interrupt(use)


# ---- locks and memory ------------------------------------------------------------------------------------------------


@scene()
def lock_in_a_block(mp: Any, interrupt: Interrupt) -> None:
    lock = mp.Lock()

    def use() -> None:
        with lock:
            pass

    interrupt(use, lambda: lock.acquire(False) and lock.release())
    interrupt.expect(lock.acquire(timeout=PATIENT), "the lock is kept")
    lock.release()


@scene()
def condition(mp: Any, interrupt: Interrupt) -> None:
    condition = mp.Condition()

    def use() -> None:
        with condition:
            condition.wait(0.01)
            condition.notify_all()

    interrupt(use)
    interrupt.expect(condition.acquire(timeout=PATIENT), "the lock is kept")
    condition.release()


@scene()
def made_objects(mp: Any, interrupt: Interrupt) -> None:
    def make() -> None:
        mp.Lock()
        mp.Event()
        mp.Pipe()
        mp.SimpleQueue()

    interrupt(make)


@scene()
def shared_array(mp: Any, interrupt: Interrupt) -> None:
    if hasattr(mp, "shared"):
        mp.shared.zeros(1)  # imports NumPy

    def use() -> None:
        if hasattr(mp, "shared"):
            mp.set_sharing_strategy("file_system")
            mp.shared.zeros(1000)
            mp.set_sharing_strategy("file_descriptor")
            mp.shared.zeros(1000)

    interrupt(use)
    if hasattr(mp, "shared"):
        mp.set_sharing_strategy("file_descriptor")
        interrupt.expect(mp.shared.zeros(10).sum() == 0, "no array can be made")


# ---- the launcher ----------------------------------------------------------------------------------------------------


@scene()
def run(mp: Any, interrupt: Interrupt) -> None:
    interrupt(one_run(mp, "spawn"))


@scene()
def run_by_fork(mp: Any, interrupt: Interrupt) -> None:
    interrupt(one_run(mp, "fork"))


@scene()
def run_with_few_descriptors(mp: Any, interrupt: Interrupt) -> None:
    with few_descriptors():
        interrupt(one_run(mp, "spawn"))


@scene()
def command_with_few_descriptors(mp: Any, interrupt: Interrupt) -> None:
    if hasattr(mp, "run"):
        from mp_spawn.command.main import main

        with few_descriptors():
            interrupt(lambda: main(["-n", "1", "--start-method", "fork", "-m", "keyword"]))
    else:
        interrupt(one_run(mp, "fork"))


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let the launcher find few descriptors left."""
    with patch.object(launch, "are_descriptors_few", lambda *asked: True):
        yield


def one_run(mp: Any, start_method: str) -> Callable[[], object]:
    """Return a call of `run`; of what the standard library has instead."""
    if hasattr(mp, "run"):
        return lambda: mp.run(divmod, args=(2,), nprocs=1, start_method=start_method)

    def start_and_join() -> None:
        process = mp.get_context(start_method).Process(target=divmod, args=(2, 1))
        process.start()
        process.join()

    return start_and_join


@scene()
def end_of_started_processes(mp: Any, interrupt: Interrupt) -> None:
    if hasattr(mp, "run"):
        context = mp.start_processes(time.sleep, nprocs=2, join=False, start_method="fork")
        interrupt(context.terminate)
        context.terminate()


@scene()
def start_of_processes(mp: Any, interrupt: Interrupt) -> None:
    if hasattr(mp, "run"):
        contexts: list[Any] = []
        options = {"nprocs": 2, "join": False, "start_method": "fork"}
        interrupt(lambda: contexts.append(mp.start_processes(time.sleep, (), **options)))
        for context in contexts:
            context.terminate()


@scene()
def command(mp: Any, interrupt: Interrupt) -> None:
    if hasattr(mp, "run"):
        from mp_spawn.command.main import main

        interrupt(lambda: main(["-n", "1", "--start-method", "fork", "-m", "keyword"]))
    else:
        interrupt(one_run(mp, "fork"))


# ---- the first use, and managers -------------------------------------------------------------------------------------


@scene(first_use=True)
def first_message(mp: Any, interrupt: Interrupt) -> None:
    queues: list[Any] = []

    def use() -> None:
        queues.append(mp.get_context("fork").Queue())
        queues[0].put(LARGE)
        queues[0].get(timeout=PATIENT)

    interrupt(use)
    for queue in queues:
        received(queue)
        queue.put(3)
        interrupt.expect(3 in received(queue, 1), "the queue does not go on")
        close(queue)


@scene(first_use=True)
def first_array(mp: Any, interrupt: Interrupt) -> None:
    if hasattr(mp, "shared"):
        import numpy as np

        interrupt(lambda: mp.shared.zeros(1000))
        interrupt.expect((mp.shared.ones(1000) == np.ones(1000)).all(), "no array can be made")


@scene()
def manager(mp: Any, interrupt: Interrupt) -> None:
    managers: list[Any] = []

    def use() -> None:
        managers.append(mp.get_context("fork").Manager())
        table = managers[0].dict()
        table["a"] = LARGE
        table.get("a")
        managers[0].shutdown()

    interrupt(use)
    for each in managers:
        each.shutdown()
