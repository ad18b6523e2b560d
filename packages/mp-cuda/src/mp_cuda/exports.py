"""Exports: the memory and events of this process that other processes still use or may still receive.

Note [Lifetime of sent memory]
------------------------------
    sender      Export --> the object that was sent (and so its memory), the event of the message
                   |
                 Lease  (mp-core: a count in shared memory, exact even if processes are killed)
                   ^
    message     an offer: an in-flight reference to the lease
    receiver    lease reference <-- Received <-- the array; released after the memory is closed, never before

When the last reference is released, mp-core calls `Export.on_released`, and the sender drops the object. A message that
no process receives keeps its memory until `ipc_collect(in_flight_older_than=...)` revokes it.
"""

from __future__ import annotations

import itertools
import time
import warnings
from typing import Any

from mp_core import Lease, collect_leases
from mp_cuda import at_exit, cuda_driver, finalizer_queue, policy
from mp_cuda.ipc_events import PooledEvent

__all__ = ["Export", "exports", "ipc_collect", "wait_released"]

POLL_S = 0.01

exports: dict[int, Export] = {}
"""Exports that other processes have not released, by serial number."""
_serials = itertools.count(1)


class Export:
    """One message of this process that a receiver still uses or may still receive."""

    __slots__ = ("base", "device", "event", "lease", "nbytes", "owner", "sent_at", "serial")

    def __init__(
        self, owner: Any, event: PooledEvent | None = None, *, device: int = 0, base: int = 0, nbytes: int = 0
    ) -> None:
        self.owner, self.event = owner, event
        self.device, self.base, self.nbytes = device, base, nbytes
        self.serial = next(_serials)
        self.sent_at = time.monotonic()
        self.lease = Lease(self.on_released)
        exports[self.serial] = self

    def on_released(self) -> None:
        """Drop what was sent. mp-core calls this once, in any thread, when no reference is left."""
        exports.pop(self.serial, None)
        event, self.event = self.event, None
        if event is not None:
            event.return_to_pool()
        self.owner = None  # last, because freeing it may call back into this module

    def offers(self, receivers: int) -> tuple[bytes, ...]:
        """Make an in-flight lease reference for each of *receivers* receivers."""
        return tuple(self.lease.offer() for _ in range(receivers))


def ipc_collect(*, in_flight_older_than: float | None = None) -> int:
    """
    Free now what can be freed.

    You need not call this: mp_cuda notices within a fraction of a second that a receiver has released memory, has ended
    or was killed. Messages that no process has received yet keep their memory. If arrays of other processes were
    dropped here, the call waits for this process's own work on their device.

    Parameters
    ----------
    in_flight_older_than : float
        Seconds. Revoke messages that have been in flight for longer; receiving one later raises `StaleHandleError`.

    Returns
    -------
    int
        How many sent arrays were freed.

    Examples
    --------
    >>> mp_cuda.ipc_collect()
    0
    """
    return _collect(in_flight_older_than, wait=True)


def _collect(in_flight_older_than: float | None, *, wait: bool) -> int:
    before = len(exports)
    if cuda_driver.started():
        finalizer_queue.drain(wait=wait)
    if in_flight_older_than is not None:
        limit = time.monotonic() - in_flight_older_than
        for export in list(exports.values()):
            if export.sent_at <= limit:
                export.lease.revoke()
    collect_leases()
    if cuda_driver.started():
        finalizer_queue.drain(wait=wait)
    return max(before - len(exports), 0)


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
    if exports and not wait_released(policy.exit_wait):
        warnings.warn(
            f"this process ends while other processes use, or may still receive, {len(exports)} of its device arrays; "
            "their memory ends with it. Call mp_cuda.wait_released() first, or set_policy(exit_wait=seconds)",
            ResourceWarning,
            stacklevel=1,
        )


@cuda_driver.after_fork
def _forget() -> None:
    """Keep the parent's objects alive but unused: the driver cannot free them in a forked child."""
    _inherited.append(dict(exports))
    exports.clear()


_inherited: list[Any] = []
