"""What finalizers must not do themselves is left here: closing, freeing, waiting for the device.

A finalizer may run anywhere, inside any lock, in any thread. So it only appends to a deque and puts a token into a
`SimpleQueue`, which is made for that. A daemon thread, `mp-cuda-janitor`, does the work; it exists while there is
anything that will have to be done. `drain()` does the same work in the calling thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import Protocol

from mp_core import set_thread_name
from mp_cuda import driver
from mp_cuda.errors import DriverError, MpCudaError

__all__ = ["Chore", "drain", "drop", "expect", "pending"]

_log = logging.getLogger("mp_cuda")
RETRY_S = 0.05
RELAXED = 2


class Chore(Protocol):
    """Something to be done once its object is gone."""

    device: int
    after_work: bool
    """Only when all work that was given to the device before is done?"""

    def finish(self) -> None: ...


_bin: deque[Chore] = deque()
_tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
_lock = threading.RLock()
_working = threading.RLock()
_expected = 0
_thread: threading.Thread | None = None


def expect() -> None:
    """Something was made that will be dropped one day: be there. Never raises."""
    global _expected, _thread
    with _lock:
        _expected += 1
        if _thread is None:
            thread = threading.Thread(target=_run, name="mp-cuda-janitor", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # too many threads, or the interpreter is ending: the next `drain` does it
                _log.warning("no thread for what will be dropped: %s", error)
            else:
                _thread = thread


def drop(chore: Chore) -> None:
    """Leave *chore* to the janitor. Neither locks, blocks nor calls the driver."""
    _bin.append(chore)
    _tokens.put(None)


def pending() -> int:
    """How many chores have been dropped and not done."""
    return len(_bin)


def drain(*, wait: bool = True) -> None:
    """Do everything that has been dropped so far; without *wait*, only what can be done at once."""
    global _expected
    if not _working.acquire(blocking=wait):
        return
    todo: deque[Chore] = deque()
    left: list[Chore] = []
    done = 0
    try:
        while _bin:
            todo.append(_bin.popleft())
        # What needs no wait comes first, whatever the device is doing.
        todo = deque(sorted(todo, key=lambda chore: chore.after_work))
        idle: dict[int, bool] = {}
        while todo:
            chore = todo[0]
            # One wait for the device covers all that was dropped before it.
            if chore.after_work and chore.device not in idle:
                idle[chore.device] = wait and _wait_for(chore.device)
            todo.popleft()
            if chore.after_work and not idle[chore.device]:
                left.append(chore)
                continue
            done += 1
            try:
                chore.finish()
            except Exception as error:  # whatever it was, the others have to be done
                _log.warning("%s: %r", type(chore).__name__, error)
    finally:
        # An interrupted wait loses nothing.
        _bin.extend(left)
        _bin.extend(todo)
        with _lock:
            _expected -= done
        _working.release()
    _tokens.put(None)


def _wait_for(device: int) -> bool:
    try:
        driver.synchronize(device)
    except DriverError as error:
        if 900 <= error.code < 920:  # a stream is being captured into a graph; its work has not begun
            return False
        _log.warning("waiting for device %d: %s", device, error)
    return True


def _run() -> None:
    global _thread
    set_thread_name("mp-cuda-janitor")
    _relax()
    while True:
        try:
            _tokens.get(timeout=RETRY_S if _bin else None)
        except queue.Empty:
            pass
        if _bin:
            drain()
        with _lock:
            if _expected == 0:
                _thread = None
                return


def _relax() -> None:
    """A capture in another thread must not be spoilt by what this one does."""
    try:
        mode = driver.bindings().CUstreamCaptureMode(RELAXED)
        driver.call("cuThreadExchangeStreamCaptureMode", mode)
    except MpCudaError:
        pass


@driver.after_fork
def _forget() -> None:
    global _lock, _working, _tokens, _thread, _expected
    _lock, _working = threading.RLock(), threading.RLock()
    _tokens = queue.SimpleQueue()
    _thread = None
    _expected = 0
    _bin.clear()
