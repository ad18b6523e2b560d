"""Names with an underscore of the standard pools and executors, which public programs use, are there and work."""

from __future__ import annotations

import multiprocessing.pool
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp

standard: Any = multiprocessing.pool


def lazy_starmap(pool: Any, function: Callable[..., Any], calls: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
    """Like `starmap`, lazily, by the recipe that is copied from program to program."""
    pool._check_running()
    batches = standard.Pool._get_tasks(function, calls, chunksize)
    result = standard.IMapIterator(pool)
    pool._taskqueue.put((pool._guarded_task_generation(result._job, standard.starmapstar, batches), result._set_length))
    return (item for chunk in result for item in chunk)


@pytest.mark.parametrize("chunksize", [1, 3])
def test_the_recipe_of_a_lazy_starmap_works(ctx: BaseContext, strategy: str, chunksize: int) -> None:
    with ctx.Pool(2) as pool:
        calls = ((2, exponent) for exponent in range(10))
        assert list(lazy_starmap(pool, pow, calls, chunksize)) == [2**exponent for exponent in range(10)]
        assert list(lazy_starmap(pool, pow, [])) == []
        assert pool._cache == {}
        assert until(lambda: pool._taskqueue.qsize() == 0 and pool._inqueue.empty(), tasks.PATIENCE)


def test_an_error_of_the_iterable_comes_after_the_results_of_a_lazy_starmap(ctx: BaseContext) -> None:
    def calls() -> Iterator[tuple[int, int]]:
        yield 2, 3
        raise LookupError("no more")

    with ctx.Pool(1) as pool:
        results = lazy_starmap(pool, pow, calls())
        assert next(results) == 8
        with pytest.raises(LookupError, match="no more"):
            next(results)


def test_a_task_that_was_put_into_the_task_queue_alone_has_its_result(ctx: BaseContext) -> None:
    with ctx.Pool(1) as pool:
        result = standard.ApplyResult(pool, None, None)
        pool._taskqueue.put(([(result._job, 0, pow, (2,), {"exp": 5})], None))
        assert result.get(tasks.PATIENCE) == 32


@pytest.mark.parametrize("end", ["terminate", "close"])
def test_the_end_of_a_pool_is_complete_whatever_lies_in_its_cache(
    ctx: BaseContext, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    with ctx.Pool(1) as pool:
        pool.apply(abs, (1,))  # and the manager runs
    pool.join()
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = ctx.Pool(1)
    foreign = [
        standard.IMapIterator(pool),
        standard.IMapUnorderedIterator(pool),
        standard.ApplyResult(pool, None, None),
        standard.MapResult(pool, 1, 3, None, None),
    ]
    pool._cache["another's"] = object()
    getattr(pool, end)()
    pool.join()
    assert not pool._task_handler.is_alive()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    for iterator in foreign[:2]:
        with pytest.raises(mp.ProcessError, match="terminated before"):
            iterator.next(tasks.PATIENCE)
        with pytest.raises(StopIteration):
            iterator.next(tasks.PATIENCE)
    for result in foreign[2:]:
        with pytest.raises(mp.ProcessError, match="terminated before"):
            result.get(tasks.PATIENCE)
    assert [each.exc_type for each in reported] == [AttributeError]  # of the object that is no result at all


def test_a_lazy_starmap_that_is_under_way_ends_with_its_pool(ctx: BaseContext, tmp_path: Path) -> None:
    path = str(tmp_path / "never")
    with ctx.Pool(1) as pool:
        results = lazy_starmap(pool, tasks.wait_for, [(path,)] * 5)
        assert until(lambda: pool._inqueue.qsize() > 0, tasks.PATIENCE)
    with pytest.raises(mp.ProcessError, match="terminated before"):
        next(results)
    assert list(results) == []


def test_an_executor_shows_its_pending_work_items(ctx: BaseContext, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with mp.ProcessPoolExecutor(1, mp_context=ctx) as executor:
        pending: Any = executor._pending_work_items
        assert len(pending) == 0 and not executor._shutdown_thread
        futures = [executor.submit(tasks.wait_for, str(path)) for _ in range(5)]
        assert len(pending) == len(dict(pending)) == 5
        assert {item.future for item in pending.values()} == set(futures)
        assert {(item.fn, item.args) for item in pending.values()} == {(tasks.wait_for, (str(path),))}
        names: Any = executor
        assert names._work_ids.qsize() + names._call_queue.qsize() == 5
        assert names._queue_count == 5
        with names._shutdown_lock:
            path.touch()
        for future in futures:
            future.result(tasks.PATIENCE)
        assert len(pending) == 0 and dict(pending) == {}
        names._call_queue.join_thread()
        names._executor_manager_thread_wakeup.wakeup()
    assert executor._shutdown_thread


def test_a_program_that_waits_for_room_by_the_pending_work_items_goes_on(ctx: BaseContext) -> None:
    most = 0
    with mp.ProcessPoolExecutor(2, mp_context=ctx) as executor:
        futures = []
        for number in range(50):
            futures.append(executor.submit(tasks.square, number))
            most = max(most, len(executor._pending_work_items))
            assert until(lambda: len(executor._pending_work_items) < 5, tasks.PATIENCE)
        assert [future.result() for future in futures] == [n * n for n in range(50)]
    assert most <= 5


def attributes(thing: Any) -> set[str]:
    """Return the names of what a pool or an executor has."""
    return {name for name in vars(thing) if not name.startswith("_quick_")}  # functions of the pool's threads


def test_every_attribute_of_the_standard_classes_is_there() -> None:
    import concurrent.futures

    for kind, ours in (
        (standard.Pool, mp.Pool),
        (concurrent.futures.ProcessPoolExecutor, mp.ProcessPoolExecutor),
    ):
        with kind(1) as theirs, ours(1) as made:
            assert [name for name in attributes(theirs) if not hasattr(made, name)] == []


@pytest.mark.parametrize("name", ["apply_async", "_map_async", "imap", "imap_unordered", "map", "starmap"])
def test_a_method_that_is_patched_onto_the_type_of_a_pool_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    with mp.Pool(1) as pool:
        kind = type(pool)
        ours = getattr(kind, name)

        def patched(self: Any, *args: Any, **options: Any) -> Any:
            seen.append(name)
            return ours(self, *args, **options)

        # Those that the standard class has and ours inherits may be patched there, too.
        monkeypatch.setattr(kind if name in vars(kind) else standard.Pool, name, patched)
        assert pool.apply(abs, (-1,)) == 1
        assert pool.map(abs, [-1, 2]) == [1, 2]
        assert pool.starmap(pow, [(2, 3)]) == [8]
        assert [*pool.imap(abs, [-1]), *pool.imap_unordered(abs, [-2])] == [1, 2]
    assert seen
