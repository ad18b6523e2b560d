"""Readers and writers are killed: the others go on, messages are whole, and no more is lost than the dead had taken."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import channel_tasks as tasks
import pytest

import mp_all as mp

LONG = os.environ.get("MP_SOAK") == "1"
# With MP_SOAK=1 the two tests below kill more than ten thousand readers and writers.
KILLS = 3400 if LONG else 60
SIZES = [0, 10, 1000, 70_000, 20, 300_000]


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
def test_writers_killed_at_random_leave_whole_messages_in_order(forking: Any) -> None:
    queue, chance = forking.SimpleQueue(), random.Random(1)
    for kills in range(KILLS):
        writers = [
            forking.Process(target=tasks.put_for_ever, args=(queue, 2 * kills + i, SIZES), daemon=True)
            for i in range(2)
        ]
        for writer in writers:
            writer.start()
        last: dict[int, int] = {}
        until = chance.randrange(1, 60)
        for _ in range(until):
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
    assert data == bytes([count % 251]) * SIZES[count % len(SIZES)]
    assert count == last.get(writer, -1) + 1
    last[writer] = count


@pytest.mark.timeout(3000 if LONG else 100)
def test_readers_killed_at_random_lose_at_most_the_message_they_had(forking: Any) -> None:
    queue, chance = forking.SimpleQueue(), random.Random(2)
    put = got = 0
    for _ in range(KILLS):
        seen = mp.shared.zeros(1, dtype=int)
        reader = forking.Process(target=tasks.get_for_ever, args=(queue, seen), daemon=True)
        reader.start()
        for i in range(chance.randrange(1, 40)):
            queue.put((0, put, bytes(SIZES[i % len(SIZES)])))
            put += 1
        time.sleep(chance.random() * 0.005)
        kill(reader)
        got += int(seen[0])
    rest, lost = [], 0
    queue.put(None)
    while (message := queue.get()) is not None:
        rest.append(message[1])
    lost = put - got - len(rest)
    assert rest == sorted(set(rest))
    assert 0 <= lost <= KILLS
    queue.close()


@pytest.mark.timeout(3000 if LONG else 100)
def test_users_of_a_joinable_queue_killed_at_random_hold_nobody_up(forking: Any) -> None:
    queue, chance = forking.JoinableQueue(), random.Random(3)
    for _ in range(KILLS // 10):
        workers = [forking.Process(target=tasks.count_for_ever, args=(queue,), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        time.sleep(chance.random() * 0.01)
        for worker in workers:
            kill(worker)
        queue.put("task")
        assert queue.get() == "task"
        queue.task_done()
        # Each killed worker may have counted a task that it did not finish.
        for _ in workers:
            if not queue._all_done():
                queue.task_done()
        queue.join()
    queue.close()
    queue._reader.close()
    queue._writer.close()
