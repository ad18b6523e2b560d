"""When workers are killed at random moments, no call hangs, each failed task is named, and no task runs twice."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from multiprocessing.context import BaseContext
from pathlib import Path

import pool_tasks as tasks
import pytest

import mp_all as mp

SOAK = os.environ.get("MP_SOAK") == "1"
KILLS = 10_000 if SOAK else 60  # for each start method and kind
TASK = 400  # bytes of a result, in most cases


def note(folder: str, number: int, size: int, seconds: float) -> tuple[int, bytes]:
    """Append a byte to the task's own file, so that a second run would show."""
    fd = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"x")
    os.close(fd)
    if seconds:
        time.sleep(seconds)
    return number, bytes(size)


class Killer(threading.Thread):
    """Kills one worker after another, *kills* in all."""

    def __init__(self, pool: tasks.Either, kills: int, chance: random.Random) -> None:
        super().__init__()
        self.pool, self.kills, self.chance = pool, kills, chance
        self.done = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while self.done < self.kills and not self.stop.is_set():
            # Only workers that are ready: a pool ends when three die one after the other before they are.
            workers = [worker for worker in list(self.pool.pool._scheduler.dispatcher.workers) if worker.ready]
            if workers:
                try:
                    self.chance.choice(workers).signal(signal.SIGKILL)
                    self.done += 1
                except ValueError:
                    pass  # it has just ended
            self.stop.wait(self.chance.uniform(0.0, 0.03))


@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.timeout(3600 if SOAK else 300)
def test_each_task_has_one_outcome_and_runs_at_most_once(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    answered: Counter[str] = Counter()
    number = 0
    with tasks.either(kind, ctx, 3) as pool:
        killer = Killer(pool, KILLS, random.Random(seed + 1))
        killer.start()
        try:
            while killer.is_alive():
                folder = tmp_path / str(number)
                folder.mkdir()
                waits = []
                for _ in range(200):
                    size = chance.choice([0, TASK, TASK, 5000, 200_000])
                    seconds = chance.choice([0, 0, 0, 0.001, 0.01])
                    waits.append((number, size, pool.submit(note, str(folder), number, size, seconds)))
                    number += 1
                for index, size, wait in waits:
                    answer = tasks.outcome(wait)
                    file = folder / str(index)
                    if isinstance(answer, mp.WorkerLostError):
                        answered["lost"] += 1
                        assert answer.function == "note" and answer.exitcode == -signal.SIGKILL
                    else:
                        assert not isinstance(answer, Exception), answer
                        answered["done"] += 1
                        assert answer == (index, bytes(size))
                        assert file.read_bytes() == b"x"
                    if file.exists():
                        # A worker that was killed between open and write has left it empty.
                        assert file.stat().st_size <= 1, "a task was done twice"
                        file.unlink()
                folder.rmdir()
        finally:
            killer.stop.set()
            killer.join()
        assert pool.submit(tasks.square, 3)() == 9
    assert killer.done == KILLS
    assert answered["lost"] <= KILLS
    assert sum(answered.values()) == number
    assert answered["done"] > 0


@pytest.mark.timeout(300)
def test_only_the_chunk_of_a_map_fails_whose_worker_died(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2) as pool:
        results = pool.imap(tasks.end_on_seven, range(100), chunksize=5)
        got, lost = [], []
        while True:
            try:
                got.append(next(results))
            except StopIteration:
                break
            except mp.WorkerLostError as error:
                lost.append(error)
        assert got == [n for n in range(100) if not 5 <= n < 10]
        assert [(error.function, error.index) for error in lost] == [("end_on_seven", 5)]
        with pytest.raises(mp.WorkerLostError):
            pool.map(tasks.end_on_seven, range(100), chunksize=5)
        assert pool.map(tasks.square, range(100)) == [n * n for n in range(100)]
