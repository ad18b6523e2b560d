"""The substitutes, without libshm, for the functions of a pool's tasks."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = [
    "LONGEST",
    "TaskRing",
    "TryLock",
    "is_of_atoms",
    "is_small",
    "make_task_ring",
    "open_block",
    "open_task_ring",
    "timeline_blocks",
    "timeline_close",
    "timeline_name",
    "timeline_now",
    "timeline_open",
    "timeline_write",
    "wait_any",
]


def is_of_atoms(thing: Any) -> bool:
    """Tell whether *thing* is a number, a text, bytes or None, or a tuple or list of such, up to three deep."""
    return _is_of_atoms(thing, 3)


def is_small(thing: Any) -> bool:
    """Return False: only batches of tasks ask, and without libshm there are none."""
    return False


def _is_of_atoms(thing: Any, depth: int) -> bool:
    if type(thing) in _ATOMS:
        return True
    return depth > 0 and type(thing) in (tuple, list) and all(_is_of_atoms(each, depth - 1) for each in thing)


_ATOMS = frozenset({int, float, str, bytes, bool, complex, type(None)})


class TaskRing:
    """The substitute for the ring of tasks between a pool and a worker; none can be made, and a pool sends packets."""


#: The most bytes of data in a message of a task ring.
LONGEST = 60 * 1024


def make_task_ring() -> int:
    """Return the error number of a system without libshm."""
    return -errno.ENOSYS


def timeline_now() -> int:
    """Return 0: no timeline is recorded here."""
    return 0


def timeline_write(*arguments: Any) -> NoReturn:
    """Refuse: `timeline` does not begin here."""
    raise OSError(errno.ENOSYS, "no timeline without libshm")


timeline_open = timeline_close = timeline_name = timeline_blocks = timeline_write


def wait_any(rings: list[TaskRing], fds: list[int], milliseconds: float) -> tuple[list[TaskRing], list[int]]:
    """Wait until one of *fds* is readable; there are no rings. A negative time is for ever."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [], [fd for fd, _ in poll.poll(None if milliseconds < 0 else milliseconds)]


def open_task_ring(fd: int, memory: int) -> NoReturn:
    """Refuse the descriptors of a task ring: no process can have made one."""
    raise OSError(errno.ENOSYS, "no task ring without libshm")


open_block = open_task_ring


class TryLock:
    """The substitute for the lock of the same name; here, a signal handler that raises may leave it locked."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.wait = self._lock.acquire
        self.is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def acquire(self) -> bool:
        """Acquire it unless another block has it."""
        nested = self.is_mine()
        return bool(self._lock.acquire(False)) and not nested

    def release(self) -> None:
        """Release it if this block has acquired it."""
        if self.is_mine():
            self._lock.release()
