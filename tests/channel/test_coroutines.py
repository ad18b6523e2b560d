"""Coroutines of queues and connections: nothing is lost, nobody starves, and the loop goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from queue import Empty, Full
from typing import Any

import numpy as np
import pytest
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_core.channels import coroutines

fork = mp.get_context("fork")
WITHIN = 60
SMALL, LARGE = 10, 50_000  # numbers in a message: in one part, and in four
ROOM = 256 << 10  # bytes of messages that a pipe takes at most
Run = Callable[[Coroutine], Any]


@pytest.fixture(scope="module", autouse=True)
def resources_of_libuv() -> None:
    """
    Let uvloop, if it is there, open the pipe that it has once for a process.
    """
    with suppress(ImportError):
        import uvloop

        uvloop.new_event_loop().close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """
    Run a coroutine in each kind of event loop; it fails if it has not ended in time.
    """
    if request.param == "asyncio":
        loop = None
    else:
        loop = pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop

    def run_it(coroutine: Coroutine) -> Any:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(asyncio.wait_for(coroutine, WITHIN))

    return run_it


async def goes_on(turns: int = 100) -> None:
    """Return when the loop has come back so often, each time from a sleep."""
    for _ in range(turns):
        await asyncio.sleep(0.001)


def message(number: int, size: int) -> list[int]:
    return [number] * size


def put_all(put: Callable, count: int, size: int) -> None:
    for number in range(count):
        put(message(number, size))


def echo(inbox: Any, outbox: Any) -> None:
    while (thing := inbox.get()) is not None:
        outbox.put(thing)


# ---- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_coroutines_and_blocking_calls_exchange_objects_through_a_queue(run: Run, kind: str, ctx: Any) -> None:
    there, back = getattr(ctx, kind)(), getattr(ctx, kind)()
    child = ctx.Process(target=echo, args=(there, back))
    child.start()
    things = [1, "text", None, message(1, LARGE), np.arange(10), np.arange(10_000), {"a": [1.5]}]

    async def main() -> list[Any]:
        got = []
        for thing in things:
            await there.aput((thing,))
            got.append((await back.aget())[0])
        await there.aput(None)
        return got

    for sent, got in zip(things, run(main()), strict=True):
        assert np.array_equal(sent, got) if isinstance(sent, np.ndarray) else sent == got
    child.join(WITHIN)
    for queue in (there, back):
        queue.close()


@pytest.mark.parametrize("duplex", [True, False])
def test_coroutines_exchange_objects_through_a_pipe(run: Run, duplex: bool) -> None:
    reader, writer = mp.Pipe(duplex)

    async def main() -> None:
        waiting = asyncio.create_task(reader.arecv())
        await goes_on(3)
        await writer.asend(1)
        assert await waiting == 1
        sender = asyncio.create_task(writer.asend(message(2, LARGE * 10)))  # more than fits
        assert await reader.arecv() == message(2, LARGE * 10)
        await sender
        if duplex:
            await reader.asend("back")
            assert await writer.arecv() == "back"

    run(main())
    reader.close()
    writer.close()


def test_a_task_done_of_a_joinable_queue_counts_what_was_put_in_a_coroutine(run: Run) -> None:
    queue = mp.JoinableQueue()

    async def main() -> None:
        await queue.aput(1)
        joined = asyncio.create_task(asyncio.to_thread(queue.join))
        await goes_on(5)
        assert not joined.done()
        assert await queue.aget() == 1
        queue.task_done()
        await joined

    run(main())
    queue.close()


def test_an_object_that_cannot_be_pickled_raises_in_asend(run: Run) -> None:
    reader, writer = mp.Pipe(False)

    async def main() -> None:
        with pytest.raises(Exception, match="pickle"):
            await writer.asend(threading.Lock())
        await writer.asend(1)
        assert await reader.arecv() == 1

    run(main())
    reader.close()
    writer.close()


def test_sharing_that_is_off_for_a_connection_is_off_for_asend(run: Run) -> None:
    reader, writer = mp.Pipe(False)
    mp.set_sharing(False, writer)
    run(writer.asend(np.ones(10_000)))
    assert not mp.is_shared(run(reader.arecv()))
    reader.close()
    writer.close()


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_fifty_pending_gets_have_no_thread_and_take_no_processor_time(run: Run) -> None:
    queues = [mp.Queue() for _ in range(50)]
    threads = threading.active_count()

    async def main() -> None:
        tasks = [asyncio.create_task(queue.aget()) for queue in queues]
        await goes_on(2)
        before = time.process_time()
        await asyncio.sleep(2)
        assert time.process_time() - before < 0.2
        assert threading.active_count() == threads
        for number, queue in enumerate(queues):
            await queue.aput(number)
        assert await asyncio.gather(*tasks) == list(range(50))

    run(main())
    for queue in queues:
        queue.close()


def test_a_get_of_what_is_there_gives_the_loop_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coroutines, "TURN_S", WITHIN)
    queue = mp.Queue()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        counter = asyncio.create_task(count())
        await asyncio.sleep(0)
        before = turns
        for number in range(1000):
            await queue.aput(number)
            assert await queue.aget() == number
        assert turns == before
        counter.cancel()

    asyncio.run(main())
    queue.close()


def test_a_loop_that_always_has_something_to_get_goes_on(run: Run) -> None:
    queue = mp.Queue()

    async def main() -> None:
        other = asyncio.create_task(goes_on())
        while not other.done():
            await queue.aput(1)
            await queue.aget()

    run(main())
    queue.close()


def test_asyncio_is_imported_by_the_first_coroutine(tmp_path: Path) -> None:
    program = """
        import sys
        import mp_all as mp

        queue = mp.Queue()
        queue.put(1)
        assert queue.get() == 1
        print("asyncio" in sys.modules)
        call = queue.aget()
        print("asyncio" in sys.modules)
        call.close()
    """
    assert succeeded(run_script(tmp_path, program)).split() == ["False", "True"]


# ---- the loop goes on ------------------------------------------------------------------------------------------------


def test_the_loop_goes_on_while_a_put_waits_in_a_full_queue(run: Run) -> None:
    queue = mp.Queue(2)
    threads = threading.active_count()

    async def main() -> None:
        await queue.aput(1)
        await queue.aput(2)
        waiting = [asyncio.create_task(queue.aput(number)) for number in range(3, 9)]
        await goes_on()
        assert not any(task.done() for task in waiting)
        assert threading.active_count() == threads + 1  # one for all
        assert [await queue.aget() for _ in range(8)] == [*range(1, 9)]
        await asyncio.gather(*waiting)

    run(main())
    queue.close()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_the_loop_goes_on_while_a_send_waits_in_a_full_pipe(run: Run, size: int) -> None:
    reader, writer = mp.Pipe(False)

    async def main() -> None:
        count = ROOM // len(pickle.dumps(message(0, size))) + 3
        senders = [asyncio.create_task(writer.asend(message(number, size))) for number in range(count)]
        await goes_on()
        assert not senders[-1].done()
        for number in range(count):
            assert await reader.arecv() == message(number, size)
        await asyncio.gather(*senders)

    run(main())
    reader.close()
    writer.close()


def test_a_thread_that_waits_gets_the_large_message_of_a_cancelled_task(run: Run) -> None:
    writer = StoppedWriter()

    async def main() -> None:
        waiting = asyncio.create_task(writer.queue.aget())
        await goes_on(20)
        blocking = asyncio.create_task(asyncio.to_thread(writer.queue.get))
        polling = asyncio.create_task(asyncio.to_thread(writer.queue._reader.poll, WITHIN))
        await goes_on(20)
        waiting.cancel()
        await asyncio.wait([waiting])
        writer.go_on()
        assert await blocking == message(0, LARGE * 20)
        writer.queue.put(1)
        assert await polling
        assert await writer.queue.aget() == 1

    run(main())
    writer.close()


class StoppedWriter:
    """A process that is stopped in the middle of a large message."""

    def __init__(self) -> None:
        self.queue = fork.SimpleQueue()
        self.child = fork.Process(target=put_all, args=(self.queue.put, 1, LARGE * 20))
        self.child.start()
        while not self.queue._reader.poll(0.01):
            pass
        os.kill(self.child.pid, signal.SIGSTOP)
        os.waitpid(self.child.pid, os.WUNTRACED)

    def go_on(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)

    def close(self) -> None:
        self.child.join(WITHIN)
        assert self.child.exitcode == 0
        self.queue.close()


def test_the_loop_goes_on_while_the_writer_of_a_large_message_is_stopped(run: Run) -> None:
    writer = StoppedWriter()

    async def main() -> None:
        waiting = asyncio.create_task(writer.queue.aget())
        await goes_on()
        assert not waiting.done()
        writer.go_on()
        assert await waiting == message(0, LARGE * 20)

    run(main())
    writer.close()


# ---- cancelled -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("next_one", ["aget", "get"])
def test_a_large_message_under_way_to_a_cancelled_task_is_the_next_ones(run: Run, next_one: str) -> None:
    writer = StoppedWriter()

    async def cancelled() -> None:
        waiting = asyncio.create_task(writer.queue.aget())
        await goes_on(20)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        writer.go_on()
        if next_one == "aget":
            assert await writer.queue.aget() == message(0, LARGE * 20)

    run(cancelled())
    if next_one == "get":
        assert writer.queue.get() == message(0, LARGE * 20)
    assert writer.queue.empty()
    writer.close()


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_cancelled_gets_lose_nothing(run: Run, kind: str, size: int) -> None:
    count = 2000 if size == SMALL else 100
    queue = getattr(fork, kind)()
    child = fork.Process(target=put_all, args=(queue.put, count, size))
    child.start()
    got, late = [], 0

    async def main() -> None:
        nonlocal late
        while len(got) < count:
            try:
                async with asyncio.timeout(random.choice([0, 0, 0.00003, 0.0003, 0.003])):
                    got.append((await queue.aget())[-1])
            except TimeoutError:
                late += 1

    run(main())
    assert got == list(range(count))
    assert late > 0
    child.join(WITHIN)
    queue.close()


def fill(queue: Any, most: int) -> int:
    """
    Put objects until the queue is full, and return how many.
    """
    for count in range(most):
        try:
            queue.put_nowait(count)
        except Full:
            return count
    return most


def test_cancelled_puts_have_put_or_raise(run: Run) -> None:
    queue = fork.Queue(3)
    put: list[int] = []
    got: list[int] = []

    async def producer(numbers: range) -> None:
        for number in numbers:
            try:
                async with asyncio.timeout(random.choice([0, 0.0001, 0.001])):
                    await queue.aput(number)
                put.append(number)
            except TimeoutError:
                pass

    async def consumer() -> None:
        while (number := await queue.aget()) is not None:
            got.append(number)
            await asyncio.sleep(random.choice([0, 0.0003]))

    async def main() -> None:
        consuming = asyncio.create_task(consumer())
        await asyncio.gather(*(producer(range(n, 2000, 5)) for n in range(5)))
        await queue.aput(None)
        await consuming

    run(main())
    assert sorted(got) == sorted(put)
    assert 0 < len(put) < 2000
    assert (queue.qsize(), fill(queue, 4)) == (0, 3)  # no place is lost
    queue.close()


def test_a_loop_that_is_closed_while_tasks_wait_says_nothing_and_takes_no_message(tmp_path: Path) -> None:
    program = """
        import asyncio, gc, time
        import mp_all as mp

        queue = mp.Queue()
        loop = asyncio.new_event_loop()

        async def main():
            tasks = [asyncio.create_task(queue.aget()) for _ in range(3)]
            await asyncio.sleep(0)
            for number in range(4):
                queue.put(number)
            while queue.qsize() < 4:
                time.sleep(0.001)  # no task looks
            await asyncio.sleep(0)  # the first has been woken
            loop.stop()
            return tasks

        waiting = loop.create_task(main())
        loop.run_forever()
        for task in (tasks := [*waiting.result()]):
            task._log_destroy_pending = False
        print(*(task.done() for task in tasks))
        loop.close()
        del tasks, task, waiting
        gc.collect()
        print(*(queue.get() for _ in range(queue.qsize())))
    """
    lines = succeeded(run_script(tmp_path, program)).splitlines()
    done = lines[0].split().count("True")
    assert lines[1].split() == [str(number) for number in range(done, 4)]


def test_a_put_whose_loop_has_ended_takes_no_place() -> None:
    queue = fork.Queue(1)
    queue.put(1)
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(queue.aput(2))
        await asyncio.sleep(0.01)
        return task

    task = loop.run_until_complete(begin())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task
    gc.collect()
    assert until(lambda: not queue._putters[loop].thread)
    assert queue.get() == 1
    assert (queue.qsize(), fill(queue, 4)) == (0, 1)
    queue.close()


@pytest.mark.parametrize("size", [SMALL * 100, LARGE * 3])
def test_cancelled_sends_have_sent_or_raise(run: Run, size: int) -> None:
    reader, writer = mp.Pipe(False)
    sent: list[int] = []
    got: list[int] = []
    count = 600

    async def producer(numbers: range) -> None:
        for number in numbers:
            task = asyncio.create_task(writer.asend(message(number, size)))
            # The last is long enough for a large message on any machine, so some are sent.
            await asyncio.sleep(random.choice([0, 0.0001, 0.001, 0.03]))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert task.exception() is None
                sent.append(number)

    async def consumer() -> None:
        while (thing := await reader.arecv()) is not None:
            assert thing == message(thing[0], size)
            got.append(thing[0])
            await asyncio.sleep(random.choice([0, 0.001]))

    async def main() -> None:
        consuming = asyncio.create_task(consumer())
        await asyncio.gather(*(producer(range(n, count, 5)) for n in range(5)))
        await writer.asend(None)
        await consuming

    run(main())
    assert got and sorted(got) == sorted(sent)
    reader.close()
    writer.close()


def test_timeouts_of_asyncio_apply(run: Run) -> None:
    queue = mp.Queue(1)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await queue.aget()
        await queue.aput(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.aput(2), 0.01)
        assert await asyncio.wait_for(queue.aget(), WITHIN) == 1

    run(main())
    assert queue.empty()
    queue.close()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.parametrize("timeout", [0, -1, 0.01])
def test_a_coroutine_that_waits_too_long_raises_what_its_namesake_raises(run: Run, kind: str, timeout: float) -> None:
    async def waits(queue: Any) -> None:
        with pytest.raises(Empty):
            await queue.aget(timeout=timeout)
        await queue.aput(1, timeout=timeout)
        with pytest.raises(Full):
            await queue.aput(2, timeout=timeout)
        assert await queue.aget(timeout=timeout) == 1
        with pytest.raises(TimeoutError):  # a limit of the caller's is not the queue's
            async with asyncio.timeout(0.01):
                await queue.aget(timeout=WITHIN)
        late = asyncio.get_running_loop().call_later(0.05, queue.put, 3)
        assert await queue.aget(timeout=WITHIN) == 3
        late.cancel()

    queue = getattr(fork, kind)(1)
    run(waits(queue))
    queue.close()
    queue.join_thread()


# ---- shares ----------------------------------------------------------------------------------------------------------


def test_tasks_threads_and_processes_on_one_queue_each_get_a_share(run: Run) -> None:
    queue, shares = fork.Queue(), mp.shared.zeros(6, int)
    children = [fork.Process(target=work, args=(queue, shares[of : of + 1])) for of, work in enumerate(WORKERS)]
    for child in children:
        child.start()

    async def consumer(of: int) -> None:
        while await queue.aget() is not None:
            shares[of] += 1
            await asyncio.sleep(0)

    async def main() -> int:
        thread = asyncio.create_task(asyncio.to_thread(count_blocking, queue, shares[2:3]))
        tasks = [asyncio.create_task(consumer(of)) for of in (3, 4, 5)]
        put = 0
        while shares.min() < 20:
            await queue.aput(put)
            put += 1
            if put % 30 == 0:
                await asyncio.sleep(0.005)
        for _ in shares:
            await queue.aput(None)
        await asyncio.gather(thread, *tasks)
        return put

    put = run(main())
    for child in children:
        child.join(WITHIN)
    assert shares.sum() == put
    assert shares[3:].max() - shares[3:].min() <= shares[3:].max() // 4 + 5
    queue.close()


def count_blocking(queue: Any, share: np.ndarray) -> None:
    while queue.get() is not None:
        share += 1


def count_in_a_loop(queue: Any, share: np.ndarray) -> None:
    async def main() -> None:
        nonlocal share
        while await queue.aget() is not None:
            share += 1

    asyncio.run(main())


WORKERS = [count_blocking, count_in_a_loop]


def test_tasks_that_wait_are_served_in_order(run: Run) -> None:
    queue, order = mp.Queue(), []

    async def one(number: int) -> None:
        order.append((number, await queue.aget()))

    async def main() -> None:
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0)
        tasks.pop(3).cancel()
        for number in range(19):
            queue.put(number)
        await asyncio.gather(*tasks)

    run(main())
    assert order == [(number + (number >= 3), number) for number in range(19)]
    queue.close()


def test_a_loop_in_a_forked_child_shares_a_queue_with_its_parents_loop(run: Run) -> None:
    queue, shares = fork.Queue(), mp.shared.zeros(2, int)

    async def consumer() -> None:
        while await queue.aget() is not None:
            shares[0] += 1
            await asyncio.sleep(0)

    async def main() -> int:
        consuming = asyncio.create_task(consumer())
        await goes_on(2)  # it waits, and the child inherits its descriptors
        child = fork.Process(target=count_in_a_loop, args=(queue, shares[1:]))
        child.start()
        put = 0
        while shares.min() < 20:
            await queue.aput(put)
            put += 1
            await asyncio.sleep(0.0005)
        for _ in shares:
            await queue.aput(None)
        await asyncio.gather(consuming, child.ajoin())
        return put

    assert run(main()) == shares.sum()
    queue.close()


def test_a_message_that_is_kept_for_a_cancelled_task_is_not_a_forked_childs(run: Run) -> None:
    queue, answers = fork.SimpleQueue(), fork.SimpleQueue()
    queue.put(np.ones(10_000))
    queue._reader._keep_next()
    assert not queue.empty()
    child = fork.Process(target=lambda: answers.put(queue.empty()))
    child.start()
    assert answers.get()
    child.join(WITHIN)
    assert run(queue.aget()).sum() == 10_000
    queue.put(np.ones(10_000))
    queue._reader._keep_next()
    for each in (queue, answers):
        each.close()  # which frees its memory


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_the_end_of_the_file_reaches_every_task(run: Run) -> None:
    reader, writer = mp.Pipe(False)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(reader.arecv()) for _ in range(3)]
        await goes_on(2)
        await writer.asend(1)
        writer.close()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(EOFError):
            await reader.arecv()
        return ends

    first, *others = run(main())
    assert first == 1 and [type(each) for each in others] == [EOFError] * 2
    reader.close()


@pytest.mark.parametrize("thread", [False, True])
def test_a_connection_that_is_closed_ends_every_task_that_waits_for_it(run: Run, thread: bool) -> None:
    reader, writer = mp.Pipe(False)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(reader.arecv()) for _ in range(3)]
        await goes_on(2)
        if thread:
            await asyncio.to_thread(reader.close)
        else:
            reader.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(each) for each in run(main())] == ["handle is closed"] * 3
    for coroutine in (reader.arecv(), reader.asend(1)):
        with pytest.raises(OSError, match="handle is closed"):
            run(coroutine)
    with pytest.raises(BrokenPipeError):
        run(writer.asend(1))
    writer.close()


def test_a_queue_that_is_closed_refuses_as_it_does_in_blocking_calls(run: Run) -> None:
    queue = mp.Queue(1)

    async def main() -> list[Any]:
        getting = asyncio.create_task(queue.aget())
        await goes_on(2)
        await queue.aput(1)
        await getting
        await queue.aput(2)
        putting = asyncio.create_task(queue.aput(3))
        await goes_on(2)
        queue.close()
        return await asyncio.gather(putting, queue.aput(1), queue.aget(), return_exceptions=True)

    assert [(type(each), "is closed" in str(each)) for each in run(main())] == [(ValueError, True)] * 3


@pytest.mark.parametrize("duplex", [True, False])
def test_a_pipe_whose_other_end_was_closed_before_its_first_use_ends_as_in_blocking_calls(
    run: Run, duplex: bool
) -> None:
    async def main() -> None:
        reader, writer = mp.Pipe(duplex)
        reader.close()
        with pytest.raises(BrokenPipeError):
            await writer.asend(1)
        reader, writer = mp.Pipe(duplex)
        writer.close()
        with pytest.raises(EOFError):
            await reader.arecv()

    run(main())


def test_a_pipe_without_a_ring_is_refused_with_what_to_do(tmp_path: Path) -> None:
    program = """
        import asyncio, os, resource
        import mp_all as mp

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        here, there = mp.Pipe()
        here.send(1)
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
        reader, writer = mp.Pipe()
        for call in (reader.arecv, lambda: writer.asend(1)):
            try:
                asyncio.run(call())
            except OSError as error:
                print("ulimit -n" in str(error) and "asyncio.to_thread" in str(error))
        writer.send(1)
        print(reader.recv())
    """
    assert succeeded(run_script(tmp_path, program)).split() == ["True", "True", "1"]


# ---- processes and executors -----------------------------------------------------------------------------------------


def nap(seconds: float = 0.0) -> None:
    time.sleep(seconds)


def leave_a_grandchild(pids: Any) -> None:
    grandchild = fork.Process(target=nap, args=(WITHIN,))
    grandchild.start()
    pids.put(grandchild.pid)
    os._exit(3)


def test_ajoin_waits_for_a_process_while_the_loop_goes_on(run: Run, ctx: Any) -> None:
    child = ctx.Process(target=nap, args=(0.5,))
    child.start()

    async def main() -> None:
        await child.ajoin(0.01)
        assert child.exitcode is None
        await asyncio.gather(child.ajoin(), child.ajoin(WITHIN), goes_on(10))
        assert child.exitcode == 0
        await child.ajoin()

    run(main())
    assert child not in mp.active_children()


def test_ajoin_does_not_wait_for_what_the_child_has_forked(run: Run) -> None:
    pids = fork.SimpleQueue()
    child = fork.Process(target=leave_a_grandchild, args=(pids,))
    child.start()
    run(child.ajoin())
    assert child.exitcode == 3
    os.kill(pids.get(), signal.SIGKILL)
    pids.close()


def test_ajoin_refuses_what_join_refuses(run: Run) -> None:
    with pytest.raises(AssertionError, match="can only join a started process"):
        run(mp.Process(target=nap).ajoin())


def test_the_future_of_an_executor_is_awaited(run: Run) -> None:
    with mp.ProcessPoolExecutor(1, mp_context=fork) as executor:

        async def main() -> Any:
            return await asyncio.wrap_future(executor.submit(np.arange, 10_000))

        assert run(main()).sum() == 49_995_000


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_a_queue_made_when_descriptors_are_short_says_that_no_loop_can_wait_for_it(tmp_path: Path, kind: str) -> None:
    program = f"""
        import os, resource
        import mp_all as mp

        mp.Queue()
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
        queue = mp.{kind}()
        queue.put(1)
        for refused in (queue.aget, lambda: queue.aput(2)):
            try:
                refused()
            except OSError as error:
                print("asyncio.to_thread" in str(error))
        print(queue.get())
    """
    assert succeeded(run_script(tmp_path, program)) == "True\nTrue\n1\n"
