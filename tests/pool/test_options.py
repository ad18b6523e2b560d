"""Options: retries, timeouts, replaced workers, initializers that fail, and how far ahead iterables are read."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pool_tasks as tasks
import pytest
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_pool.scheduling import workers

both = pytest.mark.parametrize("kind", tasks.KINDS)


@both
def test_a_task_is_repeated_as_often_as_retries_allows(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    with tasks.either(kind, ctx, retries=1) as pool:
        assert pool.submit(tasks.end_once, str(tmp_path / "flag"))() == "done"
        assert isinstance(tasks.outcome(pool.submit(tasks.end, "SIGKILL")), mp.WorkerLostError)
        assert pool.submit(tasks.square, 2)() == 4


# In seconds: long enough for a trivial task on a busy machine.
LIMIT = 5.0


@both
def test_a_stopped_worker_is_killed_after_the_timeout_and_the_others_continue(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, timeout=LIMIT) as pool:
        slow = pool.submit(tasks.end, "SIGSTOP")
        others = [pool.submit(tasks.square, n) for n in range(10)]
        error = tasks.outcome(slow)
        assert isinstance(error, mp.TaskTimeoutError)
        assert isinstance(error, TimeoutError) and isinstance(error, mp.TimeoutError)
        assert (error.seconds, error.function) == (LIMIT, "end")
        assert [wait() for wait in others] == [n * n for n in range(10)]


@both
def test_a_task_that_takes_too_long_is_killed(kind: str) -> None:
    with tasks.either(kind, mp.get_context("fork"), 1, timeout=LIMIT) as pool:
        error = tasks.outcome(pool.submit(time.sleep, 3600))
        assert isinstance(error, mp.TaskTimeoutError) and error.function == "sleep"
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.args) == (str(error), error.args)
        assert pool.submit(tasks.square, 2)() == 4


@both
def test_the_tasks_of_a_stopped_worker_go_to_the_others(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        [wait() for wait in [pool.submit(tasks.square, n) for n in range(500)]]
        stopped = min(pool.pids())
        os.kill(stopped, signal.SIGSTOP)
        answers = [pool.submit(tasks.fill, 20_000) for _ in range(100)]
        # Only the task that the stopped worker has begun waits for it.
        assert until(lambda: sum(done(answer) for answer in answers) >= 99, tasks.PATIENCE)
        os.kill(stopped, signal.SIGCONT)
        assert [len(wait()) for wait in answers] == [20_000] * 100


def done(wait: Any) -> bool:
    result = next(cell.cell_contents for cell in wait.__closure__)
    return bool(result.ready() if hasattr(result, "ready") else result.done())


@both
def test_a_worker_is_replaced_after_its_maximum_of_tasks(kind: str, ctx: BaseContext) -> None:
    name = "maxtasksperchild" if kind == "pool" else "max_tasks_per_child"
    with tasks.either(kind, ctx, 2, **{name: 3}) as pool:
        pids = [wait() for wait in [pool.submit(tasks.own_pid) for _ in range(18)]]
    assert max(pids.count(pid) for pid in pids) <= 3


@both
def test_a_worker_with_too_much_memory_is_replaced(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, 1, max_memory_per_child=400 << 20) as pool:
        small = {pool.submit(tasks.hold_memory, 1000)() for _ in range(3)}
        large = [pool.submit(tasks.hold_memory, 500 << 20)() for _ in range(2)]
    assert len(small) == 1
    assert len(set(large)) == 2


@both
def test_an_initializer_that_fails_three_times_ends_the_pool_with_its_exception(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    with tasks.either(kind, ctx, 1, initializer=count_and_fail, initargs=(folder,)) as pool:
        error = tasks.outcome(pool.submit(tasks.square, 2))
        if kind == "executor":
            assert isinstance(error, BrokenProcessPool)
            error = error.__cause__
            with pytest.raises(BrokenProcessPool):
                pool.submit(tasks.square, 2)
        else:
            assert isinstance(tasks.outcome(pool.submit(tasks.square, 2)), LookupError)
        assert isinstance(error, LookupError) and error.args == ("no such device",)
        assert "count_and_fail" in str(error.__cause__)
    assert len(os.listdir(folder)) == 3


def count_and_fail(folder: str) -> None:
    import logging

    logging.disable()  # the executor logs it, as the standard executor does
    Path(folder, str(os.getpid())).touch()
    raise LookupError("no such device")


class Refusal:
    """Refuses to start a worker, as a system without descriptors does, and counts the attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(workers, "RETRY", 0.001)

    def __call__(self) -> None:
        self.count += 1
        raise OSError(errno.EMFILE, "no descriptor")


def test_starts_that_the_system_refused_do_not_count_as_workers_that_died(
    ctx: BaseContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, refusal = tmp_path / "go", Refusal(monkeypatch)
    path.touch()
    with ctx.Pool(2, tasks.wait_for, (str(path),)) as pool:
        scheduler = pool._scheduler
        assert pool.map(tasks.square, range(10)) == [n * n for n in range(10)]
        assert until(scheduler.is_ready, tasks.PATIENCE)
        path.unlink()
        before = _pids(pool)
        with monkeypatch.context() as patch:
            patch.setattr(scheduler.dispatcher, "start_worker", refusal)
            os.kill(min(before), signal.SIGKILL)
            assert until(lambda: refusal.count >= 2 * workers.KILLED, tasks.PATIENCE)
        assert until(lambda: _pids(pool) - before, tasks.PATIENCE)
        (starting,) = _pids(pool) - before
        os.kill(starting, signal.SIGKILL)
        assert until(lambda: starting not in _pids(pool), tasks.PATIENCE)
        path.touch()
        assert pool.map(tasks.square, range(10)) == [n * n for n in range(10)]


def test_the_time_of_a_shortage_counts_from_the_end_of_the_last_worker(
    ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Refusal(monkeypatch)
    with ctx.Pool(2) as pool:
        assert until(pool._scheduler.is_ready, tasks.PATIENCE)
        first, second = _pids(pool)
        with monkeypatch.context() as patch:
            patch.setattr(pool._scheduler.dispatcher, "start_worker", refusal)
            os.kill(first, signal.SIGKILL)
            assert until(lambda: refusal.count > workers.ATTEMPTS, tasks.PATIENCE)
            pool._scheduler._refused_since = 0.0  # the second has worked for so long
            before = refusal.count
            assert until(lambda: refusal.count > before + 1, tasks.PATIENCE)
            before = refusal.count
            os.kill(second, signal.SIGKILL)
            assert until(lambda: refusal.count > before + 100, tasks.PATIENCE)
        assert pool.apply(tasks.square, (3,)) == 9


@both
@pytest.mark.parametrize("ends", [False, True])
def test_a_pool_without_a_worker_outlives_a_short_shortage(
    kind: str, ends: bool, ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Refusal(monkeypatch)
    monkeypatch.setattr(workers, "SHORTAGE", 0.0 if ends else tasks.PATIENCE)
    with tasks.either(kind, ctx, 1) as pool:
        assert tasks.outcome(pool.submit(tasks.square, 2)) == 4
        scheduler = pool.pool._scheduler
        with monkeypatch.context() as patch:
            patch.setattr(scheduler.dispatcher, "start_worker", refusal)
            os.kill(scheduler.processes()[0].pid, signal.SIGKILL)
            result = pool.submit(tasks.square, 3)
            assert until(lambda: refusal.count >= workers.ATTEMPTS * (1 if ends else 3), tasks.PATIENCE)
            if ends:
                error = tasks.outcome(result)
                assert "none can be started" in str((error.__cause__ or error).__notes__)
        assert ends or tasks.outcome(result) == 9


def _pids(pool: Any) -> set[int]:
    return {process.pid for process in pool._pool}


@both
def test_an_initializer_that_always_dies_ends_the_pool(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, 1, initializer=tasks.end, initargs=("exit",)) as pool:
        error = tasks.outcome(pool.submit(tasks.square, 2))
        error = error.__cause__ if kind == "executor" else error
        assert isinstance(error, mp.WorkerLostError)
        assert (error.exitcode, error.function) == (3, "its start or initializer")


def be_killed_thrice_and_fail_once(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    starts = len(os.listdir(folder))
    if starts <= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if starts == 4:
        raise LookupError("no such device")


@both
def test_one_failure_after_three_kills_does_not_end_the_pool(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    with tasks.either(kind, ctx, 1, initializer=be_killed_thrice_and_fail_once, initargs=(str(tmp_path),)) as pool:
        assert tasks.outcome(pool.submit(tasks.square, 3)) == 9
    assert len(os.listdir(tmp_path)) == 5


@both
def test_workers_that_always_end_before_their_first_task_end_the_pool(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    with tasks.either(kind, ctx, 1, initializer=break_the_ring, initargs=(str(tmp_path),)) as pool:
        error = tasks.outcome(pool.submit(tasks.square, 2))
        error = error.__cause__ if kind == "executor" else error
        assert isinstance(error, mp.WorkerLostError)
        assert (error.exitcode, error.function) == (1, "the start of its first task")
    assert 3 <= len(os.listdir(tmp_path)) <= 6  # the next one starts before a death is counted


def break_the_ring(folder: str) -> None:
    from mp_pool.workers import worker_main

    Path(folder, str(os.getpid())).touch()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115

    def next_message(ring: Any, parts: list[Any]) -> Any:
        if ring.spin():
            raise MemoryError
        return None

    worker_main._next = next_message


OF_MAIN = """
import os
AT_IMPORT = os.environ.get("OMP_NUM_THREADS"), "numpy" in __import__("sys").modules  # as NumPy's libraries read it
import numpy
import mp_all as mp
import sys

def limits():
    return {name: value for name, value in os.environ.items() if "NUM_THREADS" in name}

BEFORE = limits()

def seen():
    return AT_IMPORT, os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("NUMBA_NUM_THREADS")

if __name__ == "__main__":
    ctx = mp.get_context(sys.argv[1])
    with ctx.Pool(1, threads_per_worker=3, maxtasksperchild=1) as pool:
        print([pool.apply(seen), pool.apply(seen)])
    with mp.ProcessPoolExecutor(1, ctx, threads_per_worker=2) as executor:
        print(executor.submit(seen).result())
    assert limits() == BEFORE
"""


def test_threads_per_worker_is_in_the_environment_before_numpy_is_imported(start_method: str, tmp_path: Path) -> None:
    first, second = succeeded(run_script(tmp_path, OF_MAIN, start_method)).splitlines()
    # A forked worker has the libraries that its parent has loaded before.
    imported = [(None if start_method == "fork" else count, False) for count in ("3", "2")]
    assert first == repr([(imported[0], "3", "3")] * 2)
    assert second == repr((imported[1], "2", "2"))


OF_BAR = """
import sys
import mp_all as mp

def square(number):
    if number == 7:
        raise LookupError
    return number * number

if __name__ == "__main__":
    if sys.argv[2] == "absent":
        sys.modules["tqdm"] = sys.modules["tqdm.auto"] = None
    ctx = mp.get_context(sys.argv[1])
    with ctx.Pool(2, progress=True) as pool:
        pool.map(square, [1] * 50, chunksize=4)
        list(pool.imap(square, iter(range(7))))
        list(pool.imap_unordered(square, [1] * 20, chunksize=3))
        pool.apply_async(square, (7,)).wait()
        pool.close()
        pool.join()
    with mp.ProcessPoolExecutor(2, ctx, progress=True) as executor:
        list(executor.map(square, range(6), chunksize=4))
        executor.submit(square, 7).exception()
"""


@pytest.mark.parametrize("tqdm", ["present", "absent"])
def test_progress_shows_all_tasks_done_and_warns_without_tqdm(start_method: str, tmp_path: Path, tqdm: str) -> None:
    if tqdm == "present":
        pytest.importorskip("tqdm")
    done = run_script(tmp_path, OF_BAR, start_method, tqdm)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    if tqdm == "absent":
        assert done.stderr.count("UserWarning: progress=True shows nothing without tqdm: pip install tqdm") == 2
        assert "with ctx.Pool(2, progress=True) as pool:" in done.stderr  # the program's line
    else:
        assert "78/78" in done.stderr and done.stderr.splitlines()[-1].startswith("100%"), done.stderr
        assert "7/7" in done.stderr.splitlines()[-1]


class Counted:
    """An endless iterable that counts the items taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.taken = number + 1
            yield number


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize("chunksize", [1, 4])
def test_an_endless_iterable_is_read_buffersize_tasks_ahead(ctx: BaseContext, method: str, chunksize: int) -> None:
    with ctx.Pool(2) as pool:
        numbers = Counted()
        results = getattr(pool, method)(tasks.square, numbers, chunksize, buffersize=5)
        assert numbers.taken == 5 * chunksize
        got = []
        for taken in range(1, 101):
            got.append(next(results))
            assert numbers.taken <= (5 + (taken - 1) // chunksize + 1) * chunksize
        if method == "imap":
            assert got == [n * n for n in range(100)]
        assert len(set(got)) == 100
        pool.close()
        rest = []
        with pytest.raises(ValueError, match="not running"):
            for result in results:
                rest.append(result)
        assert len(rest) <= 6 * chunksize


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_a_pool_that_has_ended_has_the_results_of_each_task_that_it_took(ctx: BaseContext, method: str) -> None:
    with ctx.Pool(2) as pool:
        results = getattr(pool, method)(tasks.square, Counted(), buffersize=5)
        pool.close()
        pool.join()
        rest = []
        with pytest.raises(ValueError, match="not running"):
            for result in results:
                rest.append(result)
    assert sorted(rest) == [n * n for n in range(5)]


def test_an_executors_map_reads_buffersize_tasks_ahead(ctx: BaseContext) -> None:
    with mp.ProcessPoolExecutor(2, ctx) as executor:
        numbers = Counted()
        results = executor.map(tasks.square, numbers, buffersize=3)
        assert numbers.taken == 3
        assert [next(results) for _ in range(50)] == [n * n for n in range(50)]
        assert numbers.taken <= 54
        results.close()


def test_an_iterable_that_blocks_delays_no_other_call(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        answers: list[Any] = []

        def feedback() -> Iterator[int]:
            # Each item needs the result of the previous one.
            yield 2
            for _ in range(4):
                assert until(lambda: answers, tasks.PATIENCE)
                yield answers.pop()

        got = []
        for result in pool.imap(tasks.square, feedback()):
            got.append(result)
            answers.append(result)
            assert pool.apply(tasks.square, (3,)) == 9
        assert got == [4, 16, 256, 65536, 65536**2]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"retries": -1}, "retries must be 0 or more, not -1"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0"),
        ({"max_memory_per_child": 0}, "max_memory_per_child must be more than 0 bytes, not 0"),
        ({"threads_per_worker": 0}, "threads_per_worker must be at least 1, not 0"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options: dict[str, Any], match: str) -> None:
    for make in (mp.Pool, mp.ProcessPoolExecutor):
        with pytest.raises(ValueError, match=match):
            make(1, **options)
    with mp.Pool(1) as pool:
        with pytest.raises(ValueError, match="buffersize must be at least 1, not 0"):
            pool.imap(abs, [1], buffersize=0)
        assert pool._cache == {}


@pytest.mark.parametrize("method", ["map", "starmap", "imap", "imap_unordered"])
@pytest.mark.parametrize("chunksize", [1.5, float("nan"), "2", 0])
def test_a_chunksize_that_is_no_number_of_items_is_refused_and_the_pool_goes_on(method: str, chunksize: Any) -> None:
    refused = pytest.raises((TypeError, ValueError), match=f"chunksize must be .*at least 1, not {chunksize!r}")
    with mp.Pool(1) as pool, mp.ProcessPoolExecutor(1) as executor:
        with refused:
            getattr(pool, method)(max, [(1, 2), (3, 4)], chunksize)
        with refused:
            executor.map(max, [(1, 2), (3, 4)], chunksize=chunksize)
        assert pool._cache == {}
        assert pool.apply(max, (1, 2)) == executor.submit(max, 1, 2).result() == 2
