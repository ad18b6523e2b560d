"""Lease: a claim counted across processes, with a callback at its owner when the last one goes.

It is the lifetime of a `Block` without its memory: what lives elsewhere (on a device, say) is kept by its owner for as
long as any other process has a claim, and a claim goes with its process, however that ends.

    owner     lease = Lease(on_last_claim=free_it)
              queue.put(lease)               a claim under way counts
    receiver  claim = queue.get()            a `Claim`; it may be sent on
              claim.release()                or drop it, or die
    owner     free_it() is called

The callback runs in a thread of the owner, `lease-watcher`, which exists while a lease of its process has been sent and
not ended; or in whatever thread calls `collect_leases`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import NoReturn

from mp_core._native import rebuild_block, reduce_block
from mp_core.block import Block, allocate
from mp_core.manners import set_thread_name

__all__ = ["Claim", "Lease", "claim_lease", "collect_leases"]

LOOK_EVERY_S = 0.05

_all: weakref.WeakSet[Lease] = weakref.WeakSet()
_sent: set[Lease] = set()
_lock = threading.RLock()
_watcher: threading.Thread | None = None


class Claim:
    """
    What a receiver of a `Lease` has: a claim, until it is released, dropped, or its process ends.

    It is made by receiving a lease, or by `claim_lease`. It can be sent on; then the next receiver has one as well.

    Examples
    --------
    >>> lease = mp.Lease(lambda: None)
    >>> claim = mp.claim_lease(lease.offer())
    >>> claim.released
    False
    >>> claim.release()
    """

    __slots__ = ("__weakref__", "_block")

    def __init__(self, block: Block) -> None:
        self._block: Block | None = block

    @property
    def released(self) -> bool:
        """Has it been given back?"""
        return self._block is None

    def release(self) -> None:
        """Give the claim back. Doing it again is allowed."""
        self._block = None

    def offer(self) -> bytes:
        """
        As `Lease.offer`: one more receiver may claim.

        Returns
        -------
        bytes
            56 of them, good for one `claim_lease`.

        Raises
        ------
        ValueError
            This claim has been released.
        """
        if self._block is None:
            raise ValueError("this claim has been released and cannot be sent on")
        return _offer(self._block)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Claim can be sent to another process but cannot be pickled for keeping")


class Lease:
    """
    Something of this process that others may claim, with a callback when the last claim has gone.

    Sending it (on a queue, through a pipe, as an argument) makes a claim under way; the receiver gets a `Claim`. A
    lease that has never been sent does not end. The callback runs in a thread of this process, ``lease-watcher``, or in
    whatever thread calls `collect_leases`.

    Parameters
    ----------
    on_last_claim : callable
        Called once, without arguments.

    Raises
    ------
    MemoryError, OSError
        What `Block` raises when no shared memory can be had.

    Examples
    --------
    >>> lease = mp.Lease(lambda: None)  # would free what lives elsewhere
    >>> handle = lease.offer()  # for one receiver, who calls claim_lease
    >>> lease.claims, lease.ended
    (1, False)
    >>> lease.revoke()
    >>> lease.claims
    0
    """

    def __init__(self, on_last_claim: Callable[[], object]) -> None:
        self._callback = on_last_claim
        self._owner = os.getpid()
        # No fork comes between the two, or a child would hold a lease that it does not know of.
        with _lock:
            self._block: Block | None = allocate(0, zeroed=False)
            _all.add(self)
        self.ended = False
        """Have all claims gone, and has the callback been called?"""

    @property
    def claims(self) -> int:
        """How many claims there are: processes that have one, and messages that nobody has received yet."""
        return 0 if self._block is None else self._block._others()

    def revoke(self) -> None:
        """Take back the claims that are under way: who receives one of those messages later gets a `ReceiveError`."""
        if self._block is not None:
            self._block._revoke()

    def offer(self) -> bytes:
        """
        Make a claim under way. Sending a lease does just this.

        Returns
        -------
        bytes
            56 of them, with which one receiver calls `claim_lease`.

        Raises
        ------
        ValueError
            In another process than the owner's, and when the lease has ended.
        """
        global _watcher
        if self._block is None or self._owner != os.getpid():
            raise ValueError(f"this lease belongs to process {self._owner}; only its owner can send it")
        with _lock:
            if self.ended:
                raise ValueError("this lease has ended: its last claim has gone and its callback has been called")
            if _watcher is None:
                # First, for no claim to be made that nobody watches when no thread can be started.
                watcher = threading.Thread(target=_watch, name="lease-watcher", daemon=True)
                watcher.start()
                _watcher = watcher
            # Made while the watcher may not look yet, or a lease would end on its way out.
            handle = _offer(self._block)
            _sent.add(self)
        return handle

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease can be sent to another process but cannot be pickled for keeping")


def _offer(block: Block) -> bytes:
    _, (handle,) = reduce_block(block)
    return bytes(handle)


def collect_leases() -> int:
    """
    Call the callbacks of all leases whose last claim has gone.

    Nothing needs this: a thread does it every 50 ms while a lease is out.

    Returns
    -------
    int
        How many of the leases that were sent are left.

    Raises
    ------
    ExceptionGroup
        Of what callbacks have raised; all of them have been called.

    Examples
    --------
    >>> mp.collect_leases() >= 0
    True
    """
    with _lock:
        over = [lease for lease in _sent if lease.claims == 0]
        _sent.difference_update(over)
        left = len(_sent)
        for lease in over:
            lease.ended = True
    errors: list[Exception] = []
    for lease in over:
        try:
            lease._callback()
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("callbacks of leases that have ended raised", errors)
    return left


def _watch() -> None:
    global _watcher
    set_thread_name("lease-watcher")
    pause = threading.Event()
    while True:
        try:
            collect_leases()
        except ExceptionGroup as errors:
            # As for any thread, but this one goes on: other leases will end.
            threading.excepthook(threading.ExceptHookArgs((type(errors), errors, errors.__traceback__, None)))
        with _lock:
            if not _sent:
                _watcher = None
                return
        pause.wait(LOOK_EVERY_S)


def claim_lease(handle: bytes) -> Claim:
    """
    Claim the lease that a handle was offered for.

    Parameters
    ----------
    handle : bytes
        What `Lease.offer` returned, good for one claim.

    Returns
    -------
    Claim
        Hold it for as long as what it stands for is used.

    Raises
    ------
    ReceiveError
        The handle was used before or has been revoked.
    ValueError
        The handle is damaged.

    Examples
    --------
    >>> lease = mp.Lease(lambda: None)
    >>> mp.claim_lease(lease.offer()).released
    False
    """
    return Claim(rebuild_block(handle))


def _reduce(lease_or_claim: Lease | Claim) -> tuple[Callable[[bytes], Claim], tuple[bytes]]:
    return claim_lease, (lease_or_claim.offer(),)


def _forget_in_child() -> None:
    """A forked child does not own its parent's leases, and has no watcher."""
    global _watcher, _lock
    _lock = threading.RLock()
    _watcher = None
    for lease in list(_all):
        lease._block = None  # or the child would be one more that has a claim, also when it is sent later
    _all.clear()
    _sent.clear()


def _before_fork() -> None:
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()


ForkingPickler.register(Lease, _reduce)
ForkingPickler.register(Claim, _reduce)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_in_child)
