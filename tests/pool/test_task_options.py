"""Options for some of a pool's tasks: limits of time and memory, repetitions, a map that ends with its first error."""

from __future__ import annotations

import os
import time
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp

both = pytest.mark.parametrize("kind", tasks.KINDS)
pytestmark = pytest.mark.timeout(300)

# In seconds: long enough for a trivial task on a busy machine.
LIMIT = 3.0
FOR_EVER = 3600.0


def count_attempt(folder: str, name: object = "attempt") -> int:
    """Return how many times this was called, this one included."""
    count = 1
    while True:
        try:
            Path(folder, f"{name}-{count}").touch(exist_ok=False)
        except FileExistsError:
            count += 1
        else:
            return count


def fail_until(attempt: int, folder: str) -> int:
    made = count_attempt(folder)
    if made < attempt:
        raise OSError(f"attempt {made}")
    return made


def sleep_at(number: int, slow: int, seconds: float) -> int:
    if number == slow:
        time.sleep(seconds)
    return number


def fail_at(number: int, bad: int, folder: str) -> int:
    Path(folder, f"began-{number}").touch()
    if number == bad:
        raise LookupError(number)
    time.sleep(0.01)
    return number


def grow(size: int, seconds: float = FOR_EVER) -> int:
    held = b"1" * size
    time.sleep(seconds)
    return len(held)


@both
def test_the_limit_of_one_view_is_not_that_of_another_task(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as either:
        hasty = tasks.viewed(either, timeout=LIMIT)
        late = hasty.submit(time.sleep, FOR_EVER)
        unlimited = either.submit(sleep_at, 0, 0, 2 * LIMIT)
        error = tasks.outcome(late)
        assert isinstance(error, mp.TaskTimeoutError) and error.seconds == LIMIT
        assert unlimited() == 0


@both
def test_tasks_that_wait_behind_one_that_takes_too_long_are_all_done(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, 1) as either:
        [wait() for wait in [either.submit(tasks.square, n) for n in range(300)]]
        hasty = tasks.viewed(either, timeout=LIMIT)
        answers = [hasty.submit(sleep_at, n, 5, FOR_EVER) for n in range(40)]
        outcomes = [tasks.outcome(wait) for wait in answers]
        assert isinstance(outcomes.pop(5), mp.TaskTimeoutError)
        assert outcomes == [n for n in range(40) if n != 5]


def test_each_item_of_a_map_has_the_limit_whatever_the_chunks(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        hasty = pool.options(timeout=LIMIT)
        results = hasty.imap(tasks.Bound(sleep_at, 3, FOR_EVER), range(8), chunksize=4)
        got: list[Any] = []
        while True:
            try:
                got.append(next(results))
            except StopIteration:
                break
            except mp.TaskTimeoutError as error:
                got.append(error.index)
        assert got == list(range(8))
        with pytest.raises(mp.TaskTimeoutError, match="task 3,"):
            hasty.map(tasks.Bound(sleep_at, 3, FOR_EVER), range(8), chunksize=8)
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        answers = executor.options(timeout=LIMIT).map(tasks.Bound(sleep_at, 3, FOR_EVER), range(8), chunksize=4)
        assert [next(answers) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(mp.TaskTimeoutError, match="task 3,"):
            next(answers)


@both
def test_an_exception_is_repeated_if_it_is_one_of_retry_on(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with tasks.either(kind, ctx) as either:
        patient = tasks.viewed(either, retries=2, retry_on=OSError)
        assert patient.submit(fail_until, 3, str(folders[0]))() == 3
        error = tasks.outcome(patient.submit(fail_until, 9, str(folders[1])))
        assert isinstance(error, OSError) and error.args == ("attempt 3",)
        assert any("fail_until" in note and "attempt 3 of 3" in note for note in error.__notes__)
        assert isinstance(tasks.outcome(patient.submit(tasks.fail)), Exception)
        assert isinstance(tasks.outcome(either.submit(fail_until, 2, str(folders[2]))), OSError)


def test_items_of_a_map_are_repeated_each_for_itself(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2, retries=1, retry_on=(LookupError,)) as pool:
        assert pool.map(tasks.Bound(fail_first_time, str(tmp_path)), range(20), chunksize=1) == list(range(20))
    assert len(os.listdir(tmp_path)) == 20 + 7


def fail_first_time(number: int, folder: str) -> int:
    if count_attempt(folder, number) == 1 and number % 3 == 0:
        raise LookupError(number)
    return number


@both
def test_a_death_and_an_exception_count_together(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    with tasks.either(kind, ctx, 1, retries=2, retry_on=OSError) as either:
        assert either.submit(die_then_fail, str(tmp_path))() == 3


def die_then_fail(folder: str) -> int:
    made = count_attempt(folder)
    if made == 1:
        os._exit(3)
    if made == 2:
        raise OSError
    return made


@both
def test_options_nest_and_the_pools_own_are_the_defaults(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, retries=1, retry_on=KeyError) as either:
        view = either.pool.options(timeout=5).options(retries=4)
        assert (view._options.timeout, view._options.retries, view._options.retry_on) == (5, 4, (KeyError,))
        assert (either.pool._options.timeout, either.pool._options.retries) == (None, 1)
        assert isinstance(view, type(either.pool))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": -1}, "retries must be 0 or more, not -1"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0"),
        ({"memory_limit": -5}, "memory_limit must be more than 0 bytes, not -5"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_value(options: dict[str, Any], text: str) -> None:
    with mp.Pool(1) as pool:
        with pytest.raises(ValueError, match=text):
            pool.options(**options)
        with pytest.raises(TypeError, match="retry_on takes classes of exceptions"):
            pool.options(retry_on=[OSError()])
    with pytest.raises(ValueError, match=text):
        mp.Pool(1, **options)


def test_what_is_no_number_is_refused_by_its_name() -> None:
    with mp.Pool(1) as pool:
        for wrong in ({"timeout": "3"}, {"memory_limit": "1GB"}, {"retries": 1.5}):
            with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
                pool.options(**wrong)
        with pytest.raises(ValueError, match="timeout must be more than 0 seconds, not nan"):
            pool.options(timeout=float("nan"))
        with pytest.raises(TypeError, match="retry_on takes classes"):
            pool.options(retry_on=ValueError("x"))


def test_the_map_of_an_executor_reads_no_further_than_its_first_error(ctx: BaseContext) -> None:
    read: list[int] = []

    def numbers() -> Any:
        for number in range(10**7):
            read.append(number)
            yield number

    with mp.ProcessPoolExecutor(2, ctx) as executor:
        executor.submit(tasks.square, 2).result()
        with pytest.raises(LookupError):
            list(executor.options(stop_on_error=True).map(fail_at_three, numbers()))
    assert len(read) < 10**6


def fail_at_three(number: int) -> int:
    if number == 3:
        raise LookupError(number)
    return number


def test_a_view_closes_and_ends_the_pool(ctx: BaseContext) -> None:
    pool = ctx.Pool(1)
    view = pool.options(retries=1)
    view.close()
    view.join()
    with pytest.raises(ValueError, match="Pool not running"):
        pool.apply(tasks.square, (2,))
    executor = mp.ProcessPoolExecutor(1, ctx)
    with executor.options(retries=1) as view_of_executor:
        assert view_of_executor.submit(tasks.square, 2).result() == 4
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(tasks.square, 2)


def test_a_view_calls_what_a_subclass_overrides() -> None:
    with CountingPool(1) as pool:
        pool.label = "of the pool"
        view = pool.options(retries=1)
        assert view.apply(tasks.square, (3,)) == 9
        assert pool.calls == view.calls == 1
        assert view.label == "of the pool" and len(view._pool) == 1


class CountingPool(mp.Pool):
    calls = 0
    label = "of the class"

    def apply_async(self, *args: Any, **kwds: Any) -> Any:
        self.calls += 1
        return super().apply_async(*args, **kwds)


@pytest.mark.parametrize("chunksize", [1, 4])
@pytest.mark.parametrize("method", ["map", "imap", "imap_unordered"])
def test_a_map_ends_with_its_first_error(ctx: BaseContext, tmp_path: Path, method: str, chunksize: int) -> None:
    with ctx.Pool(2) as pool:
        hasty = pool.options(stop_on_error=True)
        work = tasks.Bound(fail_at, 4, str(tmp_path))
        with pytest.raises(LookupError):
            list(getattr(hasty, method)(work, range(2000), chunksize=chunksize))
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]  # it goes on
        assert len(list(tmp_path.iterdir())) < 1000
        # An endless iterable is read no further.
        if method != "map":
            with pytest.raises(LookupError):
                list(getattr(hasty, method)(work, iter(range(10**9)), chunksize=chunksize))


def test_the_map_of_an_executor_ends_with_its_first_error(ctx: BaseContext, tmp_path: Path) -> None:
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        hasty = executor.options(stop_on_error=True)
        work = tasks.Bound(fail_at, 40, str(tmp_path))
        with pytest.raises(LookupError):
            list(hasty.map(work, range(2000)))
        assert len(list(tmp_path.iterdir())) < 1000
        assert list(executor.map(tasks.square, range(5))) == [0, 1, 4, 9, 16]


def test_the_map_of_an_executor_raises_the_first_error_at_once(ctx: BaseContext) -> None:
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        executor.submit(tasks.square, 2).result()
        hasty = executor.options(stop_on_error=True, cancel_running=True)
        with pytest.raises(LookupError):
            list(hasty.map(sleep_or_fail, [0, 1]))  # the first would run for ever


@pytest.mark.parametrize("method", ["map", "imap"])
def test_stop_on_error_can_end_what_runs(ctx: BaseContext, method: str) -> None:
    with ctx.Pool(2) as pool:
        hasty = pool.options(stop_on_error=True, cancel_running=True)
        before = {process.pid for process in pool._pool}
        with pytest.raises(LookupError):
            list(getattr(hasty, method)(sleep_or_fail, [0, 1]))
        assert until(lambda: len({process.pid for process in pool._pool} - before) == 1, tasks.PATIENCE)


def sleep_or_fail(number: int) -> None:
    if number == 1:
        time.sleep(0.3)
        raise LookupError
    time.sleep(FOR_EVER)


@both
def test_a_task_above_its_memory_limit_is_ended_and_names_both_numbers(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as either:
        small = tasks.viewed(either, memory_limit=300 << 20)
        error = tasks.outcome(small.submit(grow, 400 << 20))
        assert isinstance(error, mp.TaskMemoryError) and isinstance(error, MemoryError)
        assert error.limit == 300 << 20 and error.used > error.limit
        assert "memory_limit of 300 MiB" in str(error) and any("grow(" in note for note in error.__notes__)
        assert small.submit(grow, 1 << 20, 0.3)() == 1 << 20
        assert either.submit(grow, 400 << 20, 0.3)() == 400 << 20


def test_memory_that_a_worker_shares_with_others_is_not_counted(ctx: BaseContext) -> None:
    array = mp.shared.zeros(400 << 20, "u1")
    array[:] = 1
    with ctx.Pool(1, memory_limit=300 << 20) as pool:
        assert pool.apply(add_up_for_a_while, (array,)) == 400 << 20
    inherited = b"1" * (400 << 20)
    with mp.get_context("fork").Pool(1, memory_limit=300 << 20) as pool:
        assert pool.apply(time.sleep, (0.3,)) is None
    assert inherited


def add_up_for_a_while(array: Any) -> int:
    total = int(array.sum(dtype="i8"))
    time.sleep(0.3)
    return total
