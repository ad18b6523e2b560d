"""Exports: the memory and events of this process that other processes still use or may still receive.

Note [Lifetime of sent memory]
------------------------------
    sender      Export --> what was sent (and so its memory), the events of the message
                   |
                 Lease  (mp-core: a count in shared memory, exact even if processes are killed)
                   ^
    message     an offer: an in-flight reference to the lease
    receiver    lease reference <-- Delivery <-- Received <-- arrays; released after the memory is closed

When the last reference is released, mp-core calls `Export.on_released`, and the sender drops what it has sent. A
message that no process receives keeps its memory until `ipc_collect(in_flight_older_than=...)` revokes it.

Note [Memory that is given back on request]
-------------------------------------------
A receiver that has dropped its last array may keep the memory open for the next message (`imports.py`, Note
[Lingering]). It says so in the lease's byte LINGERS. The memory is the sender's no less: if nobody but its exports has
it there, the sender sets the byte RECALLED, and the receiver closes the memory and releases the lease:

    the sender's program has dropped it             looked at with each message, for the oldest two, and every 50 ms
    ipc_collect(), wait_released(), exit            at once, for all exports
    there is no memory for a new allocation         likewise
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mp_core import Lease, collect_leases
from mp_cuda import at_exit, cuda_driver, finalizer_queue, policy
from mp_cuda.ipc_events import PooledEvent
from mp_cuda.pointer import AllocationInfo
from mp_cuda.wire import Memory

__all__ = ["LINGERS", "NO_SLOT", "RECALLED", "Export", "Kept", "collect_lingering", "exports", "ipc_collect"]
__all__ += ["kept_before", "recall", "wait_released"]

POLL_S = 0.01
FEW = 2
LINGERING_S = 0.5  # for a receiver to close what it has open only for the next message; it looks every 50 ms
# The bytes of a lease's memory: two flags, then a slot for each event of a message that its receiver has not met yet.
RECALLED, LINGERS, FIRST_SLOT, BYTES = 0, 1, 2, 16
NO_SLOT = 0

exports: dict[int, Export] = {}
"""Exports that other processes have not released, by serial number."""
_slots_lock = threading.RLock()
_oldest: deque[int] = deque()
_serials = itertools.count(1)
_kept: dict[int, int] = {}
"""How many exports have an object, by its id."""
_latest: dict[int, Kept] = {}
"""The last export of an object, by its id."""


class Kept(NamedTuple):
    """What an export keeps, and the memory for which it does."""

    export: Export
    number: int
    allocation: AllocationInfo
    memory: Memory
    """How messages name the allocation."""


class Export:
    """
    Memory and events of this process that receivers of messages still use or may still receive.

    A message with memory that has an export shares that, and its lease; for all other memory of it a new one is made.
    """

    __slots__ = (
        "_in_use", "_numbers", "allocations", "events", "flags", "lease", "owners", "sent_at", "serial", "slots"
    )  # fmt: skip

    def __init__(self) -> None:
        self.owners: list[Any] = []
        self._in_use: list[Callable[[Any], bool] | None] = []
        self._numbers: dict[int, int] = {}
        """The numbers of the owners, by their ids."""
        self.events: list[PooledEvent] = []
        self.allocations: dict[int, tuple[AllocationInfo, Memory]] = {}
        """What is sent of the memory of this process, by the driver's numbers, and how messages name it."""
        self.slots: list[PooledEvent | None] = [None] * (BYTES - FIRST_SLOT)
        """The events of messages that were not received when this process looked last."""
        self.serial = next(_serials)
        self.sent_at = time.monotonic()
        self.lease = Lease(self.on_released, BYTES)
        self.flags = self.lease.memory
        _look_at_oldest()

    def offer(self, receivers: int) -> tuple[bytes, ...]:
        """Make in-flight references for a message. ValueError if the lease has ended."""
        is_new = self.serial not in exports
        try:
            offers = tuple(self.lease.offer() for _ in range(receivers))
        except BaseException:
            if is_new:
                self.lease.revoke()
            raise
        self.sent_at = time.monotonic()
        if is_new:
            exports[self.serial] = self
            _oldest.append(self.serial)
            finalizer_queue.wake_watch()
        return offers

    def keep(self, owner: Any, in_use: Callable[[Any], bool] | None = None) -> int:
        """
        Keep *owner* until the message is released; return its number in the message.

        *in_use* tells whether the program still uses its memory; by default, whether others refer to the object.
        """
        number = self._numbers.get(id(owner))
        if number is None:
            number = self._numbers[id(owner)] = len(self.owners)
            _kept[id(owner)] = _kept.get(id(owner), 0) + 1
            self.owners.append(owner)
            self._in_use.append(in_use)
        return number

    def keep_memory(
        self, owner: Any, allocation: AllocationInfo, memory: Memory, in_use: Callable[[Any], bool] | None = None
    ) -> Kept:
        """Keep *owner* for its memory, which later messages may send again."""
        self.allocations.setdefault(allocation.buffer_id, (allocation, memory))
        kept = _latest[id(owner)] = Kept(self, self.keep(owner, in_use), allocation, memory)
        return kept

    def on_released(self) -> None:
        """Drop what was sent. mp-core calls this once, in any thread, when no reference is left."""
        exports.pop(self.serial, None)
        events, self.events = [*self.events, *filter(None, self.slots)], []
        self.slots = []
        for event in events:
            event.return_to_pool()
        owners, self.owners = self.owners, []
        for owner in owners:
            latest = _latest.get(id(owner))
            if latest is not None and latest.export is self:
                del _latest[id(owner)]
            left = _kept.pop(id(owner)) - 1
            if left:
                _kept[id(owner)] = left
        owner = None
        owners.clear()  # last, because freeing them may call back into this module

    def in_use(self) -> bool:
        """Return whether this process uses the memory for more than its exports."""
        owners = self.owners
        if not owners:  # its message is just being made
            return True
        for number, is_used in enumerate(self._in_use[: len(owners)]):
            # One reference is the argument's.
            if sys.getrefcount(owners[number]) - 1 > _kept.get(id(owners[number]), 0):
                return True
            if is_used is not None and is_used(owners[number]):
                return True
        return False

    def recall_if_dropped(self) -> bool:
        """Recall the memory if the program has dropped it. Return whether it is recalled."""
        if not self.flags[RECALLED] and not self.in_use():
            self.flags[RECALLED] = 1
        return bool(self.flags[RECALLED])

    def keep_event(self, event: PooledEvent) -> int:
        """
        Keep an event until the receiver of its message waits for it; return the slot, in which the receiver says so.

        NO_SLOT if all are taken.
        """
        with _slots_lock:
            self.free_slots()
            if None not in self.slots:
                return NO_SLOT
            number = self.slots.index(None)
            self.slots[number] = event
            self.flags[FIRST_SLOT + number] = 1
            return FIRST_SLOT + number

    def free_slots(self) -> None:
        """Return the events that receivers wait for to the pool."""
        for number, event in enumerate(self.slots):
            if event is not None and not self.flags[FIRST_SLOT + number]:
                self.slots[number] = None
                event.return_to_pool()


def kept_before(owner: Any, low: int, high: int) -> Kept | None:
    """Return the live export of *owner* that has those bytes, if it may be sent again."""
    kept = _latest.get(id(owner))
    if kept is None or kept.export.flags[RECALLED]:
        return None
    base = kept.allocation.base
    return kept if base <= low and high <= base + kept.allocation.nbytes else None


def recall() -> None:
    """Ask all receivers to close what they have open for later messages only."""
    for export in list(exports.values()):
        export.flags[RECALLED] = 1


def _look_at_oldest() -> None:
    """
    End a few exports that were released, and recall the memory of those that the program has dropped.

    With each message: a program that sends new arrays all the time keeps few of them.
    """
    released = False
    for _ in range(min(FEW, len(_oldest))):
        try:
            serial = _oldest.popleft()
        except IndexError:  # another thread looks, too
            break
        export = exports.get(serial)
        if export is not None:
            _oldest.append(serial)
            export.recall_if_dropped()
            released |= export.lease.references == 0
    if released:
        collect_leases()


def _recall_dropped() -> bool:
    """Recall the memory that the program has dropped. Return whether to look again."""
    for export in list(exports.values()):
        export.recall_if_dropped()
    return bool(exports)


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
    while any(export.flags[LINGERS] for export in list(exports.values())) and time.monotonic() < deadline:
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
    while True:
        # Do not wait for this process's own work on memory it received: that may take longer than the timeout.
        _collect(None, wait=False)
        if not exports:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


@at_exit.register(at_exit.Step.EXPORTS)
def _collect_at_exit() -> None:
    ipc_collect()


@at_exit.register(at_exit.Step.REPORT)
def _warn_at_exit() -> None:
    # What only lingers elsewhere is closed there as soon as it is recalled.
    grace = LINGERING_S if any(export.flags[LINGERS] for export in exports.values()) else 0.0
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
    global _slots_lock
    _slots_lock = threading.RLock()
    for export in exports.values():
        export.flags.release()  # or the child would have a reference to the lease
    _inherited.append(dict(exports))
    exports.clear()
    _oldest.clear()
    _kept.clear()
    _latest.clear()


_inherited: list[Any] = []
