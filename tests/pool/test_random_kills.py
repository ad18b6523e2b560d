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

import numpy as np
import pool_tasks as tasks
import pytest

import mp_all as mp

SOAK = os.environ.get("MP_SOAK") == "1"
# For each start method, strategy and kind: 10 000 in all.
KILLS = int(os.environ.get("MP_KILLS", 1000 if SOAK else 25))
TASK = 400  # bytes of a result, in most cases
# The most seconds between two kills. Faults of one store hide from slow kills and small results: one came in 14 000.
PAUSE, LARGE = (0.012, [200_000] * 3) if SOAK else (0.03, [200_000])


def prepare(array: np.ndarray) -> None:
    """Take a moment, as an initializer that loads a model does."""
    assert array[-1] == 1
    time.sleep(0.005)


def note(folder: str, number: int, array: np.ndarray, size: int, seconds: float) -> tuple[int, np.ndarray]:
    """Append a byte to the task's own file, so that a second run would show; return *size* bytes of the number."""
    assert (array == number % 200).all()
    fd = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"x")
    os.close(fd)
    if seconds:
        time.sleep(seconds)
    return number, np.full(size, number % 200, np.uint8)


class Killer(threading.Thread):
    """
    Kills one worker after another, *kills* in all: while it waits, works, receives or sends, or in its initializer.
    """

    def __init__(self, pool: tasks.Either, kills: int, chance: random.Random) -> None:
        super().__init__()
        self.pool, self.kills, self.chance = pool, kills, chance
        self.done = 0
        self.early = 0  # kills of workers that were not ready, in a row
        self.stop = threading.Event()

    def run(self) -> None:
        while self.done < self.kills and not self.stop.is_set():
            workers = list(self.pool.pool._scheduler.dispatcher.workers)
            # A pool ends when ten in a row are killed before they are ready: after five, only those that are.
            ready = [worker for worker in workers if worker.ready]
            chosen = ready if self.early >= 5 or self.chance.random() < 0.8 else workers
            if chosen:
                worker = self.chance.choice(chosen)
                self.early = 0 if worker.ready else self.early + 1
                worker.signal(signal.SIGKILL)
                self.done += 1
            self.stop.wait(self.chance.uniform(0.0, PAUSE))


@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.timeout(3600 if SOAK else 300)
def test_each_task_has_one_outcome_and_runs_at_most_once(
    kind: str, ctx: BaseContext, tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    answered: Counter[str] = Counter()
    number = 0
    with tasks.either(kind, ctx, 3, initializer=prepare, initargs=(np.ones(50_000),)) as pool:
        killer = Killer(pool, KILLS, random.Random(seed + 1))
        killer.start()
        try:
            while killer.is_alive():
                folder = tmp_path / str(number)
                folder.mkdir()
                waits = []
                for _ in range(200):
                    size = chance.choice([0, TASK, TASK, 5000, *LARGE])
                    seconds = chance.choice([0, 0, 0, 0.001, 0.01])
                    array = np.full(chance.choice([10, 100_000]), number % 200, np.uint8)
                    waits.append((number, size, pool.submit(note, str(folder), number, array, size, seconds)))
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
                        assert answer[0] == index and answer[1].size == size and (answer[1] == index % 200).all()
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
    with capsys.disabled():
        if SOAK:
            print(f" {killer.done} kills, {number} tasks: {dict(answered)} ", end="")
    assert killer.done == KILLS
    assert answered["lost"] <= KILLS
    assert sum(answered.values()) == number
    assert answered["done"] > 0


@pytest.mark.timeout(300)
def test_only_the_chunk_of_a_map_fails_whose_worker_died(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2) as pool:
        got, lost = tasks.got_and_lost(pool.imap(tasks.end_on_seven, range(100), chunksize=5))
        assert got == [n for n in range(100) if not 5 <= n < 10]
        assert [(error.function, error.index) for error in lost] == [("end_on_seven", 5)]
        with pytest.raises(mp.WorkerLostError):
            pool.map(tasks.end_on_seven, range(100), chunksize=5)
        assert pool.map(tasks.square, range(100)) == [n * n for n in range(100)]
