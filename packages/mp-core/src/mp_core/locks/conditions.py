"""Conditions, events and barriers that dead processes cannot stop.

They have the interface of `multiprocessing.synchronize` and are instances of its classes. Each waiter has an entry of
its own in shared memory (`libshm/src/sync/wait_list.c`), so a dead one is passed over.

The calls of cffi run without the GIL. A call returns -EINTR when a signal interrupts it, and after each of its sleeps,
since a signal between two sleeps interrupts none; Python runs the handler before the next line, and the call is
repeated for the time that is left.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import synchronize, util

from mp_core.locks import sync
from mp_core.locks.robust_locks import RLock
from mp_core.locks.sync import SharedBlock
from mp_core.sharing.backend import check, condition_notify, ffi, lib, recorders, timeline_now
from mp_core.system import exit_status
from mp_core.system.fan_out import declare_one_receiver
from mp_core.system.semaphore_views import Awaited, Count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _wait(at: str, call: Callable[[int], int], timeout: float | None) -> int:
    """Return the result of *call*, which takes nanoseconds, once no signal interrupts it; *at* is what it waits at."""
    began = recorders and timeline_now()
    timeout = None if timeout is None else math.fsum((timeout,))  # it may be a Decimal
    end = None if timeout is None else time.monotonic() + timeout
    while (rc := call(sync.nanoseconds(timeout))) == -errno.EINTR:
        if end is not None:
            timeout = end - time.monotonic()
    if began:
        for recorder in recorders:
            recorder.waited(began, at)
    return rc


class Condition(synchronize.Condition):
    """
    A condition variable whose dead waiters get no notification.

    It has the interface of ``multiprocessing.Condition``. `notify` wakes those that have waited longest; if one of them
    dies before it runs, the next is woken within 100 ms. No more than 1024 threads can wait at one time.

    Parameters
    ----------
    lock : Lock or RLock, optional
        The lock that belongs to it; a new `RLock` if it is left out.
    ctx : multiprocessing context, optional
        Makes the standard condition if this process cannot share memory.

    Examples
    --------
    >>> condition = mp.Condition()
    >>> with condition:
    ...     condition.wait(timeout=0.01)
    False
    """

    _lock: Any
    _shared: SharedBlock

    def __new__(cls, lock: Any = None, *, ctx: Any = None) -> Any:
        block = sync.create(lib.MPSHM_CONDITION)
        if block is sync.NOT_SHARED:
            return sync.standard(synchronize.Condition, lock, ctx=ctx)
        return cls._over(SharedBlock(block), lock or RLock(ctx=ctx))

    @classmethod
    def _over(cls, shared: SharedBlock, lock: Any) -> Any:
        self: Any = object.__new__(cls)
        self._shared, self._lock = shared, lock
        self._make_methods()
        return self

    def __init__(self, lock: Any = None, *, ctx: Any = None) -> None:
        pass

    @property
    def _sleeping_count(self) -> Any:
        return Count(partial(lib.mpshm_condition_waiters, self._shared.pointer))

    @property
    def _woken_count(self) -> Any:
        return Count(int)

    _wait_semaphore = _woken_count

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_condition, (type(self), sync.handle_of(self, self._shared.block), self._lock)

    def wait(self, timeout: float | None = None) -> bool:
        """
        Release the lock, wait for a notification, and acquire the lock again.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait.

        Returns
        -------
        bool
            False if the timeout has passed.

        Raises
        ------
        OSError
            1024 threads wait already.
        """
        assert self._lock._semlock._is_mine(), "must acquire() condition before using wait()"
        pointer = self._shared.pointer
        place = check(lib.mpshm_condition_enter(pointer, 0), "a place to wait at this condition")
        count = self._lock._semlock._count()
        take_back = getattr(self._lock._semlock, "_take_back", None) or self._take_back_standard
        waits = True
        try:
            for _ in range(count):
                self._lock.release()
            rc = _wait("condition", lambda ns: lib.mpshm_condition_wait(pointer, place, ns), timeout)
            waits = False
            return rc == 0
        finally:
            try:
                if waits:  # a signal handler has raised, and a second one may
                    lib.mpshm_condition_leave(pointer, place)
            finally:
                take_back(count)  # in one call, which no handler can prevent: the caller releases the lock

    def _take_back_standard(self, count: int) -> None:
        lock = self._lock._semlock
        while not lock._is_mine() or lock._count() < count:
            self._lock.acquire()

    def notify(self, n: int = 1) -> None:
        """
        Wake up to *n* waiters, those that have waited longest.

        Parameters
        ----------
        n : int, default 1
            How many.
        """
        mine = condition_notify(self._shared.block, self._lock._semlock, n)
        assert mine is not False, "lock is not owned"
        if mine is None:  # a lock of the standard library
            assert self._lock._semlock._is_mine(), "lock is not owned"
            if n > 0:
                lib.mpshm_condition_notify(self._shared.pointer, min(n, 2**32 - 1), 0)


def _rebuild_condition(cls: Any, handle: bytes, lock: Any) -> Any:
    return cls._over(SharedBlock.received(handle, lib.MPSHM_CONDITION), lock)


class Event(synchronize.Event):
    """
    A flag that processes wait for.

    It has the interface of ``multiprocessing.Event``. `wait` is also true if the event was set and cleared again while
    it waited. No process owns an event, so no death changes one.

    Parameters
    ----------
    ctx : multiprocessing context, optional
        Makes the standard event if this process cannot share memory.

    Examples
    --------
    >>> event = mp.Event()
    >>> event.set()
    >>> event.wait(), event.is_set()
    (True, True)
    """

    _shared: SharedBlock

    def __new__(cls, *, ctx: Any = None) -> Any:
        block = sync.create(lib.MPSHM_EVENT)
        if block is sync.NOT_SHARED:
            return sync.standard(synchronize.Event, ctx=ctx)
        return cls._over(SharedBlock(block))

    @classmethod
    def _over(cls, shared: SharedBlock) -> Any:
        self = object.__new__(cls)
        self._shared = shared
        return self

    def __init__(self, *, ctx: Any = None) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_event, (type(self), sync.handle_of(self, self._shared.block))

    @property
    def _flag(self) -> Any:
        return Count(partial(lib.mpshm_event_is_set, self._shared.pointer))

    @property
    def _cond(self) -> Any:
        return Awaited(self.wait)

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return bool(lib.mpshm_event_is_set(self._shared.pointer))

    def set(self) -> None:
        """Set the event and wake all who wait for it."""
        lib.mpshm_event_set(self._shared.pointer)

    def clear(self) -> None:
        """Clear the event."""
        lib.mpshm_event_clear(self._shared.pointer)

    def wait(self, timeout: float | None = None) -> bool:
        """
        Wait until the event is set.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait.

        Returns
        -------
        bool
            False if the timeout has passed.
        """
        since = ffi.new("uint32_t *")
        return _wait("event", lambda ns: lib.mpshm_event_wait(self._shared.pointer, since, ns), timeout) == 0

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} at {id(self):#x} {'set' if self.is_set() else 'unset'}>"


def _rebuild_event(cls: Any, handle: bytes) -> Any:
    return cls._over(SharedBlock.received(handle, lib.MPSHM_EVENT))


class Barrier(synchronize.Barrier):
    """
    A barrier that breaks when a party dies.

    It has the interface of ``multiprocessing.Barrier``. A process is a party from its first `wait` on, until it ends
    without an error or drops the barrier. If it dies before that (killed, by ``os._exit``, or by an exception), while
    others wait or before they do, they get a ``threading.BrokenBarrierError``, as after `abort`, until `reset`. A
    process that has died before its first `wait` is not known to the barrier: use a timeout.

    Parameters
    ----------
    parties : int
        How many have to arrive.
    action : callable, optional
        Called by the last to arrive, before the others go on.
    timeout : float, optional
        Seconds, the default of `wait`.
    ctx : multiprocessing context, optional
        Makes the standard barrier if this process cannot share memory.

    Raises
    ------
    ValueError
        The number of parties is not positive.

    Examples
    --------
    >>> barrier = mp.Barrier(1)
    >>> barrier.wait(), barrier.broken
    (0, False)
    """

    _shared: SharedBlock
    _action: Any
    _timeout: float | None
    _member_of: int

    def __new__(cls, parties: int, action: Any = None, timeout: float | None = None, *, ctx: Any = None) -> Any:
        if parties < 1:
            raise ValueError("parties must be > 0")
        block = sync.create(lib.MPSHM_BARRIER, 0, parties)
        if block is sync.NOT_SHARED:
            return sync.standard(synchronize.Barrier, parties, action, timeout, ctx=ctx)
        return cls._over(SharedBlock(block), action, timeout)

    @classmethod
    def _over(cls, shared: SharedBlock, action: Any, timeout: float | None) -> Any:
        self = object.__new__(cls)
        self._shared, self._action, self._timeout = shared, action, timeout
        self._member_of = 0
        exit_status.watch()
        return self

    def __init__(self, parties: int, action: Any = None, timeout: float | None = None, *, ctx: Any = None) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        handle = sync.handle_of(self, self._shared.block)
        return _rebuild_barrier, (type(self), handle, self._action, self._timeout)

    def wait(self, timeout: float | None = None) -> int:
        """
        Wait until all parties have arrived.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait, after which the barrier is broken for all. Without it, the barrier's own.

        Returns
        -------
        int
            The number of parties that had arrived before, 0 for the first.

        Raises
        ------
        threading.BrokenBarrierError
            The barrier is broken, was reset, or a party has died.
        OSError
            1024 threads wait already.
        """
        timeout = self._timeout if timeout is None else timeout
        pointer = self._shared.pointer
        self._become_member()
        place, order = ffi.new("int *"), ffi.new("uint32_t *")
        rc = _wait("barrier", lambda ns: lib.mpshm_barrier_arrive(pointer, 0, ns, place, order), timeout)
        if rc == 1:
            self._open()
        elif rc == 0:
            self._wait_at(place[0], timeout)
        elif rc in (-errno.EPIPE, -errno.ETIMEDOUT):
            raise threading.BrokenBarrierError
        else:
            check(rc, "a place to wait at this barrier")
        return int(order[0])

    def _open(self) -> None:
        try:
            if self._action:
                self._action()
        except BaseException:
            self.abort()
            raise
        if lib.mpshm_barrier_open(self._shared.pointer) < 0:
            raise threading.BrokenBarrierError

    def _wait_at(self, place: int, timeout: float | None) -> None:  # the base class's takes no place
        pointer = self._shared.pointer
        waits = True
        try:
            rc = _wait("barrier", lambda ns: lib.mpshm_barrier_wait(pointer, place, ns), timeout)
            waits = False
        finally:
            if waits:  # a signal handler has raised
                lib.mpshm_barrier_leave(pointer, place)
        if rc < 0:
            raise threading.BrokenBarrierError

    def _become_member(self) -> None:
        if self._member_of != os.getpid():
            self._member_of = os.getpid()
            util.Finalize(self, _resign, args=(self._shared,), exitpriority=0)

    def reset(self) -> None:
        """Begin anew; all who wait get a ``threading.BrokenBarrierError``."""
        lib.mpshm_barrier_reset(self._shared.pointer)

    def abort(self) -> None:
        """Break the barrier, until `reset`."""
        lib.mpshm_barrier_break(self._shared.pointer)

    @property
    def parties(self) -> int:
        """How many have to arrive."""
        return int(lib.mpshm_barrier_parties(self._shared.pointer))

    @property
    def n_waiting(self) -> int:
        """How many have arrived and wait."""
        return max(0, int(lib.mpshm_barrier_waiters(self._shared.pointer)))

    @property
    def broken(self) -> bool:
        """Whether the barrier is broken."""
        return bool(lib.mpshm_barrier_waiters(self._shared.pointer) < 0)


def _resign(shared: SharedBlock) -> None:
    """At the end of a process, or of its barrier. An end by an exception breaks the barrier for the others."""
    if not exit_status.is_error():
        lib.mpshm_barrier_resign(shared.pointer)


def _rebuild_barrier(cls: Any, handle: bytes, action: Any, timeout: float | None) -> Any:
    return cls._over(SharedBlock.received(handle, lib.MPSHM_BARRIER), action, timeout)


declare_one_receiver(Condition, Event, Barrier)
