"""`Condition` and `Gate`: a wait, and what it waits for, that a raising signal handler leaves in order at any moment.

`with` of a `threading.Condition`, and so of a `threading.Event`, is Python code: a handler that raises in it leaves the
lock held, and every thread that wants it, as that of a pool, waits for ever. Here a lock of C is waited for.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock, get_ident
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

    # Threads that wait, and their locks; no `__init__`: each future has one, and most are never waited for.
    _waiters: tuple[tuple[int, Any], ...] = ()

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait for `notify` up to *timeout* seconds, take it again; return whether it has come."""
        waiter, me = allocate_lock(), get_ident()
        waiter.acquire()
        # Without what an earlier wait of this thread has left, if a handler raised at its end.
        self._waiters = (*(each for each in self._waiters if each[0] != me), (me, waiter))
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
        me = get_ident()
        for _, waiter in [each for each in self._waiters if each[0] != me][:n]:
            with suppress(RuntimeError):  # a handler has raised after the release
                waiter.release()
            self._drop(waiter)

    def notify_all(self) -> None:
        """Wake all that wait."""
        self.notify(len(self._waiters))

    def _drop(self, waiter: Any) -> None:
        self._waiters = tuple(each for each in self._waiters if each[1] is not waiter)


class Gate:
    """
    As `threading.Event`, without `clear`. A `set` in which a handler has raised may be repeated, and then works.

    >>> gate = Gate()
    >>> gate.set()
    >>> gate.wait()
    True
    """

    # No `__init__`: each result of a pool has one, and many are never waited for.
    _is_set = False
    _waiters: list[Any]

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set it, for ever."""
        self._is_set = True
        for waiter in list(vars(self).get("_waiters", ())):
            try:
                waiter.release()
            except RuntimeError:
                pass  # another thread sets it as well

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return False if it is not after *timeout* seconds."""
        if not self._is_set:
            waiter = allocate_lock()
            waiter.acquire()
            waiters: list[Any] = vars(self).setdefault("_waiters", [])
            waiters.append(waiter)
            try:
                # `set` releases the waiters after it has set it: none that looks before that is forgotten.
                if not self._is_set:
                    waiter.acquire(True, -1 if timeout is None else max(0.0, timeout))
            finally:
                waiters.remove(waiter)
        return self._is_set
