"""The errors of tasks come with their tracebacks, also if they cannot be pickled, and affect no other task."""

from __future__ import annotations

import errno
import functools
import multiprocessing.pool
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pool_tasks as tasks
import pytest
from support.scripts import run_python, run_script, succeeded

import mp_all as mp
from mp_pool.tasks.mappers import map_chunk, starmap_chunk
from mp_pool.tasks.task import Task, deliver_all

both = pytest.mark.parametrize("kind", tasks.KINDS)


class NeedsTwo(Exception):
    """Its pickle cannot be loaded, because unpickling calls it with `args`."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class HasALock(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class FailsOnLoading:
    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return fail_on_loading, (self.where,)


class FailsOnPickling:
    def __reduce__(self) -> Any:
        raise LookupError("not to be pickled")


class RaisesOnLoading:
    """Raises an exception in `__setstate__`, where it is unpickled: in workers, or in the program."""

    def __init__(self, error: Exception, in_workers: bool) -> None:
        self.error, self.in_workers = error, in_workers

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if (mp.parent_process() is not None) == self.in_workers:
            raise self.error


class Exits:
    """Raises SystemExit when it is unpickled, or already when it is pickled."""

    def __init__(self, when: str) -> None:
        self.when = when

    def __reduce__(self) -> Any:
        if self.when == "pickled":
            sys.exit(3)
        return sys.exit, (3,)


def fail_on_loading(where: str) -> None:
    raise LookupError(f"not to be loaded in the {where}")


def make(kind: type, *args: Any) -> Any:
    return kind(*args)


@both
def test_an_exception_comes_with_the_workers_traceback(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        error = tasks.outcome(pool.submit(tasks.fail, ValueError, "wrong"))
    assert type(error) is ValueError and error.args == ("wrong",)
    assert "in fail" in str(error.__cause__) and "raise kind(*args)" in str(error.__cause__)


@both
@pytest.mark.parametrize(("error", "args"), [(NeedsTwo, ("this", "that")), (HasALock, ("this and that",))])
def test_an_exception_that_cannot_be_pickled_comes_as_text(
    kind: str, ctx: BaseContext, error: type[Exception], args: tuple[str, ...]
) -> None:
    with tasks.either(kind, ctx) as pool:
        others = [pool.submit(tasks.square, n) for n in range(10)]
        received = tasks.outcome(pool.submit(tasks.fail, error, *args))
        assert [wait() for wait in others] == [n * n for n in range(10)]
        assert pool.submit(tasks.square, 3)() == 9
    assert isinstance(received, multiprocessing.pool.MaybeEncodingError)
    assert f"test_errors.{error.__name__}: this and that" in str(received)
    assert "in fail" in str(received.__cause__)


class MakesANumber(Exception):
    def __reduce__(self) -> Any:
        return int, ("5",)


def test_an_exception_whose_pickle_makes_another_thing_says_so() -> None:
    with mp.get_context("fork").Pool(1) as pool, pytest.raises(multiprocessing.pool.MaybeEncodingError) as raised:
        pool.apply(tasks.fail, (MakesANumber, "x"))
    assert "its pickle makes int, which is no exception" in str(raised.value)


@both
@pytest.mark.parametrize("where", ["task", "result"])
@pytest.mark.parametrize("kind_of", [FailsOnLoading, FailsOnPickling])
def test_an_object_that_cannot_be_pickled_or_loaded_fails_its_task_only(
    kind: str, ctx: BaseContext, where: str, kind_of: type
) -> None:
    with tasks.either(kind, ctx) as pool:
        args = (where,) if kind_of is FailsOnLoading else ()
        waits = [pool.submit(tasks.square, n) for n in range(10)]
        bad = pool.submit(make, kind_of, *args) if where == "result" else pool.submit(tasks.own_pid, kind_of(*args))
        waits += [pool.submit(tasks.square, n) for n in range(10, 20)]
        error = tasks.outcome(bad)
        assert [wait() for wait in waits] == [n * n for n in range(20)]
    assert isinstance(error, LookupError | multiprocessing.pool.MaybeEncodingError)
    assert "not to be" in str(error)


@both
@pytest.mark.parametrize("when", ["pickled", "unpickled"])
def test_a_result_that_exits_fails_its_task_only(kind: str, ctx: BaseContext, when: str) -> None:
    if (kind, when) == ("pool", "pickled"):
        expected: type[BaseException] = mp.WorkerLostError  # as with the standard pool, the worker exits
    else:
        expected = SystemExit
    with tasks.either(kind, ctx) as pool:
        waits = [pool.submit(tasks.square, n) for n in range(10)]
        bad = pool.submit(make, Exits, when)
        waits += [pool.submit(tasks.square, n) for n in range(10, 20)]
        with pytest.raises(expected) as caught:
            bad()
        assert [wait() for wait in waits] == [n * n for n in range(20)]
    assert getattr(caught.value, "exitcode", getattr(caught.value, "code", None)) == 3


@both
def test_many_failures_end_no_worker(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, 2) as pool:
        [wait() for wait in [pool.submit(tasks.square, n) for n in range(10)]]
        before = pool.pids()
        errors = [tasks.outcome(wait) for wait in [pool.submit(tasks.fail, KeyError, n) for n in range(200)]]
        assert [error.args for error in errors] == [(n,) for n in range(200)]
        assert pool.pids() >= before


def test_an_exception_of_a_callback_is_printed_and_affects_no_result(ctx: BaseContext) -> None:
    shown = []
    before, threading.excepthook = threading.excepthook, shown.append
    try:
        with ctx.Pool(1) as pool:
            assert pool.apply_async(tasks.square, (3,), callback=lambda value: 1 / 0).get(tasks.PATIENCE) == 9
            assert pool.map_async(tasks.square, [3, 4], callback=lambda value: 1 / 0).get(tasks.PATIENCE) == [9, 16]
            assert pool.apply(tasks.square, (4,)) == 16
    finally:
        threading.excepthook = before
    assert [hook.exc_type for hook in shown] == [ZeroDivisionError] * 2


class RaisesWhenPickled:
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> NoReturn:
        raise self.error("in reduce")


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_what_ends_a_program_when_an_argument_is_pickled_is_the_error_of_its_call(error: type[BaseException]) -> None:
    raises = RaisesWhenPickled(error)
    with mp.Pool(1) as pool, mp.ProcessPoolExecutor(1) as executor:
        for _ in range(5):
            with pytest.raises(error, match="in reduce"):
                pool.apply(abs, (raises,))
            with pytest.raises(error, match="in reduce"):
                executor.submit(abs, raises).result(tasks.PATIENCE)
            with pytest.raises(error, match="in reduce"):
                list(executor.map(abs, [raises], timeout=tasks.PATIENCE))
        assert pool.apply(abs, (-1,)) == executor.submit(abs, -1).result() == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_exits_is_printed_and_ends_no_pool(
    ctx: BaseContext, error: type[BaseException], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest's makes a failure of it

    def leave(value: object) -> None:
        raise error(4)

    with ctx.Pool(1) as pool:
        assert pool.apply_async(tasks.square, (3,), callback=leave).get(tasks.PATIENCE) == 9
        assert pool.map_async(tasks.square, [3, 4], callback=leave).get(tasks.PATIENCE) == [9, 16]
        assert pool.apply(tasks.square, (4,)) == 16
    with mp.ProcessPoolExecutor(1, ctx) as executor:
        future = executor.submit(tasks.square, 3)
        future.add_done_callback(leave)
        assert future.result(tasks.PATIENCE) == 9
        assert executor.submit(tasks.square, 4).result(tasks.PATIENCE) == 16
    assert f"{error.__name__}: 4" in capfd.readouterr().err


class Unwritable:
    """A standard error, or a hook, that refuses everything."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    def __call__(self, arguments: object) -> None:
        raise LookupError("a fault of the program's hook")


@pytest.mark.parametrize("what", ["stderr", "excepthook"])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_callback_that_raises_ends_no_pool_where_its_error_cannot_be_shown(
    monkeypatch: pytest.MonkeyPatch, what: str, error: type[BaseException]
) -> None:
    def fail(value: object) -> None:
        raise error(4)

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    monkeypatch.setattr(sys if what == "stderr" else threading, what, Unwritable())
    with mp.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(tasks.square, (3,), callback=fail).get(tasks.PATIENCE) == 9
        assert pool.apply_async(tasks.square, (4,)).get(tasks.PATIENCE) == 16


def test_a_callback_may_use_the_pool(ctx: BaseContext) -> None:
    with ctx.Pool(1) as pool:
        second: list[Any] = []
        came = threading.Event()

        def callback(value: int) -> None:
            second.append(pool.apply_async(tasks.square, (value,)))
            came.set()

        pool.apply_async(tasks.square, (3,), callback=callback)
        assert came.wait(tasks.PATIENCE)
        assert second[0].get(tasks.PATIENCE) == 81


class ShorterThanItSays:
    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        return iter(range(4))


class RaisesInTheMiddle(ShorterThanItSays):
    def __iter__(self) -> Any:
        yield from range(4)
        raise LookupError("the file ends here")


@pytest.mark.parametrize(("iterable", "error"), [(ShorterThanItSays, ValueError), (RaisesInTheMiddle, LookupError)])
def test_a_map_of_an_iterable_that_ends_too_early_fails(ctx: BaseContext, iterable: type, error: type) -> None:
    with ctx.Pool(2) as pool:
        with pytest.raises(error):
            pool.map_async(tasks.square, iterable(), chunksize=1).get(tasks.PATIENCE)
        with pytest.raises(error):
            pool.map_async(tasks.square, iterable(), chunksize=3).get(tasks.PATIENCE)
        assert pool.map(tasks.square, [1, 2]) == [1, 4]


def test_an_error_names_the_users_function(ctx: BaseContext) -> None:
    with ctx.Pool(1) as pool:
        with pytest.raises(mp.WorkerLostError) as lost:
            pool.map(tasks.end_on_seven, range(5, 10), chunksize=2)
        assert (lost.value.function, lost.value.index) == ("end_on_seven", 2)
        with pytest.raises(mp.WorkerLostError) as lost:
            pool.starmap(tasks.end_on, [(1, 2), (3, 3)], chunksize=1)
        assert (lost.value.function, lost.value.index) == ("end_on", 1)
    with mp.ProcessPoolExecutor(1, ctx) as executor:
        with pytest.raises(mp.WorkerLostError) as lost:
            list(executor.map(tasks.end_on_seven, range(5, 10), chunksize=2))
        assert (lost.value.function, lost.value.index) == ("end_on_seven", 2)


class Sink:
    """Takes outcomes, and fails if *fails*."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.came = fails, 0

    def _set_all(self, deliveries: list[Any]) -> None:
        if self.fails:
            raise LookupError
        self.came += len(deliveries)


def test_a_sink_that_fails_affects_no_other() -> None:
    shown: list[Any] = []
    bad, good = Sink(True), Sink(False)
    before, threading.excepthook = threading.excepthook, shown.append
    try:
        deliver_all([(sink, 0, (True, 1), Task(sink, 0, abs, (1,))) for sink in (good, bad, bad, good)])
    finally:
        threading.excepthook = before
    assert good.came == 2
    assert [report.exc_type for report in shown] == [LookupError]


def stop_at_two(number: int) -> int:
    if number == 2:
        raise StopIteration(number)
    return number


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_a_stop_iteration_of_a_task_in_a_chunk_leaves_out_no_result(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool, pytest.raises(RuntimeError, match="StopIteration for item 2 of a chunk of 3"):
        list(pool.pool.map(stop_at_two, range(6), chunksize=3))


def fail_if_odd(number: int) -> int:
    if number % 2:
        raise ValueError(number)
    return number


@pytest.mark.parametrize("chunksize", [1, 7, None])
def test_a_map_raises_the_exception_of_the_first_item_that_failed(chunksize: int | None, ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        for _ in range(20):
            with pytest.raises(ValueError, match=r"^1\n"):
                pool.map(fail_if_odd, range(1000), chunksize=chunksize)


@both
@pytest.mark.parametrize("error", [OSError(5, "mine"), EOFError("mine"), LookupError("mine")], ids=repr)
@pytest.mark.parametrize("with_array", [False, True])
def test_an_object_that_raises_when_it_is_loaded_raises_the_same_each_time(
    kind: str, ctx: BaseContext, error: Exception, with_array: bool
) -> None:
    beside = [np.ones(100_000)] if with_array else []
    with tasks.either(kind, ctx, 1) as pool:
        for in_workers in (True, False):
            for _ in range(3):
                answer = tasks.outcome(pool.submit(tasks.first_of, [RaisesOnLoading(error, in_workers), *beside]))
                assert (type(answer), answer.args) == (type(error), error.args)
        assert pool.submit(tasks.square, 3)() == 9


def fail_on(bad: int, number: int) -> int:
    if number == bad:
        raise ValueError(number)
    return number


class Unwilling(Exception):
    """Takes neither notes nor attributes."""

    __slots__ = ()

    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes")


def refuse(*args: Any, **options: Any) -> None:
    raise Unwilling("refused")


def note_of(call: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:
        call()
    return "\n".join(getattr(raised.value, "__notes__", ["none"]))


def test_an_error_says_in_which_call_it_was_raised(ctx: BaseContext) -> None:
    with mp.get_context(ctx.get_start_method()).Pool(1) as pool, mp.ProcessPoolExecutor(1, mp_context=ctx) as executor:
        pid = pool.apply(os.getpid)
        given = (1.5, np.ones((3, 4), "f4"), [1, 2, 3, 4, 5], object())
        note = note_of(lambda: pool.apply(fail_on, (3, 3), {"number": None}))
        assert note == f"in fail_on(3, 3, number=None), worker {pid}"
        note = note_of(lambda: pool.apply(len, given))
        assert note == f"in len(1.5, ndarray of float32, shape (3, 4), [1, 2, 3, 4, …], <object>), worker {pid}"
        assert f"in len('{'x' * 78}…), worker" in note_of(lambda: pool.apply(len, ("x" * 500, 1)))
        items = [(9, number) for number in range(20)]
        for chunksize in (1, 4, 100):
            note = note_of(functools.partial(pool.starmap, fail_on, items, chunksize))
            assert note == f"in fail_on(9, 9), item 9, worker {pid}"
        partial = functools.partial(fail_on, 5)
        assert note_of(lambda: [*pool.imap(partial, range(20), 3)]).startswith("in fail_on(5), item 5, worker")
        assert note_of(lambda: [*executor.map(partial, range(20), chunksize=4)]).startswith("in fail_on(5), item 5, ")
        assert note_of(lambda: executor.submit(fail_on, 2, number=2).result()).startswith("in fail_on(2, number=2), w")
        assert note_of(lambda: pool.apply(refuse)) == "none"
        # A chunk that is none, as a program may give that calls the mapper itself.
        assert note_of(lambda: pool.apply(starmap_chunk, ((abs, [1, 2]),))).startswith("in abs(1), item 0, worker")
        assert note_of(lambda: pool.apply(map_chunk, (5,))) == "none"
        assert note_of(lambda: pool.apply(os._exit, (3,))).startswith(f"in _exit(3), worker {pid}")


CRASH = """
import ctypes, faulthandler, sys
import mp_all as mp

faulthandler.disable()

def inner(number):
    ctypes.string_at(0)

def crash(number):
    inner(number)

def show(error):
    note = error.__notes__[1]
    print(note.startswith("Python stack of the worker:\\nFatal Python error: Segmentation fault"))
    print([line.rpartition(" in ")[2] for line in note.splitlines() if line.startswith("  File")])

if __name__ == "__main__":
    ctx = mp.get_context(sys.argv[1])
    with ctx.Pool(2) as pool:
        for number in range(4):
            try:
                pool.apply(crash, (number,))
            except mp.WorkerLostError as error:
                show(error)
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        show(executor.submit(crash, 1).exception())
"""


def test_the_error_of_a_crash_has_the_python_stack_of_the_task(start_method: str, tmp_path: Path) -> None:
    printed = succeeded(run_script(tmp_path, CRASH, start_method)).splitlines()
    assert printed == ["True", "['string_at', 'inner', 'crash']"] * 5


def test_a_kill_for_want_of_memory_says_how_much_it_was_and_what_to_set(
    ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mp_pool.scheduling.scheduler import Scheduler

    monkeypatch.setattr(Scheduler, "_out_of_memory", lambda self, exitcode: True)
    with ctx.Pool(1) as pool, pytest.raises(mp.WorkerLostError) as caught:
        pool.apply(os._exit, (9,))
    note = caught.value.__notes__[-1]
    assert "memory_limit= ends such a task with TaskMemoryError" in note and "max_memory_per_child=" in note


def test_the_resident_memory_of_a_killed_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os
import mp_all as mp
from mp_pool.scheduling.scheduler import Scheduler
Scheduler._out_of_memory = lambda self, exitcode: True

def grow_and_die():
    held = b"1" * (300 << 20)
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    with mp.get_context("fork").Pool(1) as pool:
        try:
            pool.apply(grow_and_die)
        except mp.WorkerLostError as error:
            mib = int(error.__notes__[-1].split()[2])
            print(300 < mib < 400)
"""
    assert succeeded(run_python("-c", program)) == "True\n"
