"""Asking and waiting: what others still have of this process's memory."""

from __future__ import annotations

import time

from mp_core import collect_leases
from mp_cuda import driver, janitor, signals
from mp_cuda.export import exports
from mp_cuda.opened import mappings

__all__ = ["ipc_collect", "ipc_stats", "wait_released"]

LOOK_EVERY_S = 0.01


def ipc_collect(*, in_flight_older_than: float | None = None) -> int:
    """
    Free what can be freed now.

    Nothing needs this: receivers that let go, end or are killed are noticed within a fraction of a second. Messages
    that nobody has received yet keep their memory. Where arrays of other processes were dropped, it waits for this
    process's own work on their device.

    Parameters
    ----------
    in_flight_older_than : float
        Seconds. Messages under way for longer are taken back, and who receives one later gets a `StaleHandleError`.

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
    if driver.started():
        janitor.drain(wait=wait)
    if in_flight_older_than is not None:
        limit = time.monotonic() - in_flight_older_than
        for export in list(exports.values()):
            if export.sent_at <= limit:
                export.lease.revoke()
    collect_leases()
    if driver.started():
        janitor.drain(wait=wait)
    return max(before - len(exports), 0)


def wait_released(timeout: float | None = None) -> bool:
    """
    Wait until no other process has, or can still receive, memory of this one.

    Parameters
    ----------
    timeout : float
        Seconds to wait, without limit if None.

    Returns
    -------
    bool
        False when *timeout* seconds were not enough.

    Examples
    --------
    >>> mp_cuda.wait_released(timeout=0)
    True
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        # Our own work on what others have sent us is not what is waited for, and may take longer than the timeout.
        _collect(None, wait=False)
        if not exports:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY_S)


def ipc_stats() -> dict[str, int]:
    """
    Numbers about sharing in this process.

    Returns
    -------
    dict of str to int
        Bytes where the name says so.

        - ``live_sends``, ``live_bytes``: messages of this process that others have or may receive, and the bytes of the
          allocations behind them (an allocation sent twice counts twice)
        - ``claims``: receivers and messages under way
        - ``mappings``: allocations of others that are open here
        - ``imported_events``, ``pool_events``: events of others that are open, events made for messages
        - ``pending``: things dropped and not yet closed

    Examples
    --------
    >>> mp_cuda.ipc_stats()["mappings"]
    0
    """
    sent = list(exports.values())
    made, imported = signals.counts()
    return {
        "live_sends": len(sent),
        "live_bytes": sum(export.nbytes for export in sent),
        "claims": sum(export.lease.references for export in sent),
        "mappings": len(mappings),
        "imported_events": imported,
        "pool_events": made,
        "pending": janitor.pending(),
    }
