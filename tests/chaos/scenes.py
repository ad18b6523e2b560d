"""Programs of users in small, each of which checks its own results: `python scenes.py SCENE START_METHOD SEED`."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor as StandardExecutor
from concurrent.futures import wait as wait_for_futures
from multiprocessing import connection
from multiprocessing.pool import Pool as StandardPool
from typing import Any

import numpy as np

import mp_all as mp

CHILDREN = 3


def message(sender: int, number: int) -> Any:
    """Return a message of one of the ways in which messages travel, which `check` can tell from all others."""
    kind = number % 5
    if kind == 0:
        return sender, number
    if kind == 1:
        return sender, number, np.full(50, number)
    if kind == 2:
        return sender, number, np.full(100_000, number)
    if kind == 3:
        return sender, number, bytes([number % 251]) * 30_000
    return sender, number, [str(number)] * 20_000  # passes through the ring in parts


def check(received: Any) -> tuple[int, int]:
    """Check that the message is whole, and return its sender and its number."""
    sender, number, *rest = received
    kind = number % 5
    assert (kind == 0) == (not rest), received
    if kind in (1, 2):
        assert (rest[0] == number).all() and rest[0].size == (50 if kind == 1 else 100_000)
    elif kind == 3:
        assert rest[0] == bytes([number % 251]) * 30_000
    elif kind == 4:
        assert rest[0] == [str(number)] * 20_000
    return sender, number


def check_all(got: list[tuple[int, int]], senders: int, messages: int) -> None:
    """Check that each message of each sender came once, and those of a sender in order."""
    for sender in range(senders):
        numbers = [number for each, number in got if each == sender]
        assert numbers == list(range(messages)), (sender, numbers)
    assert len(got) == senders * messages


def end(processes: list[Any]) -> None:
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode


def started(ctx: Any, fn: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[Any]:
    processes = [ctx.Process(target=fn, args=each) for each in arguments]
    for process in processes:
        process.start()
    return processes


# ---- queues and pipes ------------------------------------------------------------------------------------------------


def put_all(queue: Any, sender: int, messages: int) -> None:
    for number in range(messages):
        queue.put(message(sender, number))


def fan_in(ctx: Any, chance: random.Random) -> None:
    """Several processes put into one queue."""
    for queue in (ctx.Queue(), ctx.Queue(2), ctx.SimpleQueue()):
        processes = started(ctx, put_all, [(queue, sender, 20) for sender in range(CHILDREN)])
        check_all([check(queue.get()) for _ in range(CHILDREN * 20)], CHILDREN, 20)
        end(processes)


def take_all(tasks: Any, results: Any) -> None:
    while (task := tasks.get()) is not None:
        results.put(check(task))


def fan_out(ctx: Any, chance: random.Random) -> None:
    """Several processes take from one queue."""
    for tasks in (ctx.Queue(), ctx.Queue(2), ctx.SimpleQueue()):
        results = ctx.SimpleQueue()
        processes = started(ctx, take_all, [(tasks, results)] * CHILDREN)
        for number in range(40):
            tasks.put(message(0, number))
        got = [results.get() for _ in range(40)]
        for _ in processes:
            tasks.put(None)
        assert sorted(got) == [(0, number) for number in range(40)], got
        end(processes)


def take_tasks(tasks: Any) -> None:
    while True:
        task = tasks.get()
        tasks.task_done()
        if task is None:
            return
        check(task)


def joined_queue(ctx: Any, chance: random.Random) -> None:
    """`join` returns when all tasks are done."""
    tasks = ctx.JoinableQueue(4)
    processes = started(ctx, take_tasks, [(tasks,)] * CHILDREN)
    for number in range(30):
        tasks.put(message(0, number))
    tasks.join()
    for _ in processes:
        tasks.put(None)
    end(processes)


def answer(pipe: Any, other_end: Any) -> None:
    other_end.close()
    try:
        while True:
            pipe.send(pipe.recv())
    except EOFError:
        pass


def ping_pong(ctx: Any, chance: random.Random) -> None:
    """Each message of a duplex pipe comes back; the end of the pipe ends the process."""
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=answer, args=(theirs, ours))
    process.start()
    theirs.close()
    for number in range(60):
        ours.send(message(0, number))
        assert check(ours.recv()) == (0, number)
    ours.close()
    end([process])


def send_all(pipe: Any, sender: int, messages: int) -> None:
    for number in range(messages):
        pipe.send(message(sender, number))
    pipe.close()


def select(ctx: Any, chance: random.Random) -> None:
    """A program that selects is told of each message and of each end."""
    for duplex in (False, True):
        pairs = [ctx.Pipe(duplex) for _ in range(CHILDREN)]
        processes = started(ctx, send_all, [(writer, sender, 25) for sender, (_, writer) in enumerate(pairs)])
        for _, writer in pairs:
            writer.close()
        readers, got = {reader for reader, _ in pairs}, []
        while readers:
            for reader in connection.wait(list(readers)):
                assert reader.poll()  # type: ignore[union-attr]
                try:
                    got.append(check(reader.recv()))  # type: ignore[union-attr]
                except EOFError:
                    readers.discard(reader)  # type: ignore[arg-type]
        check_all(got, CHILDREN, 25)
        end(processes)


# ---- pools -----------------------------------------------------------------------------------------------------------


def double(task: Any) -> Any:
    return check(task), task


def futures(executor: Any, chance: random.Random) -> None:
    tasks = [executor.submit(double, message(0, number)) for number in range(25)]
    done, _ = wait_for_futures(tasks)
    assert len(done) == 25
    for number, task in enumerate(tasks):
        assert check(task.result()[1]) == (0, number)
    for number in range(10):
        assert executor.submit(double, message(1, number)).result()[0] == (1, number)
    mapped = executor.map(double, [message(2, number) for number in range(20)], chunksize=3)
    assert [found for found, _ in mapped] == [(2, number) for number in range(20)]


def standard_executor(ctx: Any, chance: random.Random) -> None:
    """The standard library's executor with our context."""
    with StandardExecutor(CHILDREN, mp_context=ctx) as executor:
        futures(executor, chance)


def executor(ctx: Any, chance: random.Random) -> None:
    """Our executor."""
    with mp.ProcessPoolExecutor(CHILDREN, mp_context=ctx) as executor:
        futures(executor, chance)


def tasks_of_pool(pool: Any) -> None:
    tasks = [message(0, number) for number in range(30)]
    assert [found for found, _ in pool.map(double, tasks)] == [(0, number) for number in range(30)]
    assert [found for found, _ in pool.imap(double, tasks)] == [(0, number) for number in range(30)]
    assert sorted(found for found, _ in pool.imap_unordered(double, tasks, 2)) == [(0, n) for n in range(30)]
    for number in range(10):
        assert pool.apply(double, (message(1, number),))[0] == (1, number)


def standard_pool(ctx: Any, chance: random.Random) -> None:
    """The standard library's pool with our context."""
    with StandardPool(CHILDREN, context=ctx) as pool:
        tasks_of_pool(pool)
        pool.close()
        pool.join()


def pool(ctx: Any, chance: random.Random) -> None:
    """Our pool."""
    with mp.Pool(CHILDREN, context=ctx) as pool:
        tasks_of_pool(pool)
        pool.close()
        pool.join()


def short_workers(ctx: Any, chance: random.Random) -> None:
    """A pool whose workers are replaced after a few tasks."""
    with mp.Pool(CHILDREN, context=ctx, maxtasksperchild=3) as pool:
        tasks = [message(0, number) for number in range(15)]
        assert [found for found, _ in pool.map(double, tasks, 1)] == [(0, number) for number in range(15)]


def terminated_pool(ctx: Any, chance: random.Random) -> None:
    """A pool that is ended in the middle."""
    pool = mp.Pool(CHILDREN, context=ctx)
    results = pool.imap_unordered(double, [message(0, number) for number in range(30)])
    for _ in range(chance.randrange(4)):
        next(results)
    pool.terminate()
    pool.join()


# ---- locks, managers and ranks ---------------------------------------------------------------------------------------


def count(lock: Any, condition: Any, event: Any, barrier: Any, semaphore: Any, block: Any) -> None:
    event.wait()
    total, waiting = np.frombuffer(block, np.int64)[:2], np.frombuffer(block, np.int64)[2:]
    for _ in range(30):
        with lock:
            value = int(total[0])
            total[0] = value + 1
        with semaphore:
            pass
    barrier.wait()
    with condition:
        waiting[0] += 1
        condition.notify_all()
        condition.wait_for(lambda: waiting[0] == CHILDREN + 1)


def locks(ctx: Any, chance: random.Random) -> None:
    """No two are in a lock at once, and all are woken."""
    for lock in (ctx.Lock(), ctx.RLock()):
        block = mp.Block(32)
        memoryview(block)[:] = bytes(32)
        condition, event = ctx.Condition(), ctx.Event()
        barrier, semaphore = ctx.Barrier(CHILDREN), ctx.Semaphore(2)
        arguments = (lock, condition, event, barrier, semaphore, block)
        processes = started(ctx, count, [arguments] * CHILDREN)
        event.set()
        numbers = np.frombuffer(block, np.int64)
        with condition:
            numbers[2] += 1
            condition.wait_for(lambda: numbers[2] == CHILDREN + 1)  # noqa: B023
            condition.notify_all()
        end(processes)
        assert numbers[0] == CHILDREN * 30, numbers


def use_manager(shared: Any, lock: Any, sender: int) -> None:
    for number in range(8):
        with lock:
            shared["count"] = shared["count"] + 1
        shared[sender, number] = message(sender, number)


def manager(ctx: Any, chance: random.Random) -> None:
    """Proxies of a manager."""
    with ctx.Manager() as manager:
        shared, lock = manager.dict(count=0), manager.Lock()
        end(started(ctx, use_manager, [(shared, lock, sender) for sender in range(CHILDREN)]))
        assert shared["count"] == CHILDREN * 8
        for sender in range(CHILDREN):
            for number in range(8):
                assert check(shared[sender, number]) == (sender, number)


def rank(index: int, number: int) -> Any:
    return message(index, number)


def ranks(ctx: Any, chance: random.Random) -> None:
    """Each rank's result comes back."""
    method = ctx.get_start_method()
    for number in range(5):
        results = mp.run(rank, (number,), nprocs=CHILDREN, start_method=method)
        assert Counter(map(check, results)) == Counter((index, number) for index in range(CHILDREN))


SCENES: dict[str, Callable[[Any, random.Random], None]] = {
    scene.__name__: scene
    for scene in (
        fan_in,
        fan_out,
        joined_queue,
        ping_pong,
        select,
        standard_executor,
        executor,
        standard_pool,
        pool,
        short_workers,
        terminated_pool,
        locks,
        manager,
        ranks,
    )
}

if __name__ == "__main__":
    name, method, seed = sys.argv[1:]
    SCENES[name](mp.get_context(method), random.Random(int(seed)))
    print("done")
