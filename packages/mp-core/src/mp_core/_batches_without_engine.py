"""The substitutes, without the engine, for the functions by which a pool sends tasks in batches."""

from __future__ import annotations

import errno
import threading
from typing import Any

__all__ = ["Journal", "TryLock", "is_of_atoms", "is_small"]


def is_of_atoms(thing: Any) -> bool:
    """Tell whether *thing* is a number, a text, bytes or None, or a tuple or list of such, up to three deep."""
    return _is_of_atoms(thing, 3)


def is_small(thing: Any) -> bool:
    """Return False: only batches of tasks ask, and without an engine there are none."""
    return False


def _is_of_atoms(thing: Any, depth: int) -> bool:
    if type(thing) in _ATOMS:
        return True
    return depth > 0 and type(thing) in (tuple, list) and all(_is_of_atoms(each, depth - 1) for each in thing)


_ATOMS = frozenset({int, float, str, bytes, bool, complex, type(None)})


class Journal:
    """The substitute for a worker's journal; none can be made, and a pool sends its tasks one by one."""

    def __init__(self, memory: object) -> None:
        raise OSError(errno.ENOSYS, "no journal without shared memory")


class TryLock:
    """The substitute for the lock of the same name; here, a signal handler that raises may leave it locked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = self._nested = 0

    def acquire(self) -> bool:
        """Acquire it unless another block has it."""
        me = threading.get_ident()
        if self._owner == me:
            self._nested += 1
        elif self._lock.acquire(False):
            self._owner = me
            return True
        return False

    def wait(self) -> None:
        """Acquire it; wait until no other thread has it."""
        if not self.acquire() and not self.is_mine():
            self._lock.acquire()
            self._owner = threading.get_ident()

    def release(self) -> None:
        """Release it if this block has acquired it."""
        if self._owner != threading.get_ident():
            return
        if self._nested > 0:
            self._nested -= 1
            return
        self._owner = 0
        self._lock.release()

    def is_mine(self) -> bool:
        """Tell whether this thread has it."""
        return self._owner == threading.get_ident()
