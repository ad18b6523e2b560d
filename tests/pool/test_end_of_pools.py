"""Pools end in order, early, by Ctrl-C, by the garbage collector and with the program, and leave nothing behind."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support import leaks
from support.processes import ended
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_pool.scheduling import admission, scheduler, workers
from mp_pool.scheduling.scheduler import ENDED, TERMINATED

both = pytest.mark.parametrize("kind", tasks.KINDS)


def test_leaving_a_pool_early_ends_its_workers_and_fails_its_results(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        pids = [process.pid for process in pool._pool]
        results = [pool.apply_async(time.sleep, (3600,)) for _ in range(5)]
        results.append(pool.map_async(time.sleep, [3600] * 100))
        results.append(pool.map_async(time.sleep, [3600] * 100, chunksize=1))
        stream = pool.imap(time.sleep, [3600] * 100)
    assert all(map(ended, pids))
    for result in results:
        with pytest.raises(mp.ProcessError, match="terminated"):
            result.get(tasks.PATIENCE)
    with pytest.raises(mp.ProcessError, match="terminated"):
        stream.next(tasks.PATIENCE)
    with pytest.raises(StopIteration):
        stream.next(tasks.PATIENCE)


def _fed() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mp_pool-feeder"]


def _terminate(pool: Any, stream: Any) -> None:
    pool.terminate()
    pool.join()


def _end_in_the_generator(pool: Any, stream: Any) -> None:
    pool._scheduler.state = TERMINATED  # as `terminate` begins
    pool._scheduler.wake()


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize(
    ("end", "error"),
    [
        (_terminate, mp.ProcessError),
        (_end_in_the_generator, mp.ProcessError),
        (lambda pool, stream: stream.cancel(), CancelledError),
    ],
)
@pytest.mark.parametrize("first", ["the generator", "the end"])
def test_an_imap_that_is_ended_while_its_generator_is_late_does_not_seem_complete(
    ctx: BaseContext, method: str, end: Callable[[Any, Any], None], error: type[Exception], first: str
) -> None:
    more = threading.Event()

    def late() -> Iterator[int]:
        yield 1
        more.wait(tasks.PATIENCE)
        if first == "the generator":
            end(pool, stream)
        yield 2

    with ctx.Pool(1) as pool:
        stream = getattr(pool, method)(abs, late())
        assert stream.next(tasks.PATIENCE) == 1
        if first == "the end":
            end(pool, stream)
        more.set()
        assert until(lambda: not _fed(), tasks.PATIENCE)
        with pytest.raises(error):
            stream.next(tasks.PATIENCE)
        with pytest.raises(StopIteration):
            stream.next(tasks.PATIENCE)


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize("size", [{}, {"chunksize": 3}, {"buffersize": 2}, {"chunksize": 3, "buffersize": 1}], ids=str)
def test_the_exception_of_an_iterable_comes_after_all_results(ctx: BaseContext, method: str, size: Any) -> None:
    def failing() -> Iterator[float]:
        yield from (0.2, 0, 0, 0)
        raise LookupError("no more")

    with ctx.Pool(2) as pool:
        stream, results = getattr(pool, method)(time.sleep, failing(), **size), []
        with pytest.raises(LookupError, match="no more"):
            for result in stream:
                results.append(result)
        assert results == [None] * 4
        assert list(stream) == []


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("number", [0, 3])
def test_each_of_several_threads_that_take_the_results_comes_to_the_end(method: str, fails: bool, number: int) -> None:
    waiting = threading.Event()

    def late() -> Iterator[int]:
        assert waiting.wait(tasks.PATIENCE)
        yield from range(number)
        if fails:
            raise LookupError("no more")

    results, errors = [], []

    def take() -> None:
        while True:
            try:
                results.append(stream.next())
            except StopIteration:
                return
            except LookupError as error:
                errors.append(str(error))

    with mp.get_context("fork").Pool(2) as pool:
        stream = getattr(pool, method)(abs, late())
        threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert until(lambda: len(stream._cond._waiters) == 4, tasks.PATIENCE)
        waiting.set()
        for thread in threads:
            thread.join(tasks.PATIENCE)
            assert not thread.is_alive()
    assert sorted(results) == [*range(number)] and errors == ["no more"] * fails


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
@pytest.mark.parametrize("ahead", [1, 2])
def test_an_exit_of_the_iterable_that_next_reads_loses_no_result(method: str, ahead: int) -> None:
    def leaving() -> Iterator[int]:
        yield from range(4)
        raise SystemExit

    with mp.get_context("fork").Pool(2) as pool:
        stream, results = getattr(pool, method)(abs, leaving(), buffersize=ahead), []
        with pytest.raises(SystemExit):
            for result in stream:
                results.append(result)
        assert sorted([*results, *stream]) == [*range(4)]
        with pytest.raises(SystemExit):
            getattr(pool, method)(abs, leaving(), buffersize=9)
        assert until(lambda: not pool._cache, tasks.PATIENCE)


def _fail() -> None:
    raise LookupError("no licence")


def test_an_imap_whose_pool_cannot_begin_fails_although_its_generator_is_late(ctx: BaseContext) -> None:
    broken = threading.Event()

    def late() -> Iterator[int]:
        broken.wait(tasks.PATIENCE)
        yield 1

    with ctx.Pool(1, initializer=_fail) as pool:
        with pytest.raises(LookupError, match="no licence"):
            pool.apply_async(abs, (1,)).get(tasks.PATIENCE)
        pool._scheduler.thread.join(tasks.PATIENCE)
        stream = pool.imap(abs, late())
        broken.set()
        assert until(lambda: not _fed(), tasks.PATIENCE)
        with pytest.raises(LookupError, match="no licence"):
            stream.next(tasks.PATIENCE)


def test_a_map_that_is_ended_while_its_items_are_late_says_so(ctx: BaseContext) -> None:
    class Late:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[int]:
            yield 1
            _end_in_the_generator(pool, None)
            yield 2

    with ctx.Pool(1) as pool, pytest.raises(mp.ProcessError, match="terminated"):
        pool.map_async(abs, Late(), 1).get(tasks.PATIENCE)


def test_leaving_a_pool_early_frees_arrays(ctx: BaseContext, tmp_path: Path) -> None:
    def in_use() -> int:
        gc.collect()
        stats = mp.memory_stats()
        return stats["live_bytes"] + stats["in_flight_bytes"]

    before = in_use()
    arrays = [np.ones(100_000) for _ in range(20)]
    with ctx.Pool(2) as pool:
        path = str(tmp_path / "never")
        # Both workers are busy before any array is sent: memory that a killed worker has just received stays in use
        # until the session ends.
        begun = [tmp_path / "first", tmp_path / "second"]
        waiting = [pool.apply_async(tasks.touch_and_wait, (str(flag), path)) for flag in begun]
        assert until(lambda: all(flag.exists() for flag in begun), tasks.PATIENCE)
        sent = [pool.apply_async(np.copy, (array,)) for array in arrays]
        assert until(lambda: in_use() > before, tasks.PATIENCE)
    del waiting, sent
    assert until(lambda: in_use() <= before, tasks.PATIENCE), mp.memory_stats()


def test_consumed_results_are_freed(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        largest = 0
        for array in pool.imap(np.ones, [200_000] * 40, buffersize=4):
            largest = max(largest, mp.memory_stats()["live_bytes"])
            assert array[-1] == 1
            del array
        assert largest < 12 * 1_600_000


@both
def test_close_finishes_all_submitted_tasks(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        waits = [pool.submit(tasks.square, n) for n in range(300)]
        pool.close()
        assert [wait() for wait in waits] == [n * n for n in range(300)]
        with pytest.raises((ValueError, RuntimeError)):
            pool.submit(tasks.square, 1)


def test_close_replaces_dead_workers_while_tasks_are_left(ctx: BaseContext) -> None:
    pool = ctx.Pool(1)
    results = [pool.apply_async(tasks.end_on, (n, 3, 6)) for n in range(10)]
    pool.close()
    pool.join()
    lost = [n for n, result in enumerate(results) if not result.successful()]
    assert lost == [3, 6]


def test_a_pool_ends_after_an_empty_iterable(ctx: BaseContext) -> None:
    pool = ctx.Pool(1)
    assert list(pool.imap(tasks.square, [])) == list(pool.imap_unordered(tasks.square, iter(()))) == []
    assert pool.map(tasks.square, []) == []
    pool.close()
    pool.join()


def test_a_terminate_that_meets_the_end_of_a_closed_pool_does_not_undo_it(
    ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ctx.Pool(1)
    scheduler = pool._scheduler

    def is_own() -> bool:  # what `terminate` asks first
        monkeypatch.undo()
        scheduler.thread.join(tasks.PATIENCE)
        return True

    monkeypatch.setattr(scheduler, "is_own", is_own)
    pool.close()
    pool.terminate()
    assert scheduler.state == ENDED  # or a call that came late would wait for ever
    pool.join()


@both
def test_a_dropped_pool_leaves_nothing_behind(kind: str, ctx: BaseContext) -> None:
    pool = tasks.Either(kind, ctx, 2)
    assert pool.submit(tasks.square, 3)() == 9
    pids = pool.pids()
    thread = pool.pool._scheduler.thread
    with pytest.warns(ResourceWarning) if kind == "pool" else threading.Lock():
        del pool
        gc.collect()
    thread.join(tasks.PATIENCE)
    assert all(map(ended, pids))


def test_an_unused_executor_leaves_nothing_behind(ctx: BaseContext) -> None:
    mp.ProcessPoolExecutor(2, ctx)
    with mp.ProcessPoolExecutor(2, ctx):
        pass


@pytest.mark.parametrize("moment", ["before the start", "during the start"])
def test_a_submit_beside_the_end_of_the_program_is_refused_and_waits_for_nothing(
    moment: str, ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Running:
        def add(self, found: scheduler.Scheduler) -> None:
            monkeypatch.setattr(admission, "_exiting", True)

    start = scheduler.Scheduler.start

    def start_and_end(self: scheduler.Scheduler) -> None:
        start(self)
        self.close()
        self.join()

    if moment == "before the start":
        monkeypatch.setattr(admission, "_running", Running())
    else:
        monkeypatch.setattr(scheduler.Scheduler, "start", start_and_end)
    executor = mp.ProcessPoolExecutor(1, ctx)
    with pytest.raises(RuntimeError, match="after interpreter shutdown"):
        executor.submit(abs, -1)
    executor.shutdown()


def test_a_pool_with_a_stopped_worker_ends(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        pool.map(tasks.square, range(10))
        os.kill(pool._pool[0].pid, signal.SIGSTOP)


def test_idle_workers_of_a_pool_that_is_terminated_do_what_they_have_to_do_at_their_end(
    ctx: BaseContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LEAVING", tasks.PATIENCE)
    with ctx.Pool(3, tasks.touch_at_the_end, (str(tmp_path),)) as pool:
        pids = {str(process.pid) for process in pool._pool}
        busy = pool.apply_async(tasks.touch_and_wait, (str(tmp_path / "begun"), str(tmp_path / "never")))
        assert until(lambda: (tmp_path / "begun").exists() and pool._scheduler.is_ready(), tasks.PATIENCE)
    with pytest.raises(mp.ProcessError, match="terminated"):
        busy.get(tasks.PATIENCE)
    left = {path.name for path in tmp_path.iterdir()} - {"begun"}
    assert left < pids and len(left) == 2


def test_a_handler_of_sigterm_in_an_idle_worker_is_called_after_its_finalizers(
    ctx: BaseContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LEAVING", tasks.PATIENCE)
    path = tmp_path / "calls"
    with ctx.Pool(1, tasks.note_ends, (str(path),)) as pool:
        assert until(pool._scheduler.is_ready, tasks.PATIENCE)
    assert path.read_text() == "finalizer, handler, "


def test_an_idle_worker_that_never_leaves_is_sent_sigterm(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2, tasks.wait_at_the_end, (str(tmp_path / "never"),)) as pool:
        processes = list(pool._pool)
        assert until(pool._scheduler.is_ready, tasks.PATIENCE)
    assert [process.exitcode for process in processes] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize("handler", ["ends", "returns"])
def test_a_worker_that_saves_its_work_on_sigterm_has_more_time(
    ctx: BaseContext, handler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, begun, saved = (str(tmp_path / name) for name in ("asked", "begun", "saved"))
    is_spared = workers._handles_sigterm

    def _ask(worker: Any) -> bool:
        tasks.touch(asked)
        return is_spared(worker)

    monkeypatch.setattr(workers, "GRACE", 0.0)
    monkeypatch.setattr(workers, "SAVING", tasks.PATIENCE)
    monkeypatch.setattr(workers, "_handles_sigterm", _ask)
    with ctx.Pool(1, tasks.save_on_sigterm, (asked, saved, handler == "ends")) as pool:
        (process,) = pool._pool
        pool.apply_async(tasks.touch_and_wait, (begun, saved))
        assert until(lambda: os.path.exists(begun), tasks.PATIENCE)
    assert os.path.exists(saved)
    assert process.exitcode == 0


@pytest.mark.parametrize("ignores", ["ignores SIGTERM", "has a handler that never ends"])
def test_a_worker_that_does_not_end_on_sigterm_is_killed(
    ctx: BaseContext, ignores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "GRACE", 0.1)
    monkeypatch.setattr(workers, "SAVING", 0.2)
    never, begun = str(tmp_path / "never"), str(tmp_path / "begun")
    if ignores == "ignores SIGTERM":
        initializer, args = tasks.ignore_sigterm, ()
    else:
        initializer, args = tasks.save_on_sigterm, (never, never, True)
    with ctx.Pool(1, initializer, args) as pool:
        (process,) = pool._pool
        pool.apply_async(tasks.touch_and_wait, (begun, never))
        assert until(lambda: os.path.exists(begun), tasks.PATIENCE)
    assert process.exitcode == -signal.SIGKILL


@both
def test_cancelled_and_terminated_tasks_fail(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    if kind == "pool":
        pool = ctx.Pool(1)
        result = pool.apply_async(time.sleep, (3600,))
        thread = threading.Thread(target=tasks.outcome, args=(result.get,))
        thread.start()
        pool.terminate()
        pool.join()
        thread.join(tasks.PATIENCE)
        assert not thread.is_alive()
        return
    for how in ("terminate_workers", "kill_workers"):
        executor = mp.ProcessPoolExecutor(1, ctx)
        path = str(tmp_path / how)
        running = executor.submit(tasks.touch_and_wait, path, path + "never")
        waiting = [executor.submit(tasks.square, n) for n in range(20)]
        assert until(lambda path=path: os.path.exists(path), tasks.PATIENCE)
        getattr(executor, how)()
        assert type(running.exception(tasks.PATIENCE)).__name__ == "BrokenProcessPool"
        executor.shutdown()
        assert all(future.done() for future in waiting)
        assert sum(future.cancelled() for future in waiting) >= 10
        with pytest.raises(RuntimeError):
            executor.submit(tasks.square, 1)


def test_shutdown_cancels_tasks_that_have_not_begun(ctx: BaseContext, tmp_path: Path) -> None:
    executor = mp.ProcessPoolExecutor(1, ctx)
    begun, end = str(tmp_path / "begun"), str(tmp_path / "end")
    running = executor.submit(tasks.touch_and_wait, begun, end)
    waiting = [executor.submit(tasks.square, n) for n in range(50)]
    assert until(lambda: os.path.exists(begun), tasks.PATIENCE)
    executor.shutdown(wait=False, cancel_futures=True)
    tasks.touch(end)
    executor.shutdown()
    assert running.result(0) == end
    assert all(future.done() for future in waiting)
    assert sum(future.cancelled() for future in waiting) >= 30


PROGRAM = """
import os, signal, sys, time
import mp_all as mp

def sleep(seconds):
    time.sleep(seconds)

def begin(path):
    open(path + "begun" + str(os.getpid()), "w").close()
    time.sleep(3600)

def note_sigterm(path):
    signal.signal(signal.SIGTERM, lambda number, frame: open(path + "term" + str(os.getpid()), "w").close())

if __name__ == "__main__":
    kind, method, path = sys.argv[1:4]
    ctx = mp.get_context(method)
    if kind == "pool":
        with ctx.Pool(2) as pool:
            pool.map(begin, [path] * 2)
    if kind == "executor":
        with mp.ProcessPoolExecutor(2, ctx) as executor:
            list(executor.map(begin, [path] * 20))
    if kind == "executor at the end of its block":
        try:
            with mp.ProcessPoolExecutor(2, ctx) as executor:
                for _ in range(20):
                    executor.submit(begin, path)
        except KeyboardInterrupt:
            assert not mp.active_children()
            raise
    if kind == "executor without with":
        executor = mp.ProcessPoolExecutor(2, ctx)
        list(executor.map(begin, [path] * 20))
    if kind == "workers that ignore SIGTERM":
        from mp_pool.scheduling import workers as _workers
        _workers.GRACE = 3600
        with ctx.Pool(2, note_sigterm, (path,)) as pool:
            pool.map(begin, [path] * 2)
    if kind == "unclosed":
        pool = ctx.Pool(2)
        pool.apply(sleep, (0,))
        print("end of the program")
    if kind == "unclosed executor":
        executor = mp.ProcessPoolExecutor(2, ctx)
        executor.submit(print, "printed by a worker", flush=True)
"""


def program(folder: Path) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    return path


class Running:
    """A program whose two workers are busy."""

    def __init__(self, kind: str, start_method: str, folder: Path) -> None:
        self.process = start_in_terminal(kind, start_method, folder)
        try:
            assert until(lambda: len(list(folder.glob("flagbegun*"))) == 2, tasks.PATIENCE)
            self.pids = [int(path.name.removeprefix("flagbegun")) for path in folder.glob("flagbegun*")]
        except BaseException:
            self.close()
            raise

    def interrupt(self, to_all: bool = True) -> None:
        """Send SIGINT to all processes, as a terminal does, or to one, as `kill -INT` does."""
        (os.killpg if to_all else os.kill)(self.process.pid, signal.SIGINT)

    def end(self) -> str:
        """Return what the program has written to its standard error, once it has ended."""
        try:
            return self.process.communicate(timeout=tasks.PATIENCE)[1]
        finally:
            self.close()

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def start_in_terminal(kind: str, start_method: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program(folder)), kind, start_method, str(folder / "flag")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"MPSHM_RUNTIME_DIR": str(folder)},
        # A shell without job control starts background programs with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


KINDS = ["pool", "executor", "executor at the end of its block", "executor without with"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to_all", [True, False])
def test_one_ctrl_c_ends_a_program_with_one_traceback(
    start_method: str, tmp_path: Path, to_all: bool, kind: str
) -> None:
    program = Running(kind, start_method, tmp_path)
    program.interrupt(to_all)
    err = program.end()
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt"), err
    assert until(lambda: all(map(ended, program.pids)), tasks.PATIENCE)


def test_a_second_ctrl_c_ends_workers_that_ignore_sigterm_at_once(start_method: str, tmp_path: Path) -> None:
    program = Running("workers that ignore SIGTERM", start_method, tmp_path)
    # Not to the workers: while a SIGINT is pending for their main thread, a SIGTERM goes to another thread.
    program.interrupt(to_all=False)
    noted = [tmp_path / f"flagterm{pid}" for pid in program.pids]
    assert until(lambda: all(flag.exists() for flag in noted), tasks.PATIENCE)
    # Now the program waits for the workers, for an hour.
    assert not any(map(ended, program.pids))
    program.interrupt()
    err = program.end()
    assert err.rstrip().endswith("KeyboardInterrupt") and "PoolWorker" not in err, err
    assert until(lambda: all(map(ended, program.pids)), tasks.PATIENCE)


def test_a_program_that_does_not_close_its_pool_ends(start_method: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM, "unclosed", start_method, "-")
    assert done.returncode == 0 and done.stdout == "end of the program\n", done.stderr


def test_a_program_that_does_not_shut_its_executor_down_finishes_the_submitted_tasks(
    start_method: str, tmp_path: Path
) -> None:
    assert succeeded(run_script(tmp_path, PROGRAM, "unclosed executor", start_method, "-")) == "printed by a worker\n"


def test_workers_end_when_their_parent_is_killed(start_method: str, tmp_path: Path) -> None:
    text = """
    import os, signal, sys
    import mp_all as mp

    if __name__ == "__main__":
        first, second = (mp.get_context(sys.argv[1]).Pool(2) for _ in range(2))
        first.map(abs, range(10)), second.map(abs, range(10))
        print(*[process.pid for pool in (first, second) for process in pool._pool], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    # The session folder of a killed program stays until the next session of this user starts.
    done = run_script(tmp_path, text, start_method, MPSHM_RUNTIME_DIR=str(tmp_path))
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 4
    assert until(lambda: all(map(ended, pids)), tasks.PATIENCE)


def test_a_forked_child_gets_an_error_from_its_parents_pool() -> None:
    with mp.Pool(1) as pool:
        code = os.fork()
        if code == 0:
            try:
                pool.apply_async(abs, (1,))
            except ValueError as error:
                os._exit(7 if "forked child" in str(error) else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(code, 0)[1]) == 7
        assert pool.apply(abs, (-1,)) == 1


def test_a_pool_for_which_neither_a_process_nor_a_thread_can_be_started_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    def no_process(*arguments: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    with mp.get_context("fork").Pool(1) as pool:  # the first opens descriptors that stay
        pool.apply(abs, (1,))
    monkeypatch.setattr("mp_pool.scheduling.dispatcher.start_new_thread", refused)
    monkeypatch.setattr("mp_pool.scheduling.scheduler.start_new_thread", refused)
    # Not os.fork: its caller in the standard library leaves two pipes.
    monkeypatch.setattr("multiprocessing.popen_fork.Popen._launch", no_process)
    before = leaks.descriptors()
    with pytest.raises(BlockingIOError, match="no more processes"):
        mp.get_context("fork").Pool(1)
    assert leaks.descriptors() == before


def test_the_end_of_an_idle_pool_is_waited_for_without_sleeps(
    ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    with ctx.Pool(2) as pool:
        pool.apply(abs, (-1,))
        sleep = time.sleep
        monkeypatch.setattr(
            "mp_pool.scheduling.scheduler.time.sleep", lambda seconds: slept.append(seconds) or sleep(seconds)
        )
        pool.close()
        pool.join()
    assert slept == []
