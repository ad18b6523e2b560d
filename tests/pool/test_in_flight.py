"""A worker that dies around the receipt of a message leaks no memory, and takes nothing from another message."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp

pytestmark = [
    pytest.mark.timeout(300),
]


def first_of(array: np.ndarray, number: int) -> float:
    time.sleep(0.0005)
    return float(array[0]) + number


def test_messages_with_the_same_shared_array_survive_the_deaths_of_workers(
    ctx: BaseContext, start_method: str, strategy: str
) -> None:
    """A block has 64 in-flight references, which are used again as soon as they have been received."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    array = mp.shared.ones(100_000)
    over, killed = threading.Event(), 0
    kills = 20 if start_method == "fork" else 4  # others import NumPy first
    with ctx.Pool(2) as pool:

        def kill() -> None:
            nonlocal killed
            while killed < kills and not over.wait(chance.uniform(0.01, 0.05)):
                ready = [worker for worker in list(pool._scheduler.dispatcher.workers) if worker.ready]
                if ready:
                    chance.choice(ready).signal(signal.SIGKILL)
                    killed += 1

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            lost = 0
            while killed < kills:
                waits = [pool.apply_async(first_of, (array, n)) for n in range(300)]
                for n, wait in enumerate(waits):
                    answer = tasks.outcome(functools.partial(wait.get, tasks.PATIENCE))
                    if isinstance(answer, mp.WorkerLostError):
                        lost += 1
                    else:
                        assert answer == 1.0 + n
        finally:
            over.set()
            killer.join()
        assert lost <= killed
        assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0, tasks.PATIENCE)


def echo_or_die(number: int, content: bytes, text: list[str]) -> tuple[int, bytes, list[str]]:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number, content, text


def test_large_bytes_in_arguments_and_results_arrive_and_leave_nothing_behind_a_killed_worker(
    ctx: BaseContext, strategy: str
) -> None:
    content, text = os.urandom(200_000), ["é" * 100_000]
    with ctx.Pool(2) as pool:
        for n in range(5):
            waits = [pool.apply_async(echo_or_die, (k, content, text)) for k in (n, -1, n + 1)]
            answers = [tasks.outcome(functools.partial(wait.get, tasks.PATIENCE)) for wait in waits]
            assert (answers[0], answers[2]) == ((n, content, text), (n + 1, content, text))
            assert isinstance(answers[1], mp.WorkerLostError)
        assert pool.map(len, [content, text[0]]) == [200_000, 100_000]
        assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0, tasks.PATIENCE)
    assert until(lambda: mp.memory_stats()["live_bytes"] == 0, tasks.PATIENCE)


def die_before_receiving(flag: str) -> None:
    from mp_pool.tasks import function_cache

    hold = function_cache.hold

    def die_once(*args: object) -> None:
        if tasks.first_time(flag):
            os.kill(os.getpid(), signal.SIGKILL)
        hold(*args)

    function_cache.hold = die_once


def die_after_receiving(flag: str) -> None:
    from mp_pool.tasks import function_cache

    hold = function_cache.hold

    def die_once(*args: object) -> None:
        hold(*args)
        if tasks.first_time(flag):
            os.kill(os.getpid(), signal.SIGKILL)

    function_cache.hold = die_once


@pytest.mark.parametrize("when", [die_before_receiving, die_after_receiving])
def test_a_worker_that_dies_around_the_receipt_of_a_function_keeps_no_memory(
    ctx: BaseContext, strategy: str, tmp_path: Path, when: Callable[[str], None]
) -> None:
    array = mp.shared.ones(100_000)
    before = mp.memory_stats()["in_flight_bytes"]
    with ctx.Pool(2, retries=3, initializer=when, initargs=(str(tmp_path / "flag"),)) as pool:
        assert pool.map(functools.partial(first_of, array), range(20), chunksize=1) == [1.0 + n for n in range(20)]
        assert (tmp_path / "flag").exists()
        assert until(lambda: mp.memory_stats()["in_flight_bytes"] == before, tasks.PATIENCE)
    live = mp.memory_stats()["live_bytes"]
    del array
    assert until(lambda: mp.memory_stats()["live_bytes"] <= live - 800_000, tasks.PATIENCE)
