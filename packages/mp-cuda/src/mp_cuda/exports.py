"""Exports: the memory and events of this process that other processes still use or may still receive.

Note [Lifetime of sent memory]
------------------------------
    sender      Export --> what was sent (and so its memory), the events of the message
                   |
                 Lease  (mp-core: a count in shared memory, exact even if processes are killed)
                   ^
    message     an offer: an in-flight reference to the lease
    receiver    Reference <-- Received <-- arrays; released after the memory is closed

When the last reference is released, mp-core calls `Export.on_released`, and the sender drops what it has sent. A
message that no process receives keeps its memory until `ipc_collect(in_flight_older_than=...)` revokes it.

Note [Memory that is given back on request]
-------------------------------------------
A receiver that has dropped its last array may keep the memory open for the next message (`imports.py`, Note
[Lingering]). It says so in the lease's memory (LINGERS, `native/reference.c`). The memory is the sender's no less: if
nobody but its exports has it there, the sender sets the byte RECALLED, and the receiver closes the memory and releases
the lease:

    the sender's program has dropped it             looked at with each message, for the oldest two, and every 50 ms
    ipc_collect(), wait_released(), exit            at once, for all exports
    there is no memory for a new allocation         likewise
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from mp_core import Lease, collect_leases
from mp_cuda import at_exit, cuda_driver, finalizer_queue, policy
from mp_cuda._functions import Reference, Source, count_own, set_hooks
from mp_cuda.errors import StaleHandleError
from mp_cuda.pointer import AllocationInfo

__all__ = ["BYTES", "Export", "collect_lingering", "exports", "in_use", "ipc_collect", "own_is_gone"]
__all__ += ["own_sent", "wait_released"]

SOON_S, POLL_S = 0.0002, 0.01  # the first pause of a wait, and the longest
FEW, MANY = 2, 8
COLLECT_EVERY = 64
LINGERING_S = 0.5  # for a receiver to close what it has open only for the next message; it looks every 50 ms
BYTES = 16  # of a lease's memory

exports: dict[int, Export] = {}
"""Exports that other processes have not released, by serial number."""
in_use: dict[type, Callable[[Any], bool]] = {}
"""Whether the program still uses an object of that type; by default it does if others refer to the object."""
_oldest: deque[int] = deque()
_released = 0
_serials = itertools.count(1)
_kept: dict[int, int] = {}
"""How many exports have an object, by its id."""
_shared: dict[bytes, int] = {}
"""How many exports have an allocation, by its key."""
_latest: dict[int, Source] = {}
"""The last export of an object, by its id."""


class Export(Reference):
    """
    Memory and events of this process that receivers of messages still use or may still receive.

    A message with memory that has an export shares that, and its lease; for all other memory of it a new one is made.
    """

    __slots__ = ("_numbers", "last", "lease", "owners", "places")

    def __init__(self) -> None:
        self.owners: list[Any] = []
        self._numbers: dict[int, int] = {}
        """The numbers of the owners, by their ids."""
        self.places: dict[bytes, tuple[int, int, int]] = {}
        """Address, size and device of the allocations that are sent, by their keys."""
        self.last: tuple[AllocationInfo, bytes] | None = None
        """The allocation that was sent last, and its key. Its address is not used again, because it is kept."""
        self.lease = Lease(self.on_released, BYTES)
        serial = next(_serials)
        self._begin(self.lease.memory, serial)
        _look_at_oldest()
        if serial % COLLECT_EVERY == 0:
            collect_leases()

    def first_offer(self) -> bytes:
        """Make the first in-flight reference; C makes all later ones. ValueError if the export was dropped."""
        if not self.owners:
            raise ValueError("what was to be sent has been dropped")
        exports[self.serial] = self
        try:
            offer = self.lease.offer()
        except BaseException:
            exports.pop(self.serial, None)
            self.lease.revoke()
            raise
        _oldest.append(self.serial)
        finalizer_queue.wake_watch()
        return offer

    def keep(self, owner: Any) -> int:
        """Keep *owner* until the message is released; return its number in the message."""
        number = self._numbers.get(id(owner))
        if number is None:
            number = self._numbers[id(owner)] = len(self.owners)
            _kept[id(owner)] = _kept.get(id(owner), 0) + 1
            self.owners.append(owner)
        return number

    def keep_memory(self, owner: Any, allocation: AllocationInfo, key: bytes, extra: bytes | None) -> Source:
        """Keep *owner* for its memory, which later messages may send again."""
        base, nbytes, device, *_ = allocation
        if key not in self.places:
            self.places[key] = base, nbytes, device
            _count(key, device, 1)
        self.last = (allocation, key) if extra is None else None
        source = Source((self,), key, extra, base, nbytes, self.keep(owner), device)
        _latest[id(owner)] = source
        return source

    def on_released(self) -> None:
        """Drop what was sent. mp-core calls this once, in any thread, when no reference is left."""
        exports.pop(self.serial, None)
        self.return_events()
        owners, self.owners = self.owners, []
        for owner in owners:
            latest = _latest.get(id(owner))
            if latest is not None and latest.lease is self:
                del _latest[id(owner)]
            left = _kept.pop(id(owner)) - 1
            if left:
                _kept[id(owner)] = left
        owner = latest = None
        self.last = None
        for key, (_, _, device) in self.places.items():
            _count(key, device, -1)
        owners.clear()  # last, because freeing them may call back into this module

    def in_use(self) -> bool:
        """Return whether this process uses the memory for more than its exports."""
        owners = self.owners
        if not owners:  # its message is just being made
            return True
        for number in range(len(owners)):
            # One reference is the argument's.
            if sys.getrefcount(owners[number]) - 1 > _kept.get(id(owners[number]), 0):
                return True
            is_used = in_use.get(type(owners[number]))
            if is_used is not None and is_used(owners[number]):
                return True
        return False

    def recall_if_dropped(self) -> None:
        """Recall the memory if the program has dropped it."""
        if not self.recalled and not self.in_use():
            self.recalled = True


def _count(key: bytes, device: int, sign: int) -> None:
    """Count an allocation once, however many exports have it."""
    before = _shared.get(key, 0)
    _shared[key] = before + sign
    if not _shared[key]:
        del _shared[key]
    if not before or before + sign == 0:
        count_own(device, key, sign)


def recall() -> None:
    """Ask all receivers to close what they have open for later messages only."""
    for export in list(exports.values()):
        export.recalled = True


def _look_at_oldest() -> None:
    """
    End a few exports that were released, and recall the memory of those that the program has dropped.

    With each message: a program that sends new arrays all the time keeps few of them.
    """
    global _released
    for _ in range(min(FEW, len(_oldest))):
        try:
            serial = _oldest.popleft()
        except IndexError:  # another thread looks, too
            break
        export = exports.get(serial)
        if export is not None:
            _oldest.append(serial)
            export.recall_if_dropped()
            _released += export.lease.references == 0
    if _released >= MANY:  # each time it looks at all leases
        _released = 0
        collect_leases()


def _recall_dropped() -> bool:
    """Recall the memory that the program has dropped. Return whether to look again."""
    for export in list(exports.values()):
        export.recall_if_dropped()
    return bool(exports)


def own_sent(serial: int) -> tuple[list[Any], dict[bytes, tuple[int, int, int]]] | None:
    """Return what an export of this process keeps, and where its memory is; None if it was released."""
    export = exports.get(serial)
    return None if export is None else (export.owners[:], export.places)


def own_is_gone() -> NoReturn:
    """Raise the error of a message of this process that it has released."""
    raise StaleHandleError("this process sent the array of this message and has released it since")


def _new_export() -> Export:
    """Return an export that keeps nothing but events."""
    export = Export()
    export.keep(export.places)  # so that it is none that was dropped
    return export


set_hooks(latest=_latest, own_sent=own_sent, own_is_gone=own_is_gone, new_export=_new_export)
finalizer_queue.watch(_recall_dropped)


def ipc_collect(*, in_flight_older_than: float | None = None) -> int:
    """
    Free now what can be freed.

    You need not call this: mp_cuda notices within a fraction of a second that a receiver has released memory, has ended
    or was killed. Messages that no process has received yet keep their memory. If arrays of other processes were
    dropped here, the call waits for this process's own work on their device, and closes their memory. Other processes
    that have memory of this one open only for the next message close it soon.

    Parameters
    ----------
    in_flight_older_than : float
        Seconds. Revoke messages that have been in flight for longer; receiving one later raises `StaleHandleError`.

    Returns
    -------
    int
        How many sent messages were freed.

    Examples
    --------
    >>> mp_cuda.ipc_collect()
    0
    """
    return _collect(in_flight_older_than, wait=True)


def _collect(in_flight_older_than: float | None, *, wait: bool) -> int:
    before = len(exports)
    recall()
    if cuda_driver.started():
        finalizer_queue.drain(wait=wait, close=True)
    if in_flight_older_than is not None:
        limit = time.monotonic() - in_flight_older_than
        for export in list(exports.values()):
            if export.sent_at <= limit:
                export.lease.revoke()
    collect_leases()
    if cuda_driver.started():
        finalizer_queue.drain(wait=wait)
    return max(before - len(exports), 0)


def collect_lingering() -> None:
    """Free what can be freed, and wait a moment for receivers to close what they have open only for later messages."""
    deadline = time.monotonic() + LINGERING_S
    ipc_collect()
    while any(export.lingers for export in list(exports.values())) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        ipc_collect()


def wait_released(timeout: float | None = None) -> bool:
    """
    Wait until no other process uses, or can still receive, memory of this one.

    Parameters
    ----------
    timeout : float
        Seconds to wait, without limit if None.

    Returns
    -------
    bool
        False if *timeout* seconds were not enough.

    Examples
    --------
    >>> mp_cuda.wait_released(timeout=0)
    True
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SOON_S
    while True:
        # Do not wait for this process's own work on memory it received: that may take longer than the timeout.
        _collect(None, wait=False)
        if not exports:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, POLL_S)


@at_exit.register(at_exit.Step.EXPORTS)
def _collect_at_exit() -> None:
    ipc_collect()


@at_exit.register(at_exit.Step.REPORT)
def _warn_at_exit() -> None:
    # What only lingers elsewhere is closed there as soon as it is recalled.
    grace = LINGERING_S if any(export.lingers for export in exports.values()) else 0.0
    if exports and not wait_released(max(policy.exit_wait, grace)):
        warnings.warn(
            f"this process ends while other processes use, or may still receive, {len(exports)} of its messages with "
            "device arrays; their memory ends with it. Call mp_cuda.wait_released() first, or "
            "set_policy(exit_wait=seconds)",
            ResourceWarning,
            stacklevel=1,
        )


@cuda_driver.after_fork
def _forget() -> None:
    """Keep the parent's objects alive but unused: the driver cannot free them in a forked child."""
    for export in exports.values():
        export.release()  # or the child would have a reference to the lease
    _inherited.append(dict(exports))
    exports.clear()
    _oldest.clear()
    _kept.clear()
    _shared.clear()
    _latest.clear()


_inherited: list[Any] = []
