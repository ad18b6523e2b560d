"""When workers of a pool are killed while they hold a lock, the others get it, and no task hangs."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from collections import Counter
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest

import mp_all as mp

SOAK = os.environ.get("MP_SOAK") == "1"
KILLS = int(os.environ.get("MP_KILLS", 1000 if SOAK else 15))

held: Any = None
total: Any = None


def take(lock: Any, number: Any) -> None:
    """Keep the lock and the number for the tasks of this worker."""
    global held, total
    held, total = lock, number
    warnings.simplefilter("ignore", mp.OwnerDiedWarning)


def count(number: int, seconds: float) -> int:
    """Change the number in two steps, with the lock; the first one to see a half change mends it."""
    with held:
        total[0] += 1
        if seconds:
            time.sleep(seconds)
        total[1] = total[0]
    return number


@pytest.mark.parametrize("name", ["Lock", "RLock", "Semaphore"])
@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.timeout(3600 if SOAK else 300)
def test_a_lock_passes_on_when_the_worker_that_holds_it_is_killed(
    kind: str, ctx: BaseContext, name: str, strategy: str, start_method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    kills = KILLS if SOAK or start_method == "fork" else max(1, KILLS // 3)
    lock, number = getattr(ctx, name)(), mp.shared.zeros(2, np.int64)
    killed: set[int] = set()
    answered: Counter[str] = Counter()
    with tasks.either(kind, ctx, 3, initializer=take, initargs=(lock, number)) as pool:
        over = threading.Event()

        def kill() -> None:
            done = 0
            while done < kills and not over.is_set():
                workers = [worker for worker in list(pool.pool._scheduler.dispatcher.workers) if worker.ready]
                if workers:
                    worker = chance.choice(workers)
                    killed.add(worker.pid)  # before: its task may fail at once
                    worker.signal(signal.SIGKILL)
                    done += 1
                over.wait(chance.uniform(0.0, 0.03))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while killer.is_alive():
                waits = [pool.submit(count, n, chance.choice([0, 0, 0.001, 0.005])) for n in range(100)]
                for n, wait in enumerate(waits):
                    answer = tasks.outcome(wait)
                    if isinstance(answer, mp.WorkerLostError):
                        assert answer.pid in killed and answer.function == "count"
                        answered["lost"] += 1
                    else:
                        assert answer == n
                        answered["done"] += 1
        finally:
            over.set()
            killer.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mp.OwnerDiedWarning)
        assert lock.acquire(timeout=tasks.PATIENCE), "the last holder's lock is lost"
    # Each task that was done has changed the number, and a lost one may have.
    assert answered["done"] <= number[0] <= answered["done"] + answered["lost"]
    assert answered["lost"] <= len(killed)
    if SOAK:
        with capsys.disabled():
            print(f" {name} {len(killed)} kills: {dict(answered)} ", end="")
