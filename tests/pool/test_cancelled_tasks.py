"""A task that no worker has begun can be cancelled, wherever it waits; one that is cancelled never runs."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp

MANY = 40
pytestmark = pytest.mark.timeout(300)


def wait_in(folder: Path, number: int) -> str:
    return tasks.touch_and_wait(str(folder / f"begun-{number}"), str(folder / "end"))


def begun(folder: Path) -> int:
    return len(list(folder.glob("begun-*")))


@pytest.fixture(params=[1, 2])
def executor(request: pytest.FixtureRequest, ctx: BaseContext, tmp_path: Path) -> Iterator[mp.ProcessPoolExecutor]:
    """An executor of one or two workers, which had short tasks: it would send many ahead."""
    made = mp.ProcessPoolExecutor(request.param, ctx)
    for _ in range(3):
        assert list(made.map(tasks.square, range(300))) == [n * n for n in range(300)]
    # One that gets ready during the submits takes the task that is submitted then.
    assert until(lambda: made._scheduler.is_ready() and len(made._processes) == request.param, tasks.PATIENCE)
    yield made
    tasks.touch(str(tmp_path / "end"))
    made.shutdown()


def submitted(executor: mp.ProcessPoolExecutor, folder: Path) -> list[Future[Any]]:
    """Submit tasks that wait; return when each worker runs one."""
    futures = [executor.submit(wait_in, folder, n) for n in range(MANY)]
    assert until(lambda: begun(folder) == executor._max_workers, tasks.PATIENCE)
    return futures


def test_all_futures_can_be_cancelled_but_those_that_run(executor: mp.ProcessPoolExecutor, tmp_path: Path) -> None:
    futures = submitted(executor, tmp_path)
    workers = executor._max_workers
    assert [future.running() for future in futures] == [n < workers for n in range(MANY)]
    assert [future.cancel() for future in reversed(futures)] == [n >= workers for n in reversed(range(MANY))]
    tasks.touch(str(tmp_path / "end"))
    executor.shutdown()
    assert all(future.result(0) for future in futures[:workers])
    assert all(future.cancelled() for future in futures[workers:])
    assert begun(tmp_path) == workers


def test_shutdown_cancels_all_tasks_but_those_that_run(executor: mp.ProcessPoolExecutor, tmp_path: Path) -> None:
    futures = submitted(executor, tmp_path)
    executor.shutdown(wait=False, cancel_futures=True)
    tasks.touch(str(tmp_path / "end"))
    executor.shutdown()
    assert [future.cancelled() for future in futures] == [n >= executor._max_workers for n in range(MANY)]
    assert begun(tmp_path) == executor._max_workers


@pytest.mark.parametrize("chunksize", [1, 2])
def test_a_map_that_is_left_early_cancels_its_tasks(
    executor: mp.ProcessPoolExecutor, tmp_path: Path, chunksize: int
) -> None:
    with pytest.raises(TimeoutError):
        next(executor.map(wait_in, [tmp_path] * MANY, range(MANY), chunksize=chunksize, timeout=0.3))
    tasks.touch(str(tmp_path / "end"))
    executor.shutdown()
    assert begun(tmp_path) <= executor._max_workers * chunksize


def test_a_callback_may_cancel(executor: mp.ProcessPoolExecutor, tmp_path: Path) -> None:
    futures = submitted(executor, tmp_path)
    cancelled: list[bool] = []
    last = futures[-1]
    futures[0].add_done_callback(lambda _: cancelled.append(last.cancel()))
    tasks.touch(str(tmp_path / "end"))
    executor.shutdown()
    assert cancelled == [last.cancelled()]
    assert all(future.result(0) for future in futures[:-1])


COUNT = 6000


@pytest.mark.parametrize("by", ["thread", "handler", "thread, and workers are killed"])
def test_a_cancelled_task_never_runs_and_any_other_runs_once(ctx: BaseContext, tmp_path: Path, by: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    path = tmp_path / "counts"
    path.write_bytes(bytes(COUNT))
    futures: list[Future[int]] = []
    killed: list[int] = []
    over = threading.Event()
    with mp.ProcessPoolExecutor(2, ctx, tasks.count_in, (str(path),)) as executor:
        assert executor.submit(abs, -1).result(tasks.PATIENCE) == 1

        def cancel_some(*_: object) -> None:
            for future in chance.sample(futures[-200:], min(len(futures), 5)):
                future.cancel()

        def cancel_until_over() -> None:
            while not over.wait(chance.uniform(0.0, 0.002)):
                cancel_some()
                if "killed" in by and chance.random() < 0.02:
                    for worker in list(executor._scheduler.dispatcher.workers)[:1]:
                        if worker.ready:
                            worker.signal(signal.SIGKILL)
                            killed.append(worker.pid)

        before = signal.signal(signal.SIGALRM, cancel_some)
        thread = threading.Thread(target=cancel_until_over if "thread" in by else int)
        try:
            if by == "handler":
                signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            thread.start()
            # Fast workers could begin each task before anybody cancels it: they wait until one is cancelled.
            gate = tmp_path / "gate"
            for _ in range(2):
                executor.submit(tasks.wait_for, str(gate))
            for number in range(COUNT):
                futures.append(executor.submit(tasks.count, number))
                if number == 200:
                    assert until(lambda: any(future.cancelled() for future in futures), tasks.PATIENCE)
                    gate.touch()
            outcomes = [tasks.outcome(lambda future=future: future.result(tasks.PATIENCE)) for future in futures]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            over.set()
            thread.join()
            signal.signal(signal.SIGALRM, before)
    ran = path.read_bytes()
    for number, (future, outcome) in enumerate(zip(futures, outcomes, strict=True)):
        if future.cancelled():
            assert ran[number] == 0
        elif isinstance(outcome, mp.WorkerLostError):
            assert outcome.pid in killed and ran[number] <= 1
        else:
            assert outcome == number and ran[number] == 1
