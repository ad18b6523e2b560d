"""A running task can be cancelled: its worker is killed and replaced, and no other task is touched."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import CancelledError, as_completed, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp

pytestmark = pytest.mark.timeout(300)
both = pytest.mark.parametrize("kind", tasks.KINDS)


def run_for_ever(flag: str) -> None:
    Path(flag).touch()
    threading.Event().wait()


def started(kind: str, pool: Any, flag: Path) -> Any:
    """Submit a task that does not end, and return its result when a worker runs it."""
    result = pool.apply_async(run_for_ever, (str(flag),)) if kind == "pool" else pool.submit(run_for_ever, str(flag))
    assert until(flag.exists, tasks.PATIENCE)
    return result


def value(result: Any, timeout: float = tasks.PATIENCE) -> Any:
    return result.get(timeout) if hasattr(result, "get") else result.result(timeout)


@both
def test_a_running_task_is_cancelled_only_if_that_is_asked_for(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    with tasks.either(kind, ctx) as either:
        pool = either.pool
        result = started(kind, pool, tmp_path / "flag")
        pids = either.pids()
        assert not result.cancel()
        assert result.cancel(running=True)
        with pytest.raises(CancelledError):
            value(result)
        assert result.cancel()  # a second time, as with a standard future
        assert until(lambda: len(pids - either.pids()) == 1, tasks.PATIENCE)
        assert [wait_for() for wait_for in [either.submit(tasks.square, n) for n in range(50)]] == [
            n * n for n in range(50)
        ]


@both
def test_tasks_that_wait_behind_it_are_all_done(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    with tasks.either(kind, ctx, 1) as either:
        [wait_for() for wait_for in [either.submit(tasks.square, n) for n in range(300)]]
        result = started(kind, either.pool, tmp_path / "flag")
        answers = [either.submit(tasks.square, n) for n in range(300)]
        assert result.cancel(running=True)
        assert [wait_for() for wait_for in answers] == [n * n for n in range(300)]


@both
def test_a_task_with_retries_is_not_repeated_once_it_is_cancelled(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    with tasks.either(kind, ctx, retries=3, retry_on=Exception) as either:
        result = started(kind, either.pool, tmp_path / "flag")
        os.unlink(tmp_path / "flag")
        assert result.cancel(running=True)
        with pytest.raises(CancelledError):
            value(result)
        assert either.submit(tasks.square, 2)() == 4
    assert not (tmp_path / "flag").exists()


def test_a_call_that_no_worker_has_begun_is_cancelled_without_a_kill(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(1) as pool:
        first = started("pool", pool, tmp_path / "first")
        others = [pool.apply_async(run_for_ever, (str(tmp_path / f"other-{n}"),)) for n in range(20)]
        errors: list[Any] = []
        last = pool.apply_async(tasks.square, (3,), callback=errors.append, error_callback=errors.append)
        assert all(other.cancel() for other in others)
        assert last.cancel() and until(lambda: errors, tasks.PATIENCE)
        assert isinstance(errors[0], CancelledError)
        pid = pool._pool[0].pid
        for other in others:
            with pytest.raises(CancelledError):
                other.get(0)
        assert not first.ready() and pool._pool[0].pid == pid
        assert first.cancel(running=True)
        assert pool.apply(tasks.square, (4,)) == 16
    assert not list(tmp_path.glob("other-*"))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("method", ["map_async", "starmap_async", "imap", "imap_unordered"])
def test_a_map_can_be_cancelled_as_a_whole(ctx: BaseContext, tmp_path: Path, method: str, running: bool) -> None:
    flags = [str(tmp_path / f"flag-{n}") for n in range(200)]
    items: Any = [(flag,) for flag in flags] if method == "starmap_async" else flags
    with ctx.Pool(2) as pool:
        result = getattr(pool, method)(touch_or_stay, items, 1)
        assert until(lambda: len(list(tmp_path.iterdir())) == 7, tasks.PATIENCE)  # each worker runs one that stays
        pids = {process.pid for process in pool._pool}
        assert result.cancel(running=running)
        with pytest.raises(CancelledError):
            result.get(0) if hasattr(result, "get") else list(result)
        if running:
            assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
            assert until(lambda: not pids & {process.pid for process in pool._pool}, tasks.PATIENCE)
    assert len(list(tmp_path.iterdir())) == 7


def touch_or_stay(flag: str) -> None:
    Path(flag).touch()
    if int(flag.rpartition("-")[2]) >= 5:
        threading.Event().wait()


def test_waiters_of_a_future_learn_of_it(ctx: BaseContext, tmp_path: Path) -> None:
    with mp.ProcessPoolExecutor(1, ctx) as executor:
        future = started("executor", executor, tmp_path / "flag")
        seen: list[Any] = []
        future.add_done_callback(seen.append)
        waiter = threading.Thread(target=lambda: seen.append(list(as_completed([future], tasks.PATIENCE))))
        waiter.start()
        assert future.cancel(running=True) and future.cancelled()
        waiter.join(tasks.PATIENCE)
        assert seen == [future, [future]]
        assert wait([future], 0).done == {future}


def test_shutdown_can_cancel_what_runs(ctx: BaseContext, tmp_path: Path) -> None:
    executor = mp.ProcessPoolExecutor(2, ctx)
    running = [started("executor", executor, tmp_path / f"running-{n}") for n in range(2)]
    queued = [executor.submit(run_for_ever, str(tmp_path / "queued")) for _ in range(10)]
    executor.shutdown(cancel_futures=True, cancel_running=True)
    assert all(future.cancelled() for future in running + queued)
    assert not (tmp_path / "queued").exists()


def test_an_asyncio_program_can_cancel_a_running_call(ctx: BaseContext, tmp_path: Path) -> None:
    async def main(executor: mp.ProcessPoolExecutor) -> None:
        future = await asyncio.to_thread(started, "executor", executor, tmp_path / "flag")
        waits = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.sleep(0)
        assert future.cancel(running=True)
        with pytest.raises(asyncio.CancelledError):
            await waits
        # To cancel the wait leaves the call alone, as in the standard library.
        (tmp_path / "flag").unlink()
        future = await asyncio.to_thread(started, "executor", executor, tmp_path / "flag")
        waits = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert future.running()
        assert future.cancel(running=True)

    with mp.ProcessPoolExecutor(1, ctx) as executor:
        asyncio.run(main(executor))


def square_slowly(number: int) -> int:
    time.sleep(number % 7 * 2e-4)
    return number * number


@both
def test_calls_cancelled_while_they_end_have_one_outcome(kind: str) -> None:
    with tasks.either(kind, mp.get_context("fork")) as either:
        outcomes = {"done": 0, "cancelled": 0}
        for n in range(150):
            if kind == "pool":
                result = either.pool.apply_async(square_slowly, (n,))
            else:
                result = either.pool.submit(square_slowly, n)
            time.sleep(n % 10 * 1e-4)
            cancelled = result.cancel(running=True)
            try:
                assert value(result) == n * n and not cancelled
                outcomes["done"] += 1
            except CancelledError:
                assert cancelled
                outcomes["cancelled"] += 1
        assert outcomes["cancelled"] and sum(outcomes.values()) == 150
        assert either.submit(tasks.square, 9)() == 81


def answer_at(item: tuple[int, float]) -> int:
    number, seconds = item
    time.sleep(seconds)
    if number == 2:
        raise LookupError(number)
    return 10 * number


@pytest.mark.parametrize("way", ["stop_on_error", "cancel"])
def test_no_result_of_an_imap_takes_the_place_of_another(ctx: BaseContext, way: str) -> None:
    items = [(0, 2.0), (1, 0.0), (2, 0.5), (3, 0.0), (4, 0.0)]
    with ctx.Pool(2) as pool:
        view = pool.options(stop_on_error=way == "stop_on_error")
        results = view.imap(answer_at, items)
        if way == "cancel":
            assert until(lambda: len(results._unsorted) >= 2, tasks.PATIENCE)
            assert results.cancel()
        with pytest.raises(LookupError if way == "stop_on_error" else CancelledError):
            next(results)
        with pytest.raises(StopIteration):
            next(results)


class Sized:
    def __len__(self) -> int:
        return 100_000

    def __iter__(self) -> Any:
        return iter(range(100_000))


@pytest.mark.parametrize("method", ["imap", "imap_unordered", "map_async"])
def test_a_cancelled_iterable_is_read_no_further(ctx: BaseContext, method: str) -> None:
    with ctx.Pool(2) as pool:
        for _ in range(5):
            result = getattr(pool, method)(square_slowly, Sized() if method == "map_async" else iter(Sized()), 1)
            assert until(lambda: pool._scheduler.unfinished() > 100, tasks.PATIENCE)
            assert result.cancel()
        assert until(lambda: pool._scheduler.unfinished() == 0, tasks.PATIENCE)
        assert pool.map(tasks.square, range(3)) == [0, 1, 4]


@pytest.mark.parametrize("options", [{"chunksize": 4}, {"buffersize": 6}])
def test_every_iterator_of_a_pool_can_be_cancelled(ctx: BaseContext, options: dict[str, int]) -> None:
    with ctx.Pool(2) as pool:
        results = pool.imap(square_slowly, iter(range(10**6)), **options)
        assert next(results) == 0
        assert results.cancel(running=True)
        with pytest.raises(CancelledError):
            list(results)
        assert pool.map(tasks.square, range(3)) == [0, 1, 4]


def test_shutdown_cancels_many_calls_while_they_end(ctx: BaseContext) -> None:
    executor = mp.ProcessPoolExecutor(2, ctx)
    futures = [executor.submit(square_slowly, n) for n in range(2000)]
    assert futures[0].result(tasks.PATIENCE) == 0
    executor.shutdown(cancel_futures=True, cancel_running=True)
    assert all(future.done() for future in futures)
    assert any(future.cancelled() for future in futures)


def touch_and_fail(folder: str) -> None:
    Path(folder, f"{time.time_ns()}").touch()
    time.sleep(0.5)
    raise OSError


def test_a_cancelled_map_repeats_nothing(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(1) as pool:
        result = pool.options(retries=9, retry_on=OSError).map_async(touch_and_fail, [str(tmp_path)] * 3, 1)
        assert until(lambda: list(tmp_path.iterdir()), tasks.PATIENCE)
        assert result.cancel()
        pool.close()
        pool.join()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_that_cancels_its_own_call_changes_nothing(ctx: BaseContext, fails: bool) -> None:
    heard: list[Any] = []
    submitted = threading.Event()

    def hear(outcome: Any) -> None:
        submitted.wait(tasks.PATIENCE)
        heard.append(outcome)
        heard.append(result.cancel(running=True))

    with ctx.Pool(1) as pool:
        result = pool.apply_async(tasks.fail if fails else tasks.square, (KeyError,) if fails else (3,), {}, hear, hear)
        submitted.set()
        outcome = tasks.outcome(lambda: result.get(tasks.PATIENCE))
        assert isinstance(outcome, KeyError) if fails else outcome == 9
        assert len(heard) == 2 and heard[1] is False
        assert pool.apply(tasks.square, (4,)) == 16
