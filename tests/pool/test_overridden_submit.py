"""`ProcessPoolExecutor.map` calls a `submit` that the program has overridden or patched, as the standard `map` does."""

from __future__ import annotations

import concurrent.futures
import functools
import operator
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.context import BaseContext
from typing import Any

import pool_tasks as tasks
import pytest

import mp_all as mp

Seen = list[tuple[tuple[Any, ...], "Future[Any]"]]


class Records:
    """Record each call of `submit` of the other base."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: Seen = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = super().submit(fn, *args, **kwargs)  # type: ignore[misc]
        self.seen.append((args, future))
        return future


class Recording(Records, mp.ProcessPoolExecutor):
    """Ours."""


class StandardRecording(Records, concurrent.futures.ProcessPoolExecutor):
    """The standard one."""


class Bounded(mp.ProcessPoolExecutor):
    """The recipe of an executor that has at most three tasks under way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.room = threading.BoundedSemaphore(3)
        self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.room.acquire()
        self.most = max(self.most, 3 - self.room._value)
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(lambda _: self.room.release())
        return future


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map_calls_an_overridden_submit_as_the_standard_map_does(ctx: BaseContext, chunksize: int) -> None:
    seen = []
    for kind in (Recording, StandardRecording):
        with kind(2, mp_context=ctx) as executor:
            results = executor.map(operator.add, range(7), [10] * 7, chunksize=chunksize)
            assert list(results) == [*range(10, 17)]
        assert all(future.done() for _, future in executor.seen)
        seen.append([args for args, _ in executor.seen])
    assert seen[0] == seen[1]


def test_a_bounded_executor_is_bounded_in_its_map(ctx: BaseContext) -> None:
    with Bounded(2, mp_context=ctx) as executor:
        assert list(executor.map(tasks.square, range(20))) == [n * n for n in range(20)]
    assert executor.most == 3


@pytest.mark.parametrize("where", ["instance", "type"])
def test_map_calls_a_submit_that_was_put_in_place_of_ours(
    start_method: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Seen = []
    ours = mp.ProcessPoolExecutor.submit

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = ours(self, fn, *args, **kwargs)
        seen.append((args, future))
        return future

    with mp.ProcessPoolExecutor(2, mp_context=mp.get_context(start_method)) as executor:
        if where == "type":
            monkeypatch.setattr(mp.ProcessPoolExecutor, "submit", submit)
        else:
            executor.submit = functools.partial(submit, executor)  # type: ignore[method-assign]
        assert list(executor.map(tasks.square, range(4), buffersize=2)) == [0, 1, 4, 9]
    assert len(seen) == 4


def test_the_error_of_a_lost_task_names_the_function_of_an_overridden_submit() -> None:
    with Recording(1) as executor:
        results = executor.map(os._exit, [3])
        with pytest.raises(mp.WorkerLostError) as caught:
            next(results)
    assert caught.value.function == "_exit"
