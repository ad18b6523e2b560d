"""Finalizer queue: work that finalizers must not do themselves, such as closing, freeing and waiting for the device.

A finalizer may run anywhere, inside any lock, in any thread. It therefore only appends a task to a deque and a token to
a `SimpleQueue`, which is reentrant. A daemon thread, `mp-cuda-cleanup`, runs the tasks; it exists while any object
exists that will queue one. `drain()` runs them in the calling thread.

The thread also closes the memory that no array uses any more (`native/mappings.c`), and looks every 50 ms for what
other processes have changed, as long as this one has exports, or memory of others open.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mp_core import set_thread_name
from mp_cuda.driver import at_exit, cuda_driver
from mp_cuda.driver.functions import close_dropped, count_mappings, look_at_exports, set_hooks, synchronize
from mp_cuda.errors import DriverError, MpCudaError

_log = logging.getLogger("mp_cuda")
WATCH_S = 0.05
# After its tasks the thread rests, so that many arrays dropped one after the other do not wake it for each.
REST_S = 0.001
RELAXED = 2


class Task(NamedTuple):
    """Work to do once its object is gone."""

    device: int
    function: Callable[[int, list[Any]], object]
    """Does several tasks of one device: each call of the driver gives the interpreter lock away."""
    argument: Any
    after_work: bool = False
    """Must all earlier work on the device be done first?"""


_tasks: deque[Task] = deque()
_wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
_woken = False
_lock = threading.RLock()
_draining = threading.RLock()
_expected = 0
_thread: threading.Thread | None = None
_watching = False


def expect() -> None:
    """Announce an object that will queue a task, so that the thread runs. Never raises."""
    global _expected
    with _lock:
        _expected += 1
        _start()


def _start() -> None:
    global _thread
    if _thread is None:
        thread = threading.Thread(target=_run, name="mp-cuda-cleanup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads, or the interpreter is ending: the next `drain` does it
            _log.warning("cannot start the thread that closes device memory: %s", error)
        else:
            _thread = thread


def put(task: Task) -> None:
    """Queue *task*. Neither locks, blocks nor calls the driver."""
    _tasks.append(task)
    wake()


class Finalized:
    """The base of objects that leave a task at their end."""

    __slots__ = ("__weakref__", "_task")
    _task: Task

    def _leave(self, *task: Any) -> None:
        self._task = Task(*task)
        expect()

    def __del__(self, put: Callable[[Task], None] = put) -> None:
        task = getattr(self, "_task", None)
        if task is not None:
            put(task)


def wake() -> None:
    """Let the thread do all tasks now. Neither locks, blocks nor calls the driver."""
    global _woken
    if not _woken:
        _woken = True
        _wakeups.put(None)


def wake_watch() -> None:
    """Let the thread look every 50 ms from now on. Never raises."""
    global _watching, _woken
    if _watching:
        return
    with _lock:
        _watching = _woken = True
        _start()
    _wakeups.put(None)


def pending() -> int:
    """Count the tasks that are not done."""
    return len(_tasks)


def drain(*, wait: bool = True, close: bool = False) -> None:
    """
    Run all tasks queued so far, and close memory; without *wait*, only what can be done at once.

    With *close*, also memory that is open only for the next message.
    """
    global _expected
    if not _draining.acquire(blocking=wait):
        return
    todo: deque[Task] = deque()
    left: list[Task] = []
    done = 0
    try:
        while _tasks:
            todo.append(_tasks.popleft())
        # Tasks that need no wait come first: the device may be busy for long.
        todo = deque(sorted(todo, key=lambda task: task.after_work))
        idle: dict[int, bool] = {}
        while todo:
            task = todo[0]
            # One wait for the device covers all tasks queued before it.
            if task.after_work and task.device not in idle:
                idle[task.device] = wait and _wait_for(task.device)
            alike = [todo.popleft()]
            while todo and todo[0].function is task.function and todo[0].device == task.device:
                alike.append(todo.popleft())
            if task.after_work and not idle[task.device]:
                left += alike
                continue
            done += len(alike)
            try:
                task.function(task.device, [each.argument for each in alike])
            except Exception as error:  # the other tasks must still run
                _log.warning("%s: %r", task.function.__name__, error)
        close_dropped(wait, close)
    finally:
        # An interrupted wait loses no task.
        _tasks.extend(left)
        _tasks.extend(todo)
        with _lock:
            _expected -= done
        _draining.release()
    if done or _tasks:
        _wakeups.put(None)


def _wait_for(device: int) -> bool:
    try:
        return synchronize(device)
    except DriverError as error:
        _log.warning("waiting for device %d: %s", device, error)
    return True


def _run() -> None:
    global _thread, _watching, _woken
    set_thread_name("mp-cuda-cleanup")
    _relax()
    looked = 0.0
    while True:
        try:
            _wakeups.get(timeout=WATCH_S if _tasks or _watching else None)
        except queue.Empty:
            pass
        _woken = False  # before it looks: a task that is queued from here on wakes it again
        is_early = time.monotonic() - looked < WATCH_S
        if _tasks or _watching:
            drain()
            time.sleep(REST_S)
        if _watching and not is_early:
            _watching = False  # before it looks, likewise
            looked = time.monotonic()
            if _looked():  # otherwise it may be True again
                _watching = True
        with _lock:
            if _expected == 0 and not _watching:
                _thread = None
                return


def _looked() -> bool:
    """Return whether there is something to look at the next time."""
    try:
        return look_at_exports(False, -math.inf) or count_mappings()[0] > 0
    except Exception as error:  # the thread goes on
        _log.warning("looking at memory of messages: %r", error)
        return True


def _relax() -> None:
    """Keep this thread's calls from invalidating a stream capture in another thread."""
    try:
        mode = cuda_driver.bindings().CUstreamCaptureMode(RELAXED)
        cuda_driver.call("cuThreadExchangeStreamCaptureMode", mode)
    except MpCudaError:
        pass


at_exit.register(at_exit.Step.FINALIZERS)(drain)
set_hooks(tasks=_tasks, wake=wake, wake_watch=wake_watch)


@cuda_driver.after_fork
def _forget() -> None:
    global _lock, _draining, _wakeups, _thread, _expected, _woken, _watching
    _lock, _draining = threading.RLock(), threading.RLock()
    _wakeups = queue.SimpleQueue()
    _thread = None
    _expected = 0
    _woken = _watching = False
    _tasks.clear()
