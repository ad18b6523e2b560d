"""Lease: references counted across processes, with a callback at the owner after the last release.

It is the lifetime of a `Block` without its memory: the owner keeps a resource that lives elsewhere (on a device, say)
as long as another process has a reference. A reference ends with its process, however that ends.

    owner     lease = Lease(on_last_release=free_it)
              queue.put(lease)               an in-flight reference counts
    receiver  reference = queue.get()        a `LeaseReference`; you may send it on
              reference.release()            or drop it, or die
    owner     free_it() is called

All who have a reference share `memory`, some bytes of shared memory, and know by the lease whether the owner lives: it
has a lock in the kernel as long as it does.

The callback runs in a thread of the owner, `lease-watcher`, which exists while a lease of its process has been sent and
has not ended; or in the thread that calls `collect_leases`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

from mp_core.memory.block import Block, allocate
from mp_core.sharing import forks
from mp_core.sharing.backend import lasting_handle, rebuild_block
from mp_core.sharing.process_control import set_thread_name
from mp_core.system.fan_out import declare_one_receiver
from mp_core.system.weak_sets import members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

POLL_EVERY_S = 0.05
SIGNATURE = 8  # bytes at the begin of the block, which name the owner

_all: weakref.WeakSet[Lease] = weakref.WeakSet()
_sent: set[Lease] = set()
_lock = threading.RLock()
_watcher: threading.Thread | None = None


class LeaseReference:
    """
    Keep the `Lease` of another process alive, until you release or drop the reference, or this process ends.

    In the process of the lease itself, a reference keeps nothing alive. Receiving a lease makes one, and so does
    `receive_lease`. You can send it on; then the next receiver also has one.

    Examples
    --------
    >>> lease = mp.Lease(lambda: None)
    >>> reference = mp.receive_lease(lease.offer())
    >>> reference.released
    False
    >>> reference.release()
    """

    __slots__ = ("__weakref__", "_block")

    def __init__(self, block: Block) -> None:
        self._block: Block | None = block

    @property
    def released(self) -> bool:
        """Whether it was released."""
        return self._block is None

    def release(self) -> None:
        """Release the reference. A second call does nothing."""
        self._block = None

    @property
    def owner_alive(self) -> bool:
        """Whether the process that made the lease is still running. ValueError after `release`."""
        return self._held()._signer_lives()

    @property
    def memory(self) -> memoryview:
        """The bytes that all who have a reference share. ValueError after `release`."""
        return memoryview(self._held())[SIGNATURE:]

    def _held(self) -> Block:
        if self._block is None:
            raise ValueError("this lease reference was released")
        return self._block

    def offer(self) -> bytes:
        """
        Make an in-flight reference for one more receiver, as `Lease.offer` does.

        Returns
        -------
        bytes
            A handle of 56 bytes, good for one `receive_lease`.

        Raises
        ------
        ValueError
            This reference was released.
        """
        if self._block is None:
            raise ValueError("this lease reference was released and cannot be sent on")
        return _offer(self._block)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LeaseReference can be sent to another process but cannot be pickled to be stored")


class Lease:
    """
    Let other processes reference a resource of this process, with a callback after their last release.

    Sending it (on a queue, through a pipe, as an argument) makes an in-flight reference; the receiver gets a
    `LeaseReference`. A lease that was never sent does not end. The callback runs in a thread of this process,
    ``lease-watcher``, or in the thread that calls `collect_leases`.

    Parameters
    ----------
    on_last_release : callable
        Called once, without arguments.
    nbytes : int
        The size of `memory`.

    Raises
    ------
    MemoryError, OSError
        Shared memory is unavailable; the errors are those of `Block`.

    Examples
    --------
    >>> lease = mp.Lease(lambda: None)  # would free the resource
    >>> handle = lease.offer()  # for one receiver, which calls receive_lease
    >>> lease.references, lease.ended
    (1, False)
    >>> lease.revoke()
    >>> lease.references
    0
    """

    def __init__(
        self,
        on_last_release: Callable[[], object],
        nbytes: int = 0,
    ) -> None:
        if nbytes < 0:
            raise ValueError(f"a lease cannot have {nbytes} bytes; give 0 or more")
        self._callback = on_last_release
        self._owner = os.getpid()
        # The lock keeps forks out, or a child would have a reference that it does not know of.
        with _lock:
            self._block: Block | None = allocate(SIGNATURE + nbytes, zeroed=True)
            _all.add(self)
        self._block._sign()
        self.ended = False
        """Whether all references were released and the callback was called."""

    @property
    def references(self) -> int:
        """The number of references: other processes that have one, and messages that are not received yet."""
        return 0 if self._block is None else self._block._others()

    @property
    def memory(self) -> memoryview:
        """The bytes that all who have a reference share, zero at first. ValueError in a forked child."""
        if self._block is None:
            raise ValueError(f"this lease belongs to process {self._owner}")
        return memoryview(self._block)[SIGNATURE:]

    def revoke(self) -> None:
        """Take back all in-flight references: receiving one of those messages later raises a `ReceiveError`."""
        if self._block is not None:
            self._block._revoke()

    def offer(self) -> bytes:
        """
        Make an in-flight reference, as sending the lease does.

        Returns
        -------
        bytes
            A handle of 56 bytes, with which one receiver calls `receive_lease`.

        Raises
        ------
        ValueError
            This process is not the owner, or the lease has ended.
        """
        global _watcher
        if self._block is None or self._owner != os.getpid():
            raise ValueError(f"this lease belongs to process {self._owner}; only its owner can send it")
        with _lock:
            if self.ended:
                raise ValueError("this lease has ended: its last reference was released and its callback was called")
            if _watcher is None:
                # First: if no thread can be started, there must be no reference without a watcher.
                watcher = threading.Thread(target=_watch, name="lease-watcher", daemon=True)
                watcher.start()
                _watcher = watcher
            # The lock keeps the watcher from ending the lease before its reference exists.
            handle = _offer(self._block)
            _sent.add(self)
        return handle

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease can be sent to another process but cannot be pickled to be stored")


def _offer(block: Block) -> bytes:
    return bytes(lasting_handle(block))


def collect_leases() -> int:
    """
    Call the callbacks of all leases whose last reference was released.

    You need not call it: a thread does so every 50 ms while a lease is out.

    Returns
    -------
    int
        The number of sent leases that have not ended.

    Raises
    ------
    ExceptionGroup
        The exceptions of callbacks; all callbacks have been called.

    Examples
    --------
    >>> mp.collect_leases() >= 0
    True
    """
    with _lock:
        over = [lease for lease in _sent if lease._block is None or lease._block._end()]
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
            # Report it as for any thread, but go on: other leases will end.
            threading.excepthook(threading.ExceptHookArgs((type(errors), errors, errors.__traceback__, None)))
        with _lock:
            if not _sent:
                _watcher = None
                return
        pause.wait(POLL_EVERY_S)


def receive_lease(handle: bytes) -> LeaseReference:
    """
    Receive the lease of a handle.

    Parameters
    ----------
    handle : bytes
        The result of `Lease.offer`, good for one receiver.

    Returns
    -------
    LeaseReference
        Keep it as long as you use the resource.

    Raises
    ------
    ReceiveError
        The handle was used before or was revoked.
    ValueError
        The handle is damaged.

    Examples
    --------
    >>> lease = mp.Lease(lambda: None)
    >>> mp.receive_lease(lease.offer()).released
    False
    """
    return LeaseReference(rebuild_block(handle))


def _reduce(lease: Lease | LeaseReference) -> tuple[Callable[[bytes], LeaseReference], tuple[bytes]]:
    return receive_lease, (lease.offer(),)


def _forget_in_child() -> None:
    """Reset a forked child: it owns none of its parent's leases, and has no watcher."""
    global _watcher
    _watcher = None
    for lease in members(_all):
        lease._block = None  # or the child would have one more reference, even to leases sent later
    _all.clear()
    _sent.clear()


ForkingPickler.register(Lease, _reduce)
ForkingPickler.register(LeaseReference, _reduce)
forks.keep_out(_lock)
forks.register(after_in_child=_forget_in_child)


declare_one_receiver(Lease, LeaseReference)
