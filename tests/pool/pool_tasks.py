"""Functions that workers run, and pools and executors behind one interface."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import reduction, util
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import mp_all as mp

# In seconds: a test that takes longer hangs. The machine may be slow.
PATIENCE = 600.0 if os.environ.get("MP_SOAK") == "1" else 60.0
KINDS = ("pool", "executor")


class Either:
    """A pool or an executor, whose `submit` returns a function that waits for the outcome."""

    def __init__(self, kind: str, ctx: BaseContext, size: int, **options: Any) -> None:
        self.pool: Any
        if kind == "pool":
            self.pool = ctx.Pool(size, **options)
        else:
            self.pool = mp.ProcessPoolExecutor(size, ctx, **options)

    def submit(self, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        if isinstance(self.pool, mp.Pool):
            result = self.pool.apply_async(function, args)
            return lambda: result.get(PATIENCE)
        future = self.pool.submit(function, *args)
        return lambda: future.result(PATIENCE)

    def pids(self) -> set[int]:
        """Return the pids of the live workers."""
        pool = self.pool
        found = pool._pool if isinstance(pool, mp.Pool) else (pool._processes or {}).values()
        return {process.pid for process in found}

    def close(self) -> None:
        if isinstance(self.pool, mp.Pool):
            self.pool.close()
            self.pool.join()
        else:
            self.pool.shutdown()


@contextmanager
def either(kind: str, ctx: BaseContext, size: int = 2, **options: Any) -> Iterator[Either]:
    made = Either(kind, ctx, size, **options)
    try:
        yield made
        made.close()
    finally:
        if isinstance(made.pool, mp.Pool):
            made.pool.terminate()
        else:
            made.pool.kill_workers()
            made.pool.shutdown()


def viewed(either: Either, **options: Any) -> Either:
    """Return the same workers with other options for the tasks."""
    view = object.__new__(Either)
    view.pool = either.pool.options(**options)
    return view


class Bound:
    """A function of one argument, with others that follow it."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __call__(self, item: Any) -> Any:
        return self.function(item, *self.args)


def outcome(wait: Callable[[], Any]) -> Any:
    """Return the result or the exception."""
    try:
        return wait()
    except Exception as error:
        return error


def got_and_lost(results: Iterator[Any]) -> tuple[list[Any], list[mp.WorkerLostError]]:
    """Return the results of an `imap`, and the errors of its tasks whose worker died."""
    got, lost = [], []
    while True:
        try:
            got.append(next(results))
        except StopIteration:
            return got, lost
        except mp.WorkerLostError as error:
            lost.append(error)


def square(number: int) -> int:
    return number * number


def own_pid(*_: object) -> int:
    return os.getpid()


counts: mmap.mmap


def count_in(path: str) -> None:
    """An initializer: `count` counts in that file, which has a byte for each task."""
    global counts
    with open(path, "r+b") as file:
        counts = mmap.mmap(file.fileno(), 0)


def count(number: int) -> int:
    """Count a run of the task."""
    counts[number] += 1
    return number


def end(how: str) -> None:
    """End this process by `sys.exit`, `os._exit`, a crash or a signal."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    if how == "exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit(4)
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.Signals[how])
    signal.pause()


class WithDescriptor:
    """Takes a descriptor along, by a reducer of the program."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        return WithDescriptor.received, (reduction.DupFd(self.fd),)

    @staticmethod
    def received(duplicate: Any) -> WithDescriptor:
        return WithDescriptor(duplicate.detach())


class Deadly:
    """Ends the worker that unpickles it; in this process, the file *seen* is made."""

    def __init__(self, how: str, seen: Path) -> None:
        self.how, self.seen = how, seen

    def __reduce__(self) -> tuple[Any, ...]:
        return _end_worker, (self.how, os.getpid(), str(self.seen))


def _end_worker(how: str, parent: int, seen: str) -> None:
    if os.getpid() == parent:
        Path(seen).touch()
    else:
        end(how)


def end_on(number: int, *bad: int) -> int:
    if number in bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def end_on_seven(number: int) -> int:
    return end_on(number, 7)


def first_time(flag: str) -> bool:
    """Return True at the first call with this path, by any process."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def end_once(flag: str, how: str = "SIGKILL") -> str:
    """End the first process that calls this."""
    if first_time(flag):
        end(how)
    return "done"


def wait_for(path: str) -> str:
    """Return once the file exists."""
    deadline = time.monotonic() + PATIENCE
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return path


def wait_unless_first(folder: str, path: str) -> None:
    """Return at once in the first process that calls this; in the others once the file exists."""
    if not first_time(f"{folder}/first"):
        wait_for(path)


def touch(path: str) -> str:
    Path(path).touch()
    return path


def touch_and_wait(path: str, other: str) -> str:
    Path(path).touch()
    return wait_for(other)


def touch_at_the_end(folder: str) -> None:
    util.Finalize(None, touch, args=(f"{folder}/{os.getpid()}",), exitpriority=0)


def note_ends(path: str) -> None:
    util.Finalize(None, _note, args=(path, "finalizer"), exitpriority=0)
    signal.signal(signal.SIGTERM, lambda *_: _note(path, "handler"))


def _note(path: str, what: str) -> None:
    with open(path, "a") as file:
        file.write(f"{what}, ")


def wait_at_the_end(path: str) -> None:
    util.Finalize(None, wait_for, args=(path,), exitpriority=0)


def save_on_sigterm(path: str, saved: str, ends: bool) -> None:
    """Have a handler that waits for *path*, makes *saved*, and ends the worker or goes on."""

    def _save(*_: object) -> None:
        wait_for(path)
        touch(saved)
        if ends:
            sys.exit(0)

    signal.signal(signal.SIGTERM, _save)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_while_sending(flag: str, size: int) -> bytes:
    """End the first process that calls this, after it has sent a part of its result."""
    from mp_pool.workers import worker_main

    def send_a_part(line: Any, number: int, kind: int, data: Any) -> None:
        line.send_part(number, worker_main.PART, bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    if first_time(flag):
        worker_main._send = send_a_part
    return bytes(size)


def fill(size: int) -> bytes:
    return b"x" * size


def length(data: bytes) -> int:
    return len(data)


def hold_memory(size: int) -> int:
    globals()["held"] = bytearray(b"x" * size)
    return os.getpid()


def fail(kind: type[Exception], *args: Any) -> None:
    raise kind(*args)


def first_of(values: Any) -> Any:
    return values[0]


def refilled(values: Any, count: int) -> Iterator[Any]:
    """Yield *values* again and again, with another first element each time."""
    for i in range(count):
        values[0] = i
        yield values
