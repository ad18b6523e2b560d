"""Readers and writers are killed: the others go on, messages are whole, and no more is lost than the dead had taken."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any

import channel_tasks as tasks
import numpy as np
import pytest
from support import waiting
from support.capabilities import has_robust_futexes

import mp_all as mp

pytestmark = pytest.mark.skipif(
    not has_robust_futexes(),
    reason="needs robust futexes, which qemu-user does not pass on",
)

LONG = os.environ.get("MP_SOAK") == "1"
# With MP_SOAK=1 the tests below kill more than ten thousand readers and writers, a third under each start method.
ROUNDS = int(os.environ.get("MP_KILLS", 400 if LONG else 15))
SIZES = [0, 10, 1000, 70_000, 20, 300_000]
SMALL = [0, 10, 1000, 20_000, 20]  # what fits into the ring while nobody reads


def rounds(start_method: str) -> int:
    return ROUNDS if LONG or start_method == "fork" else ROUNDS // 4


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue"])
@pytest.mark.timeout(60)
def test_a_message_outlives_its_sender(channels: Any, kind: str) -> None:
    queue = getattr(channels, kind)()
    process = channels.Process(target=tasks.kill_self_after_put, args=(queue,))
    process.start()
    process.join()
    assert queue.get() == "last words"
    queue.close()


@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue"])
@pytest.mark.timeout(60)
def test_a_reader_that_is_killed_while_it_waits_holds_nobody_up(channels: Any, kind: str) -> None:
    queue, ready = getattr(channels, kind)(), channels.Event()
    process = channels.Process(target=tasks.block_in_get, args=(queue, ready))
    process.start()
    ready.wait()
    time.sleep(0.1)  # nothing announces that it sleeps; if it does not yet, the test still holds
    kill(process)
    queue.put("for the living")
    assert queue.get() == "for the living"
    queue.close()


@pytest.mark.timeout(3000 if LONG else 100)
def test_writers_killed_at_random_leave_whole_messages_in_order(channels: Any, start_method: str) -> None:
    queue, chance = channels.SimpleQueue(), random.Random(1)
    for turn in range(rounds(start_method)):
        writers = [
            channels.Process(target=tasks.put_for_ever, args=(queue, 2 * turn + i, SIZES), daemon=True)
            for i in range(2)
        ]
        for writer in writers:
            writer.start()
        last: dict[int, int] = {}
        while len(last) < 2:
            check(queue.get(), last)
        for _ in range(chance.randrange(60)):
            check(queue.get(), last)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
        for writer in writers:
            writer.join()
        while not queue.empty():
            check(queue.get(), last)
    queue.put("after all")
    assert queue.get() == "after all"
    queue.close()


def check(message: Any, last: dict[int, int]) -> None:
    """
    Fail if a message is not what its writer has put, or not the next one of that writer.
    """
    writer, count, data = message
    assert data == tasks.payload(count, SIZES)
    assert count == last.get(writer, -1) + 1
    last[writer] = count


@pytest.mark.timeout(3000 if LONG else 100)
def test_readers_killed_at_random_lose_at_most_the_message_they_had(channels: Any, start_method: str) -> None:
    queue, chance, ready = channels.SimpleQueue(), random.Random(2), channels.Event()
    put = got = 0
    for _ in range(rounds(start_method)):
        seen = mp.shared.zeros(1, dtype=int)
        ready.clear()
        reader = channels.Process(target=tasks.get_for_ever, args=(queue, seen, ready), daemon=True)
        reader.start()
        ready.wait()
        for i in range(chance.randrange(1, 40)):
            queue.put((0, put, tasks.pieces(0, SIZES[i % len(SIZES)])))
            put += 1
        for i in range(chance.randrange(20)):  # the reader is somewhere in these when it is killed
            queue.put((0, put, tasks.pieces(0, SMALL[i % len(SMALL)])))
            put += 1
        time.sleep(chance.random() * 0.0005)
        kill(reader)
        got += int(seen[0])
    rest, lost = [], 0
    queue.put(None)
    while (message := queue.get()) is not None:
        rest.append(message[1])
    lost = put - got - len(rest)
    assert rest == sorted(set(rest))
    assert 0 <= lost <= rounds(start_method)
    queue.close()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.timeout(3000 if LONG else 100)
def test_a_reader_killed_as_it_lets_a_put_go_on_leaves_no_memory_in_flight(forking: Any, kind: str) -> None:
    array = np.arange(50_000.0)
    for _ in range(max(40, ROUNDS)):
        queue = getattr(forking, kind)(1)
        reader = forking.Process(target=tasks.drain_for_ever, args=(queue,))
        reader.start()
        for _ in range(10):
            queue.put(array)  # the last one waits until the reader has taken the one before
        kill(reader)
        while not queue.empty():
            queue.get()
        queue.close()
    assert waiting.until(lambda: mp.memory_stats()["in_flight_bytes"] == 0, 10)


@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue"])
@pytest.mark.timeout(3000 if LONG else 100)
def test_others_go_on_beside_killed_readers_and_writers(channels: Any, start_method: str, kind: str) -> None:
    chance = random.Random(3)
    for _ in range(rounds(start_method)):
        queue = getattr(channels, kind)()
        marks = [mp.shared.zeros((2, 4000), dtype=int) for _ in range(2)]
        readers = [channels.Process(target=tasks.mark_until_none, args=(queue, SIZES, m), daemon=True) for m in marks]
        writers = [channels.Process(target=tasks.put_for_ever, args=(queue, i, SIZES), daemon=True) for i in range(2)]
        for process in (*readers, *writers):
            process.start()
        assert waiting.until(lambda marks=marks: all(m.any() for m in marks) and sum(marks).any(axis=1).all(), 60)
        order = [readers[0], writers[0]] if chance.random() < 0.5 else [writers[0], readers[0]]
        for process in order:
            time.sleep(chance.random() * 0.002)
            kill(process)
            before = marks[1][1].sum()
            assert waiting.until(lambda m=marks, n=before: m[1][1].sum() > n or sum(m)[1, -1], 60)
        kill(writers[1])
        queue.put(None)
        readers[1].join()
        assert readers[1].exitcode == 0
        assert min(marks[0][0, 0], marks[1][0, 0]) >= 0, "wrong bytes"
        total = sum(marks)
        assert total.max() <= 1, "a message came twice"
        lost = sum(int((total[i, : total[i].nonzero()[0].max()] == 0).sum()) for i in range(2))
        assert lost <= 1, "more was lost than what the killed reader had"
        queue.close()
        if kind == "Queue":
            queue.join_thread()


@pytest.mark.timeout(3000 if LONG else 100)
def test_users_of_a_joinable_queue_killed_at_random_hold_nobody_up(forking: Any) -> None:
    queue, chance = forking.JoinableQueue(), random.Random(3)
    for _ in range(ROUNDS // 2):
        workers = [forking.Process(target=tasks.count_for_ever, args=(queue,), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        time.sleep(chance.random() * 0.01)
        for worker in workers:
            kill(worker)
        for _ in range(queue.qsize()):
            queue.get()
            queue.task_done()
        queue.put("task")
        assert queue.get() == "task"
        queue.task_done()
        # Each killed worker may have received a task that it did not finish.
        for _ in workers:
            with contextlib.suppress(ValueError):
                queue.task_done()
        queue.join()
    queue.close()
    queue._reader.close()
    queue._writer.close()
