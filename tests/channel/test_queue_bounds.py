"""The messages in a queue are its count: no death takes a place or a task of a queue with it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from queue import Full
from typing import Any

import channel_tasks as tasks
import numpy as np
import pytest
from support.capabilities import has_robust_futexes
from support.scripts import run_script, succeeded
from support.waiting import until

pytestmark = pytest.mark.skipif(
    not has_robust_futexes(), reason="the kernel does not give the lock of a dead process to the next one"
)
BOUND = 4
WITHIN = 60
LONG = os.environ.get("MP_SOAK") == "1"
#: What the producers put: numbers, bytes in one record, objects in parts.
KINDS = ["number", "bytes", "parts"]


def close(queue: Any) -> None:
    queue.close()
    queue.join_thread()
    queue._reader.close()
    queue._writer.close()


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def has_all_its_places(queue: Any, bound: int = BOUND) -> None:
    """
    Fail unless the queue gives what it says that it has, and then takes as many messages as its bound says.
    """
    for _ in range(queue.qsize()):
        queue.get(timeout=WITHIN)
    assert queue.qsize() == 0
    assert queue.empty()
    for number in range(bound):
        assert not queue.full()
        queue.put_nowait(number)
    assert queue.full()
    with pytest.raises(Full):
        queue.put_nowait("one too many")
    with pytest.raises(Full):
        queue.put("one too many", timeout=0.01)
    assert [queue.get(timeout=WITHIN) for _ in range(bound)] == list(range(bound))


@pytest.mark.parametrize("name", ["Queue", "JoinableQueue"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(3000 if LONG else 120)
def test_producers_killed_at_random_lose_no_place(channels: Any, start_method: str, name: str, kind: str) -> None:
    kill_producers(channels, name, kind, rounds(start_method))


def rounds(start_method: str) -> int:
    return 500 if LONG else 12 if start_method == "fork" else 2


def kill_producers(channels: Any, name: str, kind: str, rounds: int) -> None:
    """
    Kill producers of a queue at random again and again.
    """
    queue, chance = getattr(channels, name)(BOUND), random.Random(1)
    for _ in range(rounds):
        producers = [channels.Process(target=tasks.put_kind, args=(queue, kind), daemon=True) for _ in range(2)]
        for producer in producers:
            producer.start()
        for _ in range(chance.randrange(1, 12)):
            queue.get(timeout=WITHIN)
        time.sleep(chance.random() * 0.003)
        for producer in producers:
            kill(producer)
        has_all_its_places(queue)
    close(queue)


@pytest.mark.timeout(3000 if LONG else 120)
def test_producers_of_arrays_killed_at_random_lose_no_place(tmp_path: Path, start_method: str, strategy: str) -> None:
    # In a program of its own: an array that a producer is sending when it is killed stays in flight.
    program = f"""
        import sys
        import mp_all as mp
        import test_queue_bounds as bounds

        if __name__ == "__main__":
            for name in "Queue", "JoinableQueue":
                bounds.kill_producers(mp.get_context({start_method!r}), name, "arrays", {rounds(start_method)!r})
    """
    path = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[1])))
    done = run_script(tmp_path, program, timeout=3000 if LONG else 100, PYTHONPATH=path, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == ""


@pytest.mark.parametrize("name", ["Queue", "JoinableQueue"])
@pytest.mark.timeout(3000 if LONG else 120)
def test_consumers_killed_at_random_lose_no_place(channels: Any, start_method: str, name: str) -> None:
    queue, chance = getattr(channels, name)(BOUND), random.Random(2)
    for _ in range(rounds(start_method)):
        consumer = channels.Process(target=tasks.get_all, args=(queue,), daemon=True)
        consumer.start()
        for _ in range(chance.randrange(BOUND, 12)):
            queue.put(bytes(3000), timeout=WITHIN)
        time.sleep(chance.random() * 0.003)
        kill(consumer)
        has_all_its_places(queue)
    close(queue)


@pytest.mark.parametrize("name", ["Queue", "JoinableQueue"])
@pytest.mark.timeout(60)
def test_messages_that_a_killed_process_had_no_room_for_are_in_the_queue_no_more(channels: Any, name: str) -> None:
    queue, ready = getattr(channels, name)(60), channels.SimpleQueue()
    producer = channels.Process(target=tasks.put_many, args=(queue, 50, bytes(20_000), ready), daemon=True)
    producer.start()
    ready.get()
    assert queue.qsize() == 50  # a dozen in the ring, the others in the producer
    kill(producer)
    left = queue.qsize()
    assert 0 < left < 20
    for _ in range(left):
        queue.get(timeout=WITHIN)
        if name == "JoinableQueue":
            queue.task_done()
    if name == "JoinableQueue":
        queue.join()
        with pytest.raises(ValueError, match="too many"):
            queue.task_done()
    has_all_its_places(queue, 60)
    close(queue)
    ready.close()


@pytest.mark.timeout(60)
def test_a_join_that_waits_for_the_messages_of_a_process_ends_when_it_is_killed(channels: Any) -> None:
    queue, ready = channels.JoinableQueue(), channels.SimpleQueue()
    producer = channels.Process(target=tasks.put_many, args=(queue, 50, bytes(20_000), ready), daemon=True)
    producer.start()
    ready.get()
    joiner = threading.Thread(target=queue.join, daemon=True)
    joiner.start()
    os.kill(producer.pid, signal.SIGSTOP)  # or it would put the others when there is room
    for _ in range(12):
        queue.get(timeout=WITHIN)
        queue.task_done()
    assert joiner.is_alive()
    kill(producer)
    while queue.qsize():
        queue.get(timeout=WITHIN)
        queue.task_done()
    joiner.join(WITHIN)
    assert not joiner.is_alive()
    close(queue)
    ready.close()


@pytest.mark.parametrize("kind", ["parts", "bytes"])
@pytest.mark.timeout(120)
def test_the_bound_is_one_for_all_processes_also_where_the_ring_has_no_room(channels: Any, kind: str) -> None:
    bound = 30
    queue, put = channels.Queue(bound), channels.SimpleQueue()
    producers = [channels.Process(target=tasks.put_until_full, args=(queue, kind, put)) for _ in range(3)]
    for producer in producers:
        producer.start()
    assert sum(put.get() for _ in producers) == queue.qsize() == bound
    for count in range(bound, 0, -1):
        assert queue.qsize() == count
        queue.get(timeout=WITHIN)
    for producer in producers:
        producer.join(WITHIN)
    has_all_its_places(queue, bound)
    close(queue)
    put.close()


def test_a_bound_may_be_any_integer(forking: Any) -> None:
    for kind in ("Queue", "JoinableQueue"):
        queue = getattr(forking, kind)(np.int64(1))
        queue.put(1)
        with pytest.raises(Full):
            queue.put(2, block=False)
        assert queue.get() == 1
        close(queue)


@pytest.mark.timeout(60)
def test_one_process_fills_a_bounded_queue_whose_ring_has_no_room(forking: Any) -> None:
    queue, big = forking.Queue(10), [0] * 300_000
    for _ in range(10):
        queue.put(big, timeout=WITHIN)
    assert (queue.qsize(), queue.full()) == (10, True)
    with pytest.raises(Full):
        queue.put_nowait(1)
    for left in reversed(range(10)):
        assert len(queue.get(timeout=WITHIN)) == 300_000
        assert queue.qsize() == left
    close(queue)


@pytest.mark.timeout(60)
def test_each_place_that_is_free_wakes_a_put_that_waits(channels: Any) -> None:
    queue, done = channels.Queue(2), channels.SimpleQueue()
    for number in range(2):
        queue.put(number)
    producers = [channels.Process(target=tasks.put_one_and_tell, args=(queue, done)) for _ in range(4)]
    for producer in producers:
        producer.start()
        assert done.get() == "waits"
    for _ in range(2):
        queue.get()
        queue.get()
        assert [done.get(), done.get()] == ["has put", "has put"]
    for producer in producers:
        producer.join(WITHIN)
        assert producer.exitcode == 0
    assert queue.qsize() == 2
    queue.get()
    queue.get()
    close(queue)
    done.close()


@pytest.mark.timeout(60)
def test_tasks_are_counted_after_the_queue_is_closed(channels: Any) -> None:
    queue = channels.JoinableQueue()
    for number in range(5):
        queue.put(number)
    worker = channels.Process(target=tasks.finish, args=(queue, 5))
    worker.start()
    queue.close()
    queue.join()
    worker.join(WITHIN)
    assert worker.exitcode == 0
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


def test_an_object_whose_pickling_fails_in_a_full_queue_is_not_pickled(forking: Any) -> None:
    class Loud:
        def __reduce__(self) -> Any:
            raise AssertionError("it was pickled")

    queue = forking.Queue(1)
    queue.put(1)
    for timeout in (0, 0.01):
        with pytest.raises(Full):
            queue.put(Loud(), timeout=timeout)
    assert queue.get() == 1
    close(queue)


def test_a_queue_makes_no_name_and_no_semaphore(tmp_path: Path, start_method: str) -> None:
    program = f"""
        import os
        import mp_all as mp
        from multiprocessing import synchronize

        class Semaphores:
            def __call__(self, *args, **options):
                raise AssertionError("a semaphore is made")

        def names():
            return sorted(os.listdir("/dev/shm"))

        def work(queues, answer):
            for queue in queues:
                answer.put(queue.get())
                getattr(queue, "task_done", int)()

        if __name__ == "__main__":
            ctx = mp.get_context({start_method!r})
            answer = ctx.SimpleQueue()
            before = [each for each in names() if each.startswith("sem.mp-")]
            synchronize.SemLock.__init__ = Semaphores()
            queues = [ctx.Queue(), ctx.Queue(3), ctx.JoinableQueue(), ctx.JoinableQueue(3), ctx.SimpleQueue()]
            child = ctx.Process(target=work, args=(queues, answer))
            child.start()
            for queue in queues:
                queue.put(1)
                assert answer.get() == 1
                with queue._rlock, queue._wlock:
                    pass
                getattr(queue, "join", int)()
            child.join()
            assert child.exitcode == 0
            print([each for each in names() if each.startswith("sem.mp-") and each not in before])
    """
    assert succeeded(run_script(tmp_path, program)) == "[]\n"


@pytest.mark.timeout(60)
def test_a_put_waits_no_longer_than_its_timeout_beside_a_stopped_producer(channels: Any) -> None:
    queue = channels.Queue(BOUND)
    producer = channels.Process(target=tasks.put_kind, args=(queue, "bytes"), daemon=True)
    producer.start()
    assert until(queue.full)
    for _ in range(20):
        queue.get(timeout=WITHIN)
    os.kill(producer.pid, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(BOUND + 1):
        try:
            queue.put(b"", timeout=0.05)
        except Full:
            break
    else:
        pytest.fail("the queue has no bound")
    assert time.monotonic() - began < WITHIN / 2
    kill(producer)
    has_all_its_places(queue)
    close(queue)
