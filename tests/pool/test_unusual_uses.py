"""Pools in tasks, in threads and beside forks, and functions that a worker does not find."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp

both = pytest.mark.parametrize("kind", tasks.KINDS)


def plus(array: np.ndarray, number: int) -> np.ndarray:
    return array + number


def inverse(number: int) -> float:
    return 1 / number


def sum_in_a_pool(method: str, count: int) -> int:
    with mp.get_context(method).Pool(2) as pool:
        return sum(pool.map(tasks.square, range(count)))


def sum_in_an_executor(method: str, count: int) -> int:
    with mp.ProcessPoolExecutor(2, mp.get_context(method)) as executor:
        return sum(executor.map(tasks.square, range(count)))


@pytest.mark.parametrize("function", [sum_in_a_pool, sum_in_an_executor])
def test_a_task_of_an_executor_may_use_a_pool(ctx: BaseContext, start_method: str, function: Any) -> None:
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        futures = [executor.submit(function, start_method, 10) for _ in range(3)]
        assert [future.result(tasks.PATIENCE) for future in futures] == [285] * 3


def test_threads_may_share_a_pool(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        results: dict[int, list[float]] = {}

        def use(number: int) -> None:
            call = pool.map_async(functools.partial(plus, np.full(20_000, number)), range(10), chunksize=1)
            results[number] = [float(each[-1]) for each in call.get(tasks.PATIENCE)]

        threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(tasks.PATIENCE)
        assert results == {number: [float(number + n) for n in range(10)] for number in range(6)}


@pytest.mark.parametrize("values", [[0], np.zeros(3), np.zeros(100_000)], ids=["list", "small", "large"])
def test_an_item_that_a_generator_changes_later_is_sent_as_it_was(ctx: BaseContext, values: Any) -> None:
    with ctx.Pool(2) as pool:
        assert list(pool.imap(tasks.first_of, tasks.refilled(values, 200))) == list(range(200))


def test_an_imap_that_is_ended_in_the_middle_leaves_nothing(ctx: BaseContext) -> None:
    with ctx.Pool(1) as pool:
        results = pool.imap(tasks.first_of, tasks.refilled(np.zeros(100_000), 10_000))
        assert next(results) == 0


class Destroyed:
    """Calls a function of its process when it is destroyed in the parent."""

    def __init__(self, number: int, told: Any = None) -> None:
        self.number, self._told = number, told

    def __reduce__(self) -> Any:
        return Destroyed, (self.number,)

    def __del__(self) -> None:
        if self._told is not None:
            self._told(self.number)


def number_of(thing: Destroyed) -> int:
    return thing.number


def test_the_destructor_of_an_argument_delays_no_result_and_no_other_task(ctx: BaseContext) -> None:
    with ctx.Pool(1) as pool:
        scheduler, with_lock, may_end = pool._scheduler, [], threading.Event()

        def told(number: int) -> None:
            if threading.current_thread() is scheduler.thread:
                with_lock.append(scheduler._lock.is_mine())
                may_end.wait(tasks.PATIENCE)

        try:
            results = pool.imap(number_of, (Destroyed(number, told) for number in range(5)))
            assert results.next(tasks.PATIENCE) == 0  # while its destructor waits
        finally:
            may_end.set()
        assert list(results) == [1, 2, 3, 4]
        assert pool.apply(number_of, (Destroyed(5),)) == 5
        assert not any(with_lock)


def test_an_abandoned_imap_delays_no_other_call(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        results = pool.imap(functools.partial(plus, np.ones(100_000)), range(1000), buffersize=3)
        assert next(results)[0] == 1
        del results
        gc.collect()
        assert pool.map_async(tasks.square, [3]).get(tasks.PATIENCE) == [9]


def test_a_dropped_pool_delivers_its_results_and_ends(ctx: BaseContext) -> None:
    pool = ctx.Pool(2)
    thread = pool._scheduler.thread
    results = pool.map_async(functools.partial(plus, np.ones(100_000)), range(50), chunksize=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the pool, which nobody has closed
        del pool
        # The result keeps the pool until it is there.
        assert len(results.get(tasks.PATIENCE)) == 50
        gc.collect()
        thread.join(tasks.PATIENCE)
    assert not thread.is_alive()


def test_a_fork_beside_a_running_pool_disturbs_neither(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2) as pool:
        path = str(tmp_path / "end")
        results = pool.map_async(tasks.wait_for, [path] * 6, chunksize=1)
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                code = int(sum_in_a_pool("fork", 10) != 285)
                del pool
                gc.collect()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        tasks.touch(path)
        assert results.get(tasks.PATIENCE) == [path] * 6


@pytest.mark.timeout(60)
@both
def test_a_killed_worker_is_replaced_while_a_thread_reads_standard_input(
    kind: str, ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with open(writer, "wb", buffering=0) as out, open(reader, encoding="utf-8") as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        lines: list[str] = []
        thread = threading.Thread(target=lambda: lines.append(sys.stdin.readline()))
        with tasks.either(kind, ctx, 1) as pool:
            assert pool.submit(tasks.square, 2)() == 4
            [first] = pool.pids()
            thread.start()
            state = Path(f"/proc/self/task/{thread.native_id}/stat")
            # It sleeps in the system call, with the lock of the stream.
            until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "S")
            os.kill(first, signal.SIGKILL)
            until(lambda: first not in pool.pids())
            assert pool.submit(tasks.square, 3)() == 9
        out.write(b"line\n")
        thread.join()
        assert lines == ["line\n"]


def raising(error: type[BaseException]) -> Iterator[int]:
    yield from (1, 2)
    raise error("the end of the file")


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize(
    ("error", "options"),
    [
        *((LookupError, options) for options in ({}, {"buffersize": 1}, {"chunksize": 2})),
        (SystemExit, {}),
        (KeyboardInterrupt, {"chunksize": 2}),
    ],
)
def test_the_error_of_an_iterable_comes_after_the_results_of_its_items(
    ctx: BaseContext, method: str, options: dict[str, int], error: type[BaseException]
) -> None:
    with ctx.Pool(2) as pool:
        results = getattr(pool, method)(tasks.square, raising(error), **options)
        if "chunksize" not in options and (method == "imap" or options):
            assert sorted(results.next(tasks.PATIENCE) for _ in range(2)) == [1, 4]
        with pytest.raises(error, match="the end of the file"):
            for _ in range(3):
                results.next(tasks.PATIENCE)
        assert pool.apply(tasks.square, (5,)) == 25


@pytest.fixture
def only_here() -> Iterator[types.ModuleType]:
    """A module that no file defines, so that only this process has it."""
    module = types.ModuleType("only_here")
    exec("def call(number): return number", vars(module))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@both
def test_a_function_that_a_worker_does_not_find_names_the_searched_module(
    kind: str, ctx: BaseContext, request: pytest.FixtureRequest
) -> None:
    with tasks.either(kind, ctx, 1) as pool:
        assert pool.submit(tasks.square, 2)() == 4  # the worker has started, and inherits nothing more
        module = request.getfixturevalue("only_here")
        error = tasks.outcome(pool.submit(module.call, 1))
        assert isinstance(error, ModuleNotFoundError) and "only_here" in str(error)
        module.call.__module__ = tasks.__name__
        tasks.call = module.call  # type: ignore[attr-defined]
        try:
            error = tasks.outcome(pool.submit(module.call, 1))
        finally:
            del tasks.call  # type: ignore[attr-defined]
        assert isinstance(error, AttributeError) and "'call'" in str(error) and "module 'pool_tasks'" in str(error)
        assert pool.submit(tasks.square, 3)() == 9


def test_chunks_of_a_range_have_the_numbers_of_the_range(ctx: BaseContext) -> None:
    ranges = [range(0), range(1), range(7), range(10, -9, -3), range(-5, 50, 7), range(1 << 70, (1 << 70) + 9, 2)]
    with ctx.Pool(2) as pool:
        for numbers in ranges:
            squares = [number * number for number in numbers]
            for chunksize in (None, 1, 2, 3, 100):
                assert pool.map(tasks.square, numbers, chunksize) == squares
                assert list(pool.imap(tasks.square, numbers, chunksize or 5)) == squares
        with pytest.raises(ZeroDivisionError):
            pool.map(inverse, range(-4, 5), 3)
        with pytest.raises(TypeError):
            pool.starmap(tasks.square, range(9), 3)
        assert pool.map_async(len, [range(3), range(2)], 2).get() == [3, 2]


class _Patcher(types.ModuleType):
    """
    Tell what gevent or eventlet would have replaced.
    """

    replaced: tuple[str, ...] = ()

    def is_module_patched(self, name: str) -> bool:
        return name in self.replaced

    is_monkey_patched = is_module_patched


@pytest.mark.parametrize("library", ["gevent.monkey", "eventlet.patcher"])
@pytest.mark.parametrize("replaced", [(), ("socket",), ("os",), ("thread", "threading")])
@pytest.mark.parametrize("make", [mp.Pool, mp.ProcessPoolExecutor])
def test_a_pool_beside_greenlets_runs_or_says_at_once_that_it_would_hang(
    make: Callable[[int], Any], replaced: tuple[str, ...], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patcher = _Patcher(library)
    patcher.replaced = replaced
    monkeypatch.setitem(sys.modules, library, patcher)
    if "os" in replaced or "thread" in replaced:
        with (
            pytest.raises(RuntimeError, match=rf"^{library.partition('.')[0]} .*thread=False, os=False"),
            make(1) as pool,
        ):
            list(pool.map(abs, [-1]))
    else:
        with make(1) as pool:
            assert list(pool.map(abs, [-1])) == [1]


@pytest.mark.parametrize("size", [np.int8(100), np.uint8(2), sys.maxsize + 1])
def test_a_size_of_chunks_may_be_any_whole_number(size: Any) -> None:
    numbers = range(127)
    expected = [tasks.square(number) for number in numbers]
    with mp.get_context("fork").Pool(2) as pool:
        assert pool.map(tasks.square, numbers, size) == expected
        assert list(pool.imap(tasks.square, numbers, size)) == expected
        assert sorted(pool.imap_unordered(tasks.square, [*numbers], size)) == expected
        assert pool.starmap(divmod, [(5, 3)], size) == [(1, 2)]
        assert pool.apply(tasks.square, (3,)) == 9
    with mp.ProcessPoolExecutor(2) as executor:
        assert list(executor.map(tasks.square, numbers, chunksize=size)) == expected
