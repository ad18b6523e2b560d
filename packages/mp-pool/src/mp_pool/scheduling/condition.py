"""A condition whose lock stays with nobody when a signal handler raises, be it at any moment.

`with` of a `threading.Condition` is Python code: a handler that raises in it leaves the lock held, and every thread
that wants it, as that of a pool, waits for ever. Here the lock itself is the object, and `with` is C.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock
from contextlib import suppress
from typing import Any


class Condition(RLock):  # type: ignore[misc]  # final for type checkers, and not for Python
    """
    As `threading.Condition`, with a lock of its own.

    >>> condition = Condition()
    >>> with condition:
    ...     condition.wait(0.001)
    False
    """

    _waiters: tuple[Any, ...] = ()  # no `__init__`: each future has one, and most are never waited for

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait for `notify` up to *timeout* seconds, take it again; return whether it has come."""
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters = (*self._waiters, waiter)
        state = None
        try:
            state = self._release_save()  # type: ignore[attr-defined]
            return waiter.acquire(True, -1 if timeout is None else max(0.0, timeout))
        finally:
            if state is not None:
                self._acquire_restore(state)  # type: ignore[attr-defined]
            elif not self._is_owned():  # type: ignore[attr-defined]  # the handler raised just after the release
                self.acquire()
            self._drop(waiter)

    def notify(self, n: int = 1) -> None:
        """Wake so many of those that wait."""
        for waiter in self._waiters[:n]:
            with suppress(RuntimeError):  # a handler has raised after the release
                waiter.release()
            self._drop(waiter)

    def notify_all(self) -> None:
        """Wake all that wait."""
        self.notify(len(self._waiters))

    def _drop(self, waiter: Any) -> None:
        self._waiters = tuple(each for each in self._waiters if each is not waiter)
