"""The substitutes, without the engine, for the functions by which a pool sends tasks in batches."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
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
