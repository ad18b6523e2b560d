"""Locks and semaphores that outlive the process that holds them.

They have the interface of `multiprocessing.synchronize` and are instances of its classes. If their holder dies, the
next process acquires them, with an `OwnerDiedWarning`. The lock is a word of shared memory (`libshm/src/sync`), and
`native/locks/lock_type.c` its type. A process that cannot share memory gets the standard library's object instead.
"""

from __future__ import annotations

from multiprocessing import synchronize, util
from operator import index, methodcaller

from mp_core.locks import sync
from mp_core.sharing.backend import SemLock, lib
from mp_core.system.fan_out import declare_one_receiver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RECURSIVE, _PLAIN = 0, 1  # the kinds of multiprocessing.synchronize
util.register_after_fork(SemLock, methodcaller("_after_fork"))


def _make(cls: Any, block: Any, kind: int, most: int) -> Any:
    """Return a new object of the class over the block; the standard constructor is not called."""
    self = object.__new__(cls)
    self._semlock = SemLock(block, kind, most)
    self._make_methods()
    return self


def _rebuild(cls: Any, handle: bytes, kind: int, most: int) -> Any:
    return _make(cls, sync.receive(handle), kind, most)


def _reduce(self: Any) -> tuple[Any, ...]:
    semlock = self._semlock
    return _rebuild, (type(self), sync.handle_of(self, semlock.block), semlock.kind, semlock.maxvalue)


class Lock(synchronize.Lock):
    """
    A lock between processes and threads that is not lost with its holder.

    It has the interface of ``multiprocessing.Lock`` and is an instance of ``multiprocessing.synchronize.Lock``. When
    the process that holds it dies, in any way, the next one acquires it, and an `OwnerDiedWarning` is shown at the
    line that does. An exception of a thread releases nothing: use ``with``.

    Acquiring and releasing it without contention takes no system call.

    Parameters
    ----------
    ctx : multiprocessing context, optional
        Makes the standard lock if this process cannot share memory.

    Examples
    --------
    >>> lock = mp.Lock()
    >>> with lock:
    ...     lock.acquire(timeout=0.01)
    False
    """

    def __new__(cls, *, ctx: Any = None) -> Any:
        block = sync.create(lib.MPSHM_LOCK)
        if block is sync.NOT_SHARED:
            return sync.standard(synchronize.Lock, ctx=ctx)
        return _make(cls, block, _PLAIN, 1)

    def __init__(self, *, ctx: Any = None) -> None:
        pass

    __reduce__ = _reduce


class RLock(synchronize.RLock):
    """
    A lock that its holder, a thread of a process, can acquire again.

    It has the interface of ``multiprocessing.RLock``. After its holder's death it passes on as a `Lock` does.

    Parameters
    ----------
    ctx : multiprocessing context, optional
        Makes the standard lock if this process cannot share memory.

    Examples
    --------
    >>> lock = mp.RLock()
    >>> with lock, lock:
    ...     pass
    """

    def __new__(cls, *, ctx: Any = None) -> Any:
        block = sync.create(lib.MPSHM_LOCK)
        if block is sync.NOT_SHARED:
            return sync.standard(synchronize.RLock, ctx=ctx)
        return _make(cls, block, _RECURSIVE, 1)

    def __init__(self, *, ctx: Any = None) -> None:
        pass

    __reduce__ = _reduce


class Semaphore(synchronize.Semaphore):
    """
    A semaphore whose units return when the process that acquired them dies.

    It has the interface of ``multiprocessing.Semaphore``. A unit belongs to the process that acquired it. When that
    process dies, in any way, its units return, and the process that gets one of them is shown an `OwnerDiedWarning`.

    If units are events and not property, no unit returns, as in the standard library: when the first value is 0, or
    from the first release by a process that had not acquired.

    Parameters
    ----------
    value : int, default 1
        The units it begins with.
    ctx : multiprocessing context, optional
        Makes the standard semaphore if this process cannot share memory.

    Raises
    ------
    ValueError
        The value is negative or above 2**31 - 1.

    Examples
    --------
    >>> semaphore = mp.Semaphore(2)
    >>> with semaphore:
    ...     semaphore.get_value()
    1
    """

    def __new__(cls, value: int = 1, *, ctx: Any = None) -> Any:
        return _semaphore(cls, value, sync.MOST, synchronize.Semaphore, ctx)

    def __init__(self, value: int = 1, *, ctx: Any = None) -> None:
        pass

    __reduce__ = _reduce


class BoundedSemaphore(Semaphore, synchronize.BoundedSemaphore):
    """
    A `Semaphore` that cannot have more units than it began with: one release more is a `ValueError`.

    Parameters
    ----------
    value : int, default 1
        The units it begins with.
    ctx : multiprocessing context, optional
        Makes the standard semaphore if this process cannot share memory.

    Raises
    ------
    ValueError
        The value is negative or above 2**31 - 1.

    Examples
    --------
    >>> mp.BoundedSemaphore(3).get_value()
    3
    """

    def __new__(cls, value: int = 1, *, ctx: Any = None) -> Any:
        return _semaphore(cls, value, value, synchronize.BoundedSemaphore, ctx)


def _semaphore(cls: Any, value: int, most: int, fallback: Any, ctx: Any) -> Any:
    if not 0 <= index(value) <= sync.MOST:
        raise ValueError(f"a semaphore cannot have {value} units; give 0 to {sync.MOST}")
    block = sync.create(lib.MPSHM_SEMAPHORE, value, most)
    if block is sync.NOT_SHARED:
        return sync.standard(fallback, value, ctx=ctx)
    return _make(cls, block, _PLAIN, most)


declare_one_receiver(Lock, RLock, Semaphore, BoundedSemaphore)
